"""`dsparkd report TRACE -o report.html`: a recorded run as one page that needs no network.

Owns the file; `trace/report.py` makes the page.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..trace.report import of_trace, page
from .files import writable, write


def report(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="What `serve --trace` wrote: a file or a folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")],
) -> None:
    """Replay a trace and draw it: requests on slots by state, steps, acceptance, latencies."""
    writable(output, "--output")
    write(output, page(trace.resolve().name, of_trace(trace)), flag="--output")
    Console(soft_wrap=True).print(f"{output}: {output.stat().st_size >> 10} KiB", markup=False, highlight=False)
