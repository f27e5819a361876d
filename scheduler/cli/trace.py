"""`dsparkd trace show|stats|cut|export|import`: what stands in a trace, part of it, all of it as JSON lines; arrivals.

Owns the presentation; `trace/` reads and cuts. docs/traces.md names every field.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console
from rich.table import Table

from ...statemachine.errors import Refused
from ..core.results import Output
from ..service.packing import as_map, pack
from ..trace.arrivals import FORMATS, read_arrivals, write_arrivals
from ..trace.cutting import cut as cut_trace
from ..trace.reading import Event, Failure, Header, Snapshot, files_of, read_trace
from ..trace.replay import replay

trace = typer.Typer(help="Look into traces, cut them, export them.", no_args_is_help=True)
TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, or a folder of them.")]


@trace.command()
def show(
    path: TraceFile,
    begin: Annotated[int, typer.Option("--from", min=0, help="The first input to show.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many.")] = 40,
) -> None:
    """Print the header and some inputs, one a line."""
    console = Console(soft_wrap=True)
    index = 0
    for entry in read_trace(path):
        if isinstance(entry, Header):
            limits = entry.limits
            console.print(
                f"segment {entry.segment}, dsparkd {entry.dsparkd}, policy {entry.policy.get('name')}, "
                f"{limits.num_slots} slots of {limits.max_model_len}, outputs {entry.outputs}"
                f"{', redacted' if entry.redacted else ''}",
                markup=False,
                highlight=False,
            )
        elif isinstance(entry, Failure):
            console.print(f"the engine ended: {entry.error}", markup=False, highlight=False)
        elif isinstance(entry, Event):
            if begin <= index < begin + limit:
                known = "" if entry.name is None else f"  ({entry.name})"
                console.print(f"{index:8} {pack(entry.input)}{known}", markup=False, highlight=False)
            index += 1


@trace.command()
def stats(path: TraceFile) -> None:
    """Replay and print what it sums up to: inputs by kind, requests, steps, drafts."""
    kinds: Counter[str] = Counter()
    values: dict[str, Any] = {}
    for step in replay(path):
        kinds[type(step.event.input).__name__] += 1
        core = step.core
    if not kinds:
        raise Refused("BAD_FILE", f"{path}: holds no input")
    values = core.totals.values(core.ledger.requests.values())
    table = Table(show_header=False)
    size = sum(file.stat().st_size for file in files_of(path))
    table.add_row("bytes", str(size))
    for name, count in kinds.most_common():
        table.add_row(f"inputs: {name}", str(count))
    for name in ("accepted", "ended", "steps", "step_rows", "step_faults", "tokens_emitted", "passes", "zero_passes"):
        table.add_row(name, str(values[name]))
    for name in ("tokens_drafted", "tokens_verified", "tokens_accepted", "prefix_tokens_reused"):
        table.add_row(name, str(values[name]))
    drafting = values["passes"] - values["zero_passes"]
    table.add_row("acceptance_length", f"{values['emitted_drafting'] / drafting:.3f}" if drafting else "-")
    Console().print(table)


@trace.command()
def cut(
    path: TraceFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The new trace file.")],
    begin: Annotated[int, typer.Option("--from", min=0, help="The first input to keep.")] = 0,
    until: Annotated[int | None, typer.Option("--until", min=1, help="The first input to leave out.")] = None,
) -> None:
    """Write some of a trace's inputs as a trace of its own, which replays from a snapshot."""
    count = cut_trace(path, output, begin=begin, until=until)
    Console(soft_wrap=True).print(f"{output}: {count} inputs", markup=False, highlight=False)


@trace.command()
def export(
    path: TraceFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON lines.")],
    outputs: Annotated[bool, typer.Option("--outputs", help="Replay, and write what the core says as well.")] = False,
) -> None:
    """Write one JSON object a line: the header, then each input, then what ended the engine if anything did."""
    said = ((step.outputs, step.same) for step in replay(path)) if outputs else None
    try:
        file = output.open("x", encoding="utf-8")
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {output}: expected a new file: {error}") from error
    try:
        with file:
            for line in _lines(path, said):
                file.write(json.dumps(line) + "\n")
    except BaseException as error:
        output.unlink()  # part of a trace looks like a trace
        if isinstance(error, OSError):
            raise Refused("BAD_CONFIG", f"--output {output}: cannot be written: {error}") from error
        raise


@trace.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="ARRIVALS", help="Azure, Mooncake, Vidur, LLMServingSim, or ours.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Arrivals in our format, a new file.")],
    format_: Annotated[str | None, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = None,
    scale: Annotated[float | None, typer.Option("--scale", min=1e-6, help="Multiply all lengths.")] = None,
    max_len: Annotated[
        int | None, typer.Option("--max-len", min=2, help="Scale so that the longest prompt + output has this length.")
    ] = None,
) -> None:
    """Write published arrivals in our own format; how lengths were scaled stands in its first line."""
    if scale is not None and max_len is not None:
        raise Refused("BAD_CONFIG", "--scale and --max-len: expected one of them")
    arrivals = read_arrivals(path, format_)
    longest = max(one.prompt_len + one.output_len for one in arrivals)
    # Rounding may lift each of the two lengths by a half, so one token is kept back.
    factor = scale or (1.0 if max_len is None else min(1.0, (max_len - 1) / longest))
    scaled = arrivals if factor == 1.0 else [one.scaled(factor) for one in arrivals]
    rule = "every length times scale, rounded, 1 at least"
    about = {"source": path.name, "scale": factor, "rule": rule, "longest": longest}
    try:
        write_arrivals(output, scaled, about)
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {output}: expected a new file: {error}") from error
    now = max(one.prompt_len + one.output_len for one in scaled)
    told = f"{output}: {len(scaled)} arrivals, lengths times {factor:g}, longest {now}"
    Console(soft_wrap=True).print(told, markup=False, highlight=False)


def _lines(path: Path, said: Iterator[tuple[list[Output], bool]] | None) -> Iterator[dict[str, Any]]:
    """`said`: for each input what a replay says to it, and whether that is what was said."""
    index = 0
    for entry in read_trace(path):
        if isinstance(entry, Header):
            limits = attrs.asdict(entry.limits)
            yield {"kind": "header", "segment": entry.segment, "policy": entry.policy, "limits": limits}
        elif isinstance(entry, Snapshot):
            yield {"kind": "snapshot"}
        elif isinstance(entry, Failure):
            yield {"kind": "failure", "error": entry.error, **as_map(entry.input)}
        else:
            line = {"kind": "input", "index": index, **as_map(entry.input)}
            if entry.name is not None:
                line["request_id"] = entry.name
            if said is not None:
                outputs, line["same"] = next(said)
                line["outputs"] = [as_map(one) for one in outputs]
            yield line
            index += 1
