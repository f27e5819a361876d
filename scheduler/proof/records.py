"""What went into a core, as a file of JSON lines that replays, and as Python that can be pasted.

Owns the text forms and the replay. The first line holds the limits, each further one an input by its class name.
Explorers and drawn tests write them when something breaks; outputs are not kept, a replay makes them again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_origin

import attrs

from ...statemachine import request
from ...statemachine.errors import LocalError, Refused
from ..core import events, results
from ..core.handle import Core
from ..core.invariants import check
from ..core.limits import Limits
from ..core.policies import Policy
from ..core.policies.told import Told
from ..core.tables import TABLES, Machine, Tables


@attrs.frozen
class Wants:
    """The draft lengths that the policy wants from here on (see `Told`)."""

    lens: tuple[int, ...]


@attrs.frozen
class Misstep:
    """Our own bug: an event that is illegal in the state of the request."""

    request: int


Record = events.Input | Wants | Misstep

CLASSES = {
    one.__name__: one
    for one in (*vars(events).values(), Wants, Misstep, Limits)
    if isinstance(one, type) and attrs.has(one)
}


def apply(core: Core, record: Record) -> list[results.Output]:
    """Do to `core` what the record says and return what it says to that."""
    if isinstance(record, Wants):
        if not isinstance(core.policy, Told):
            raise LocalError(f"policy {core.policy.name} cannot be told what to want")
        core.policy.wants = record.lens
        return []
    if isinstance(record, Misstep):
        one = core.ledger.requests[record.request]
        queued = one.state is request.State.QUEUED
        core.send(Machine.REQUEST, one, request.Event.SEEDED if queued else request.Event.ADMIT)
        return core.handle(events.Cancel(-1, -1))  # an input that does nothing itself
    return core.handle(record)


def replay(
    path: Path, *, tables: Tables = TABLES, policy: Policy | None = None
) -> Iterator[tuple[Record, list[results.Output]]]:
    """Run a file through a fresh core and yield each input with its outputs; the ledger is checked after each.

    Without a `policy` the draft lengths are those that the file tells.
    """
    limits, records = read(path)
    core = Core(limits, policy or Told(), tables=tables)
    core.start()
    for record in records:
        outputs = apply(core, record)
        check(core.ledger)
        yield record, outputs


def write(path: Path, limits: Limits, records: Iterable[Record]) -> None:
    lines = [json.dumps(_encode(one)) for one in (limits, *records)]
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> tuple[Limits, list[Any]]:
    """Raises `Refused` naming the line that does not read."""
    read_lines = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            read_lines.append(_decode(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise Refused("BAD_TRACE", f"{path}:{number}: {type(error).__name__}: {error}") from error
    if not read_lines or not isinstance(read_lines[0], Limits):
        raise Refused("BAD_TRACE", f"{path}: expected the limits in the first line")
    return read_lines[0], read_lines[1:]


def as_python(limits: Limits, records: Sequence[Record]) -> str:
    """The same as a script: paste it and look at `core.ledger`."""
    given = {one.name: getattr(limits, one.name) for one in attrs.fields(Limits)}
    lines = [
        "from dsparkd.scheduler.core.events import *",
        "from dsparkd.scheduler.core.handle import Core",
        "from dsparkd.scheduler.core.limits import Limits",
        "from dsparkd.scheduler.core.policies.told import Told",
        "from dsparkd.scheduler.proof.records import Misstep, Wants, apply",
        "",
        f"core = Core(Limits({', '.join(f'{name}={value!r}' for name, value in given.items())}), Told())",
        "core.start()",
        *(f"apply(core, {record!r})" for record in records),
    ]
    return "\n".join(lines) + "\n"


def _encode(value: Any) -> Any:
    if attrs.has(type(value)):
        fields = {one.name: _encode(getattr(value, one.name)) for one in attrs.fields(type(value))}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    if isinstance(value, list | tuple):
        return [_encode(one) for one in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "set" in value:
        return frozenset(value["set"])
    made_of = CLASSES[value["kind"]]
    fields = {}
    for one in attrs.fields(made_of):
        if one.name not in value and one.default is not attrs.NOTHING:
            continue  # a file from before there was such a field
        decoded = _decode(value[one.name])
        fields[one.name] = tuple(decoded) if get_origin(one.type) is tuple else decoded
    return made_of(**fields)
