"""`dsparkd calibrate RECORD -o FILE`: temperatures for the confidence head, fitted to recorded rounds.

Owns the presentation; `trace/calibration.py` holds the arithmetic, docs/policies.md says what to record.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ...statemachine.errors import Refused
from ..service.calibration_files import Calibration, write_calibration
from ..trace.calibration import Position, calibrated
from ..trace.rounds import models_of, rounds
from .engines import engine
from .files import writable, write
from .line_chart import Line, line_chart

_PACKAGE = __name__.split(".", maxsplit=1)[0]
MODELS = ("target", "drafter")  # of an engine's fingerprint: what a calibration depends on


def calibrate(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A trace, or `generate --passes --output` rows.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write it for the setting `confidence_calibration`.")],
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the errors before and after.")
    ] = None,
    connect: Annotated[
        str | None, typer.Option("--connect", help="The engine that made the record: the file then names its models.")
    ] = None,
) -> None:
    """Fit one temperature for each position of the block; show the calibration error before and after."""
    recorded = list(rounds(record))
    writable(output, "--output")
    writable(plot, "--plot")
    fingerprint = _models(connect, record)
    found = calibrated(recorded)
    made = Calibration(
        dsparkd=version(_PACKAGE),
        fingerprint=fingerprint,
        temperatures=[one.temperature for one in found],
        num_rounds=[one.num_rounds for one in found],
        ece_before=[one.ece_before for one in found],
        ece_after=[one.ece_after for one in found],
    )
    write_calibration(output, made)
    if plot is not None:
        write(plot, _chart(found), flag="--plot")
    Console().print(_table(found, len(recorded)))
    if not fingerprint:
        note = "the file does not say which models it is for: --connect ADDRESS would"
        Console(stderr=True).print(note, style="dim", markup=False, highlight=False)


def _models(connect: str | None, record: Path) -> dict[str, str]:
    if connect is None:
        known = models_of(record)
    else:
        with engine(connect, {}) as client:
            table = client.stats()["cost_table"]
        if table is None:
            raise Refused("NO_COST_TABLE", f"--connect {connect}: the engine has no cost table, so it names no models")
        known = table["fingerprint"]
    return {key: value for key, value in known.items() if key in MODELS}


def _table(found: list[Position], num_rounds: int) -> Table:
    shown = Table(title=f"expected calibration error of {num_rounds} rounds, in percent")
    for name in ("position", "rounds", "stood", "temperature", "before", "after", "held out"):
        shown.add_column(name, justify="right")
    for index, one in enumerate(found, 1):
        errors = [f"{100 * error:.1f}" for error in (one.ece_before, one.ece_after)]
        errors.append("-" if one.ece_held_out is None else f"{100 * one.ece_held_out:.1f}")
        shown.add_row(str(index), str(one.num_rounds), f"{one.share_stood:.2f}", f"{one.temperature:.2f}", *errors)
    return shown


def _chart(found: list[Position]) -> str:
    lines = [
        Line("before", [100 * one.ece_before for one in found]),
        Line("after", [100 * one.ece_after for one in found]),
        Line("held out", [100 * (one.ece_held_out or 0.0) for one in found]),
    ]
    places = [str(index) for index in range(1, len(found) + 1)]
    return line_chart("expected calibration error by position, in percent", places, lines)
