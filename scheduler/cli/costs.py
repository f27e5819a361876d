"""`dsparkd costs --connect ADDRESS [-o FILE]`: what steps cost on a running engine, as a table and as a file.

Owns the presentation; the engine's statistics hold the numbers.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ...statemachine.errors import Refused
from ..service.cost_files import write_costs
from .engines import engine
from .files import writable


def costs(
    connect: Annotated[str, typer.Option("--connect", help="A running engine.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it for the setting `cost_table`.")
    ] = None,
) -> None:
    """Show the cost table of an engine, measured while its worker warmed up."""
    writable(output, "--output")
    with engine(connect, {}) as client:
        stats = client.stats()
    if output is not None:
        write_costs(output, stats)
    table = stats["cost_table"]
    if table is None:
        raise Refused(
            "NO_COST_TABLE", "the engine has no cost table: measure_costs is off, or its worker measures none"
        )
    corrected = {(rows, width) for rows, width, _, _ in table["corrections"]}
    shown = Table(
        title=f"microseconds a step by rows and tokens a row, context {table['context_len']} (* made monotone)"
    )
    shown.add_column("rows", justify="right")
    for width in table["widths"]:
        shown.add_column(f"x {width}", justify="right")
    shown.add_column("block", justify="right")
    for index, rows in enumerate(table["rows"]):
        times = zip(table["widths"], table["target_ns"][index], strict=True)
        cells = [_cell(time, (rows, width) in corrected) for width, time in times]
        cells.append(_cell(table["draft_ns"][index], (rows, 0) in corrected) if table["draft_ns"] else "")
        shown.add_row(str(rows), *cells)
    Console().print(shown)


def _cell(time_ns: int, corrected: bool) -> str:
    return f"{time_ns / 1000:.0f}{'*' if corrected else ''}"
