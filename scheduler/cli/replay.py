"""`dsparkd replay TRACE`: does the engine still say what it said then? Status 1 and the first difference if not.

Owns the presentation; `trace/replay.py` replays and compares.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ...statemachine.errors import Refused
from ..core import events, results
from ..service.packing import pack
from ..trace.live import recorded_requests, run_again
from ..trace.reading import Failure, read_trace
from ..trace.replay import Difference, Step, first_difference


def replay(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="What `serve --trace` wrote: a file or a folder.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Another policy: where does it first differ?")] = None,
    until: Annotated[int | None, typer.Option("--until", min=1, help="Stop after so many inputs.")] = None,
    request: Annotated[int | None, typer.Option("--request", min=0, help="Print what concerns this request.")] = None,
    step: Annotated[int | None, typer.Option("--step", min=1, help="Print this step's command and report.")] = None,
    live: Annotated[
        str | None, typer.Option("--live", metavar="ADDRESS", help="Send its requests to an engine instead.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", min=0.0, help="--live: times its pace (1); 0: at once.")
    ] = None,
) -> None:
    """Feed a trace's inputs to a fresh core and compare everything that it says, digest by digest.

    With --live ADDRESS its requests go to a running engine, and their tokens are compared.
    """
    looks = {"--policy": policy, "--until": until, "--request": request, "--step": step}
    given = [flag for flag, value in looks.items() if value is not None]
    if live is not None:
        if given:
            raise Refused("BAD_CONFIG", f"--live and {given[0]}: expected one of them")
        _live(live, trace, speed=1.0 if speed is None else speed)
        return
    if speed is not None:
        raise Refused("BAD_CONFIG", f"--speed {speed:g}: expected --live ADDRESS beside it")
    if request is not None and step is not None:
        raise Refused("BAD_CONFIG", "--request and --step: expected one of them")
    look = Look(Console(soft_wrap=True), request=request, step=step)
    count, difference = first_difference(trace, policy=policy, until=until, on_step=look.at)
    if difference is not None:
        _print_difference(look.console, difference)
        raise typer.Exit(1)
    look.console.print(f"{count} inputs replayed, every output is what it was", highlight=False)
    ended = [entry.error for entry in read_trace(trace) if isinstance(entry, Failure)] if until is None else []
    for error in ended:
        look.console.print(f"the next one ended the engine, then and now: {error}", markup=False, highlight=False)
    if given and look.num_shown == 0 and given != ["--policy"] and given != ["--until"]:
        raise Refused("BAD_CONFIG", f"{' '.join(given)}: nothing in these {count} inputs has to do with it")


def _live(address: str, trace: Path, *, speed: float) -> None:
    console = Console(soft_wrap=True)
    requests = recorded_requests(trace)
    found = asyncio.run(run_again(address, requests, speed=speed))
    for one in found:
        now = "nothing" if one.now is None else one.now
        told = f"{one.name}: at {one.index} it was {one.then}, now {now} {one.message}"
        console.print(told.rstrip(), markup=False, highlight=False)
    console.print(f"{len(requests)} requests sent, {len(requests) - len(found)} said the same", highlight=False)
    if found:
        raise typer.Exit(1)


class Look:
    """Prints what one request or one step has to do with, in passing."""

    def __init__(self, console: Console, *, request: int | None, step: int | None) -> None:
        self.console, self._request, self._step = console, request, step
        self.num_shown = 0

    def at(self, replayed: Step) -> None:
        if self._request is not None:
            self._show_request(replayed, self._request)
        elif self._step is not None:
            self._show_step(replayed, self._step)

    def _show_request(self, replayed: Step, request: int) -> None:
        if getattr(replayed.event.input, "request", None) == request:
            self._print(replayed, "in ", pack(replayed.event.input), name=replayed.event.name)
        for output in replayed.outputs:
            if getattr(output, "request", None) == request:
                self._print(replayed, "out", pack(output))
        one = replayed.core.ledger.requests.get(request)
        if one is not None and one.slot is not None:
            for output in replayed.outputs:
                rows = output.rows if type(output) is results.Command else []
                for row in rows:
                    if row.slot == one.slot:
                        self._print(replayed, "row", pack(row))

    def _show_step(self, replayed: Step, step: int) -> None:
        one = replayed.event.input
        if isinstance(one, events.Report | events.StepFault) and one.step_id == step:
            self._print(replayed, "in ", pack(one))
        for output in replayed.outputs:
            if type(output) is results.Command and output.step_id == step:
                self._print(replayed, "out", pack(output))

    def _print(self, replayed: Step, way: str, packed: list[Any], *, name: str | None = None) -> None:
        self.num_shown += 1
        known = "" if name is None else f"  ({name})"
        self.console.print(f"{replayed.index:8} {way} {packed}{known}", markup=False, highlight=False)


def _print_difference(console: Console, found: Difference) -> None:
    console.print(
        f"input {found.index} is answered otherwise: {pack(found.event.input)}", markup=False, highlight=False
    )
    for index, name, moved in found.before:
        ways = "; ".join(
            f"{machine} " + ", ".join(f"{way} x{count}" if count > 1 else way for way, count in counts.items())
            for machine, counts in moved.items()
        )
        console.print(f"{index:8} {name}: {ways or 'nothing moved'}", markup=False, highlight=False)
    if found.then is None:
        console.print("then: only the digest is known (`trace_outputs = full` keeps the outputs)", highlight=False)
    else:
        for one in found.then:
            console.print(f"then: {one}", markup=False, highlight=False)
    for one in found.now:
        console.print(f"now:  {one}", markup=False, highlight=False)
