"""Replays: a trace's inputs through a fresh core, which must say to each what it said then.

Owns making the core again and the comparison. Nothing is measured or drawn anew: measured times and drawn seeds are
among the inputs. `cli/replay.py` shows what comes out.
"""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ...statemachine.errors import EngineError, Refused
from ..core.handle import Core, transitions
from ..core.invariants import check
from ..core.policies import Policy
from ..core.results import Output
from ..core.tables import Machine
from ..service.packing import pack
from ..service.policy_settings import policy_from_text
from ..service.snapshots import freeze, thaw
from ..service.trace_writer import BUILT_IN, digest
from .reading import Event, Failure, Header, Snapshot, read_trace

_encode = msgspec.msgpack.Encoder().encode
NUM_SHOWN = 12  # events before a difference that are shown


@attrs.frozen
class Step:
    """One replayed input: its place in the trace, what the core said, and whether that is what it said then."""

    index: int
    event: Event
    outputs: list[Output]
    same: bool
    core: Core


def policy_of(header: Header, text: str | None = None) -> Policy:
    """The policy that the trace was made with, or the one of `text`. Raises `Refused` when it cannot be made, or is
    another version of it."""
    told = header.policy
    try:
        if text is not None:
            return policy_from_text(text)
        if told["kind"] in BUILT_IN and told["values"] is not None:
            made: Policy = _built_in(BUILT_IN[told["kind"]], told["values"])
        elif told["text"] is not None:
            made = policy_from_text(told["text"])
        else:
            raise Refused("BAD_FILE", f"the trace's policy {told['name']} was an object of its service's: name one")
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise Refused("BAD_FILE", f"policy = {told!r}: {type(error).__name__}: {error}") from error
    if (made.name, made.version) != (told["name"], told["version"]):
        found, expected = f"{made.name} version {made.version}", f"{told['name']} version {told['version']}"
        raise Refused("BAD_FILE", f"the trace was made with the policy {expected}, here is {found}")
    return made


def _built_in(made: type[Any], values: dict[str, Any]) -> Any:
    fields = {field.name: field for field in attrs.fields(made)}
    return made(**{name: msgspec.convert(value, fields[name].type) for name, value in values.items()})


def replay(path: Path, *, policy: str | None = None, until: int | None = None) -> Iterator[Step]:
    """Yield each input of the trace (the first `until` of them) with what a fresh core says to it.

    A folder replays from its first file; a later file of it alone replays from its snapshot, and a snapshot in between
    must equal the core. Raises `Refused` (BAD_FILE) for what cannot be read, made or understood.
    """
    inner = _replay(path, policy=policy, until=until)
    while True:
        try:
            step = next(inner, None)
        except EngineError:
            raise
        except Exception as error:  # a file that lies breaks the core that believes it, in whatever way
            raise Refused("BAD_FILE", f"{path}: does not replay: {type(error).__name__}: {error}") from error
        if step is None:
            return
        yield step


def _replay(path: Path, *, policy: str | None, until: int | None) -> Iterator[Step]:
    core: Core | None = None
    index = 0
    for entry in read_trace(path):
        if until is not None and index >= until:
            return
        if isinstance(entry, Header):
            if core is None:
                core = Core(entry.limits, policy_of(entry, policy))
                core.start()
                thawed = entry.segment == 1
        elif core is None:
            raise Refused("BAD_FILE", f"{path}: begins without a header")
        elif isinstance(entry, Snapshot):
            if not thawed:
                thaw(core, entry.frozen)
                thawed = True
            elif policy is None and _encode(freeze(core)) != _encode(entry.frozen):
                raise Refused("BAD_FILE", f"{path}: the snapshot before input {index} is not what was replayed")
        elif isinstance(entry, Failure):
            _fail_again(core, entry)
        else:
            outputs = core.handle(entry.input)
            yield Step(index, entry, outputs, digest([pack(one) for one in outputs]) == entry.digest, core)
            index += 1


def _fail_again(core: Core, entry: Failure) -> None:
    """What ended the engine ends its replay as well, by the same words."""
    now = "it goes on"
    try:
        core.handle(entry.input)
    except Exception as error:
        now = f"{type(error).__name__}: {error}"
    if now != entry.error:
        raise Refused("DIFFERENT", f"{type(entry.input).__name__} ended the engine ({entry.error}), now {now}")


@attrs.frozen
class Difference:
    """The first input to which the core says something else than it did, and what led there."""

    index: int
    event: Event
    then: list[Any] | None  # packed, where the trace has them
    now: list[Any]
    before: list[tuple[int, str, dict[str, dict[str, int]]]]  # (place, input, transitions by machine)


def first_difference(
    path: Path, *, policy: str | None = None, until: int | None = None, on_step: Callable[[Step], Any] | None = None
) -> tuple[int, Difference | None]:
    """Replay and compare; return how many inputs were replayed and the first difference. Ledgers are checked."""
    count = 0
    for step in replay(path, policy=policy, until=until):
        count = step.index + 1
        if on_step is not None:
            on_step(step)
        if not step.same:
            now = [pack(one) for one in step.outputs]
            told = _led_there(path, policy=policy, until=count)
            return count, Difference(step.index, step.event, step.event.outputs, now, told)
    return count, None


def _led_there(path: Path, *, policy: str | None, until: int) -> list[tuple[int, str, dict[str, dict[str, int]]]]:
    """A second replay, watched: what the last inputs moved."""
    shown: deque[tuple[int, str, dict[str, dict[str, int]]]] = deque(maxlen=NUM_SHOWN)
    before: list[list[int]] | None = None
    for step in replay(path, policy=policy, until=until):
        fired = [list(counts) for counts in step.core.fired]
        if step.index >= until - NUM_SHOWN:
            shown.append((step.index, type(step.event.input).__name__, _moved(step.core, before, fired)))
        before = fired
    return list(shown)


def _moved(core: Core, before: list[list[int]] | None, after: list[list[int]]) -> dict[str, dict[str, int]]:
    moved = {}
    for machine in Machine:
        old = before[machine] if before is not None else [0] * len(after[machine])
        counts = transitions(core.tables[machine], [new - was for new, was in zip(after[machine], old, strict=True)])
        if counts:
            moved[machine.name] = counts
    return moved


def checked(path: Path) -> int:
    """Replay with every invariant of the ledger checked after each input; return how many there were. Raises
    `Refused` for the first difference."""
    count, difference = first_difference(path, on_step=lambda step: check(step.core.ledger))
    if difference is not None:
        raise Refused(
            "DIFFERENT", f"{path}: input {difference.index} ({difference.event.input!r}) is answered otherwise"
        )
    return count
