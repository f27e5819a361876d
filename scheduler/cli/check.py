"""`dsparkd check`: the proof of the lifecycle, in a minute or two, on all cores.

Owns the progress bar, the table and the exit status; `proof/verdict.py` does the work.
"""

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..proof.records import write
from ..proof.verdict import failures, prove


def check(
    quick: Annotated[bool, typer.Option("--quick", help="Small scopes only, for daily use.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = os.cpu_count() or 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdict here.")] = None,
    traces: Annotated[Path, typer.Option("--traces", help="Where a violation leaves its trace file.")] = Path(),
) -> None:
    """Prove the state machines: laws, every interleaving, every row, every mutant of every row.

    Exit status 1 on a violation, a surviving mutant, an unfired row or an unreached situation.
    """
    started = time.monotonic()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("exploring, and running mutants")
        verdict = prove(
            quick=quick, jobs=jobs, progress=lambda done, total: bar.update(shown, completed=done, total=total)
        )
    problems = failures(verdict)
    if json_file is not None:
        json_file.write_text(json.dumps(_plain(verdict), indent=1) + "\n")
    console.print(_table(verdict))
    for one in verdict["violations"]:
        path = traces / f"violation-{one['scope']}.jsonl"
        write(path, one["limits"], one["story"])
        console.print(f"# the shortest way to it, also in {path}\n{one['python']}", markup=False, highlight=False)
    for problem in problems:
        console.print(problem, style="red", markup=False, highlight=False)
    console.print(f"{'stands' if not problems else 'FAILS'} after {time.monotonic() - started:.0f} s")
    if problems:
        raise typer.Exit(1)


def _plain(verdict: dict[str, Any]) -> dict[str, Any]:
    """Without what only a trace file needs."""
    left_out = ("story", "limits")
    violations = [{key: one[key] for key in one if key not in left_out} for one in verdict["violations"]]
    return {**verdict, "violations": violations}


def _table(verdict: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    mutants = (
        f"{verdict['mutants']}: {verdict['refused']} refused, {verdict['killed']} killed, "
        f"{len(verdict['survivors'])} survived, {len(verdict['equivalent'])} equivalent"
    )
    reached = sum(verdict["sometimes"].values())
    for name, value in (
        ("machines", ", ".join(verdict["machines"])),
        ("rows fired", f"{verdict['rows_fired']} of {verdict['rows']}"),
        ("mutants", mutants),
        ("states", f"{verdict['states_explored']:,} in {len(verdict['scopes'])} scopes"),
        *((f"  {one['name']}", f"{one['states']:,} (depth {one['depth']})") for one in verdict["scopes"]),
        ("situations reached", f"{reached} of {len(verdict['sometimes'])}"),
        ("violations", str(len(verdict["violations"]))),
    ):
        table.add_row(name, value)
    return table
