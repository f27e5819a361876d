"""Records in a file: length, checksum, payload, one after another behind a magic word; append-only.

Owns the bytes, and what of a damaged file can still be told; never what a payload means. Traces and journals are made
of it. A record is `length (u32) | crc32 of the payload (u32) | payload`, little-endian. Whatever bytes a file holds,
reading it takes no more memory than its longest record may have.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from io import BufferedIOBase, BufferedReader, BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

from ...statemachine.errors import Refused

HEAD = struct.Struct("<II")
_NOTHING = bytes(HEAD.size)
MAX_RECORD_BYTES = 64 * 1024 * 1024


class RecordWriter:
    """Appends records to a new file; `path` must not exist. Errors of the disk are `OSError`s of the caller's."""

    def __init__(self, path: Path, magic: bytes) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file: BufferedWriter = os.fdopen(os.open(path, flags, 0o600), "wb")  # prompts, and who may resume them
        self._file.write(magic)
        self.num_bytes = len(magic)
        self.num_synced_bytes = 0

    def append(self, payload: bytes) -> None:
        """Of one byte or more: a head of zeros is no record, but room that nobody wrote to."""
        if not payload:
            raise ValueError(f"{self.path}: an empty record")
        if len(payload) > MAX_RECORD_BYTES:
            raise ValueError(f"{self.path}: a record of {len(payload)} bytes, expected at most {MAX_RECORD_BYTES}")
        self._file.write(HEAD.pack(len(payload), zlib.crc32(payload)))
        self._file.write(payload)
        self.num_bytes += HEAD.size + len(payload)

    def flush(self) -> None:
        """Hand what was appended to the system: it outlives this process from here on."""
        self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has what was flushed: it outlives the machine from here on."""
        os.fsync(self._file.fileno())
        self.num_synced_bytes = self.num_bytes

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_records(path: Path, magic: bytes) -> Iterator[bytes]:
    """Yield payloads in order. A torn tail (the writer was killed) ends the file quietly; everything else that is wrong
    raises `Refused` (BAD_FILE) with its position in bytes."""
    try:
        with path.open("rb") as file:
            found = file.read(len(magic))
            if found != magic:
                raise Refused("BAD_FILE", f"{path}: begins with {found!r}, expected {magic!r}")
            yield from _records(path, file)
    except OSError as error:
        raise Refused("BAD_FILE", f"{path}: cannot be read: {error}") from error


def _records(path: Path, file: BufferedReader | BufferedIOBase) -> Iterator[bytes]:
    at = file.tell()
    while len(head := file.read(HEAD.size)) == HEAD.size:
        length, checksum = HEAD.unpack(head)
        if length > MAX_RECORD_BYTES:
            message = f"{path} at byte {at}: a record of {length} bytes, expected at most {MAX_RECORD_BYTES}"
            raise Refused("BAD_FILE", message)
        if head == _NOTHING:
            if not _is_zero(file):
                raise Refused("BAD_FILE", f"{path} at byte {at}: zeros where a record should begin")
            return  # room that a file system gave and a power cut left empty
        payload = file.read(length)
        if len(payload) < length:
            if _begins_with_whole(payload, checksum):
                raise Refused("BAD_FILE", f"{path} at byte {at}: a record of {length} bytes is shorter than it says")
            return
        if zlib.crc32(payload) != checksum:
            if not file.read(1):
                return  # the last record, half written
            raise Refused("BAD_FILE", f"{path} at byte {at}: the checksum of a record of {length} bytes is wrong")
        yield payload
        at += HEAD.size + length


def _is_zero(file: BufferedReader | BufferedIOBase) -> bool:
    """Whether nothing but zeros follows to the end. No record is empty, so nothing is lost by reading on."""
    while block := file.read(1 << 16):
        if block.strip(b"\0"):
            return False
    return True


def _begins_with_whole(rest: bytes, checksum: int) -> bool:
    """Whether a record is whole before the file's end, and another one behind it: its length is damaged then, not its
    tail torn."""
    so_far = 0
    for at in range(len(rest)):
        so_far = zlib.crc32(rest[at : at + 1], so_far)
        if so_far == checksum and _is_whole(rest[at + 1 :]):
            return True
    return False


def _is_whole(rest: bytes) -> bool:
    if len(rest) < HEAD.size:
        return False
    length, checksum = HEAD.unpack_from(rest)
    payload = rest[HEAD.size : HEAD.size + length]
    return bool(len(payload) == length and zlib.crc32(payload) == checksum)
