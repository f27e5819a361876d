"""The journal: what clients were promised, on disk before they hear of it, so that another scheduler can go on.

Owns the folder: one file of facts at a time, begun anew with what is still owed when it has grown long. The facts of
one turn count together or not at all, so that a torn end never divides what belongs together. `promises.py`
knows what they mean; `loop.py` commits them before clients are told.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ...statemachine.errors import EngineError, Refused
from ..wire.records import MAX_RECORD_BYTES, RecordWriter, read_records
from .config import Settings
from .packing import CLASSES, pack
from .promises import ACCEPTED, Fact, Promises

log = structlog.get_logger()
MAGIC = b"DSPJRN\x00\x01"
SUFFIX = ".dspjournal"
_LOCK, _FRESH = "lock", ".new"
_FACTS_A_RECORD = 256  # of a turn that is longer than a record can be
_encoder = msgspec.msgpack.Encoder()


class JournalLost(EngineError):
    """The disk takes no more facts: nothing may be promised any longer, so the scheduler ends."""


class Journal:
    """Facts of `promises` in `folder`, which it holds alone as long as it lives.

    `sync`: `accept` waits for the disk whenever a request is accepted, `interval` at most every `interval_s`, `never`
    leaves that to the system. Either way facts are the system's before a client hears of them: a killed process loses
    nothing. Raises `Refused` for a folder that another scheduler holds, or a file that is damaged before its end.
    """

    def __init__(self, folder: Path, promises: Promises, *, sync: str, interval_s: float, segment_bytes: int) -> None:
        self.promises = promises
        self._folder, self._sync, self._segment_bytes = folder, sync, segment_bytes
        self._interval_ns = int(interval_s * 1e9)
        self._due: list[Fact] = []
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refused("BAD_CONFIG", f"journal = {str(folder)!r}: expected a folder to write to: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            older = files(folder)
            for path in older[-1:]:  # each begins with all that was owed
                fold(path, promises)
            self._number = 1 + (number_of(older[-1]) if older else 0)
            self._begin()
        except BlockingIOError:
            os.close(self._lock)
            raise Refused("BAD_CONFIG", f"journal = {str(folder)!r}: another scheduler holds it") from None
        except OSError as error:
            os.close(self._lock)
            raise Refused("BAD_CONFIG", f"journal = {str(folder)!r}: cannot be written: {error}") from error
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def path(self) -> Path:
        """The present file."""
        return self._file.path

    def add(self, fact: Fact) -> None:
        """A fact of this turn; it counts at once, and is written by `commit`."""
        self.promises.add(fact)
        self._due.append(fact)

    def commit(self) -> None:
        """Write the facts of the turn: from here on clients may hear of them. Raises `JournalLost`."""
        if not self._due:
            return
        facts, self._due = self._due, []
        try:
            for part in _in_records(facts):
                self._file.append(part)
            self._file.flush()
            if self._must_sync(facts):
                self._synced_ns = time.monotonic_ns()
                self._file.sync()
            if self._file.num_bytes > self._rotate_at:
                self._file.close()
                self._begin()
        except OSError as error:
            raise JournalLost(f"journal {self._file.path}: {error}") from error

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)

    def _must_sync(self, facts: Sequence[Fact]) -> bool:
        if self._sync == "accept":
            return any(fact[0] == ACCEPTED for fact in facts)
        return self._sync == "interval" and time.monotonic_ns() - self._synced_ns >= self._interval_ns

    def _begin(self) -> None:
        """A file with nothing but what is owed; it takes the older ones' place once it is whole and on the disk."""
        path = self._folder / f"journal-{self._number:08}{SUFFIX}"
        fresh = path.with_suffix(_FRESH)
        fresh.unlink(missing_ok=True)  # of a scheduler that was killed here
        file = RecordWriter(fresh, MAGIC)
        for part in _in_records(list(self.promises.facts())):
            file.append(part)
        file.flush()
        file.sync()
        fresh.rename(path)
        file.path = path
        _sync_folder(self._folder)
        for older in files(self._folder):
            if older != path:
                older.unlink()
        self._file, self._number = file, self._number + 1
        self._rotate_at = file.num_bytes + self._segment_bytes
        self._synced_ns = time.monotonic_ns()


def open_journal(settings: Settings, promises: Promises) -> Journal | None:
    """The journal that the settings ask for, with what it holds folded into `promises`."""
    if settings.journal is None:
        return None
    return Journal(
        Path(settings.journal),
        promises,
        sync=settings.journal_sync,
        interval_s=settings.journal_interval_s,
        segment_bytes=settings.journal_segment_mb << 20,
    )


def files(folder: Path) -> list[Path]:
    """The journal's files, oldest first; there are two where a scheduler was killed between them."""
    return sorted(folder.glob(f"journal-*{SUFFIX}"))


def number_of(path: Path) -> int:
    try:
        return int(path.stem.removeprefix("journal-"))
    except ValueError:
        raise Refused("BAD_FILE", f"{path}: expected a name like journal-00000001{SUFFIX}") from None


def fold(path: Path, promises: Promises) -> None:
    """Fold a file's facts into `promises`. A torn end is what its last turn did not get to: nobody heard of it.

    Raises `Refused` (BAD_FILE) with the place of everything else that is wrong.
    """
    decode = msgspec.msgpack.Decoder(tuple[bool, list[list[Any]]]).decode
    turn: list[Fact] = []
    for number, payload in enumerate(read_records(path, MAGIC), start=1):
        try:
            ends, facts = decode(payload)
            turn += facts
            if ends:
                for fact in turn:
                    promises.add(fact)
                turn.clear()
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Refused("BAD_FILE", f"{path}, record {number}: cannot be read: {error}") from error
        except Refused as refused:
            raise Refused("BAD_FILE", f"{path}, record {number}: {refused}") from refused


def _in_records(facts: list[Fact]) -> list[bytes]:
    """A turn as [whether it ends here, facts]: one record, if it can be."""
    facts = [[pack(part) if type(part).__name__ in CLASSES else part for part in fact] for fact in facts]
    whole = _encoder.encode((True, facts))
    if len(whole) <= MAX_RECORD_BYTES:
        return [whole]
    ends = range(_FACTS_A_RECORD, len(facts) + _FACTS_A_RECORD, _FACTS_A_RECORD)
    return [_encoder.encode((end >= len(facts), facts[end - _FACTS_A_RECORD : end])) for end in ends]


def _sync_folder(folder: Path) -> None:
    """A name is on the disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
