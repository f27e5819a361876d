"""Part of a trace as a trace of its own: a header, a snapshot of what came before, and the inputs.

Owns the cut. An incident becomes a small file that replays; `tests/traces/` is made of them.
"""

from pathlib import Path

import msgspec

from ...statemachine.errors import Refused
from ..core.handle import Core
from ..service.packing import pack
from ..service.snapshots import freeze
from ..service.trace_writer import EVENT, FAILURE, HEADER, MAGIC, SNAPSHOT
from ..wire.records import RecordWriter, read_records
from .reading import Event, Failure, files_of, read_trace
from .replay import replay

_encode = msgspec.msgpack.Encoder().encode


def cut(path: Path, output: Path, *, begin: int = 0, until: int | None = None) -> int:
    """Write the inputs `begin`, ... up to `until` (left out) of a trace to `output`, which must not exist; return how
    many. What ended the engine is kept behind its last input. Raises `Refused` when there are none, or `output` cannot
    be written, and leaves no file then."""
    try:
        file = RecordWriter(output, MAGIC)
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {output}: expected a new file: {error}") from error
    count = 0
    try:
        with file:
            count = _write(path, file, begin=begin, until=until)
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {output}: cannot be written: {error}") from error
    finally:
        if count == 0:
            output.unlink()
    if count == 0:
        raise Refused("BAD_CONFIG", f"{path}: no input from {begin} on{'' if until is None else f' before {until}'}")
    return count


def _write(path: Path, file: RecordWriter, *, begin: int, until: int | None) -> int:
    if next(read_trace(path), None) is None:
        raise Refused("BAD_FILE", f"{path}: begins without a header")
    _, header = msgspec.msgpack.decode(next(read_records(files_of(path)[0], MAGIC)))
    core: Core | None = None
    for step in replay(path, until=begin):
        core = step.core
    file.append(_encode([HEADER, {**header, "segment": header["segment"] if core is None else 2}]))
    if core is not None:
        file.append(_encode([SNAPSHOT, freeze(core)]))
    count = index = 0
    for entry in read_trace(path):
        if isinstance(entry, Failure) and count and (until is None or index < until):
            file.append(_encode([FAILURE, pack(entry.input), entry.error]))
        if not isinstance(entry, Event):
            continue
        if begin <= index and (until is None or index < until):
            file.append(_encode([EVENT, pack(entry.input), entry.digest, entry.outputs, entry.name]))
            count += 1
        index += 1
    return count
