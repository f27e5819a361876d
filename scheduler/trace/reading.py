"""Traces, read: headers, events and snapshots out of files that anybody may have damaged.

Owns the judgement of what stands in a file, nothing of what it means. `replay.py` and the commands read through it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ...statemachine.errors import Refused
from ..core import events
from ..core.limits import Limits
from ..service.packing import unpack
from ..service.trace_writer import EVENT, FAILURE, HEADER, MAGIC, SCHEMA, SNAPSHOT, SUFFIX
from ..wire.records import read_records

_NOT_INPUTS = {"Limits"}


@attrs.frozen(kw_only=True)
class Header:
    """The first record of each file. `policy` says how to make the policy again (see `trace_writer.described`)."""

    limits: Limits
    policy: dict[str, Any]
    outputs: str
    redacted: bool
    segment: int
    started_ns: int
    started_wall_ns: int
    dsparkd: str


@attrs.frozen
class Event:
    """One input. `outputs` are packed, there when the trace was written in full; `name` is a submit's request id."""

    input: events.Input
    digest: bytes
    outputs: list[Any] | None
    name: str | None


@attrs.frozen
class Snapshot:
    """The core as it was when its file began."""

    frozen: Any


@attrs.frozen
class Failure:
    """The input that ended the engine, and how."""

    input: events.Input
    error: str


Entry = Header | Event | Snapshot | Failure


def files_of(path: Path) -> list[Path]:
    """A trace's files in order: the file itself, or all of a folder. Raises `Refused` (BAD_FILE) for an empty one."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise Refused("BAD_FILE", f"{path}: no *{SUFFIX} in it")
    return found


def read_trace(path: Path) -> Iterator[Entry]:
    """Yield what a trace holds, file after file. Raises `Refused` (BAD_FILE) naming file and record."""
    for file in files_of(path):
        for number, payload in enumerate(read_records(file, MAGIC)):
            try:
                entry = _entry(payload)
            except (msgspec.MsgspecError, TypeError, ValueError, KeyError, RecursionError) as error:
                raise Refused("BAD_FILE", f"{file} record {number}: {type(error).__name__}: {error}") from error
            except Refused as refused:
                raise Refused("BAD_FILE", f"{file} record {number}: {refused}") from refused
            if (number == 0) != isinstance(entry, Header):
                expected = "a header" if number == 0 else "an event"
                raise Refused("BAD_FILE", f"{file} record {number}: a {type(entry).__name__}, expected {expected}")
            yield entry


def _entry(payload: bytes) -> Entry:
    kind, *rest = msgspec.msgpack.decode(payload, type=list)
    if kind == HEADER:
        return _header(*rest)
    if kind == EVENT:
        packed, digest, outputs, name = rest
        return Event(_input(packed), msgspec.convert(digest, bytes), outputs, msgspec.convert(name, str | None))
    if kind == SNAPSHOT:
        return Snapshot(*rest)
    if kind == FAILURE:
        packed, error = rest
        return Failure(_input(packed), msgspec.convert(error, str))
    raise ValueError(f"a record of kind {kind!r}: expected {HEADER}, {EVENT}, {SNAPSHOT} or {FAILURE}")


def _header(values: Any) -> Header:
    if values["schema"] != SCHEMA:
        raise ValueError(f"schema {values['schema']!r}: expected {SCHEMA}")
    names = [field.name for field in attrs.fields(Header) if field.name not in ("limits", "policy")]
    plain = {name: msgspec.convert(values[name], _PLAIN_TYPES[name]) for name in names}
    policy = msgspec.convert(values["policy"], dict[str, Any])
    limits = unpack(values["limits"])
    if not isinstance(limits, Limits):
        raise ValueError(f"limits are a {type(limits).__name__}")
    return Header(limits=limits, policy=policy, **plain)


def _input(packed: Any) -> Any:
    made = unpack(packed)
    if type(made) not in _INPUTS:
        raise ValueError(f"a {type(made).__name__} is no input of a core")
    return made


_PLAIN_TYPES: dict[str, type[Any]] = {
    "outputs": str,
    "redacted": bool,
    "segment": int,
    "started_ns": int,
    "started_wall_ns": int,
    "dsparkd": str,
}
_INPUTS = frozenset(events.Input.__args__)
