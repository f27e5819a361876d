"""Traces, read: headers, events and snapshots out of files that anybody may have damaged.

Owns the judgement of what stands in a file, nothing of what it means. `replay.py` and the commands read through it.
"""

import re
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

MOST = 1 << 16  # slots, and positions of a block: a file of two numbers must not become a memory of them
_RUN = re.compile(r"(.+)-\d{6}")


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
    """A trace's files in order: the file itself, all of a folder, or those of one run there, `FOLDER/RUN`. Raises
    `Refused` (BAD_FILE) for a folder of none, or of several runs."""
    if not path.is_dir():
        known = path.exists() or not path.parent.is_dir()
        return [path] if known else [one for one in sorted(path.parent.iterdir()) if _run(one) == path.name] or [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise Refused("BAD_FILE", f"{path}: no *{SUFFIX} in it")
    runs = sorted({_run(one) for one in found})
    if len(runs) > 1:
        named = ", ".join(str(path / run) for run in runs[:8])
        raise Refused("BAD_FILE", f"{path}: holds {len(runs)} runs, expected the name of one: {named}")
    return found


def is_trace(path: Path) -> bool:
    """A file of a trace, or a folder or run of them. Raises `Refused` (BAD_FILE) for what cannot be read."""
    if path.is_dir():
        return True
    try:
        with files_of(path)[0].open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise Refused("BAD_FILE", f"{path}: cannot be read: {error}") from error


def _run(file: Path) -> str:
    """The files of one run have one name and a number behind it."""
    numbered = _RUN.fullmatch(file.stem) if file.suffix == SUFFIX else None
    return file.name if numbered is None else numbered[1]


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
        if name is not None and packed[0] != "Submit":
            raise ValueError(f"a {packed[0]} with a request id")
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
    if limits.num_slots > MOST:
        raise ValueError(f"num_slots = {limits.num_slots}: expected at most {MOST}")
    return Header(limits=limits, policy=policy, **plain)


def _input(packed: Any) -> Any:
    made = unpack(packed)
    if type(made) not in _INPUTS:
        raise ValueError(f"a {type(made).__name__} is no input of a core")
    if type(made) is events.WorkerReady and made.block_len > MOST:
        raise ValueError(f"block_len = {made.block_len}: expected at most {MOST}")
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
