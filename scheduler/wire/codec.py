"""Frames of the protocol: `DSPK`, one version byte, then one tagged msgpack message.

Owns the bytes; never a socket and never what a message means. Both sides of both channels call it. Whatever bytes
arrive, `decode` returns a message or raises `PeerError` that says what was wrong with them.
"""

from typing import Any, Generic, TypeVar

import msgspec

from ...statemachine.errors import LocalError, PeerError
from .messages import PROTOCOL_VERSION, FromWorker, Message, ToClient, ToScheduler, ToWorker

MAGIC = b"DSPK"
HEADER = MAGIC + bytes([PROTOCOL_VERSION])
HEADER_BYTES = len(HEADER)
MAX_FRAME_BYTES = 16 * 1024 * 1024  # a million token ids take five bytes each at most

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """Return the frame of `message`; what msgpack cannot carry (an integer past 64 bits) is a `LocalError`."""
    try:
        payload = _encoder.encode(message)
    except (OverflowError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise LocalError(f"{type(message).__name__} cannot be encoded: {error}") from error
    if len(payload) + HEADER_BYTES > MAX_FRAME_BYTES:
        raise LocalError(f"{type(message).__name__} takes {len(payload)} bytes, more than {MAX_FRAME_BYTES}")
    return HEADER + payload


class Decoder(Generic[T]):
    """Decodes frames to one union of messages. `what` names the channel in errors."""

    def __init__(self, union: Any, *, what: str) -> None:
        self._decode = msgspec.msgpack.Decoder(union).decode
        self._what = what

    def decode(self, frame: bytes) -> T:
        """Return the message in `frame`, or raise `PeerError`: size, magic, version, tag or field path."""
        if frame[:HEADER_BYTES] != HEADER or len(frame) > MAX_FRAME_BYTES:
            raise PeerError(f"{self._what}: {_bad_header(frame)}")
        try:
            return self._decode(memoryview(frame)[HEADER_BYTES:])  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
            raise PeerError(f"{self._what}: {error}") from error
        except (RecursionError, OverflowError, MemoryError) as error:
            raise PeerError(f"{self._what}: {type(error).__name__} while decoding {len(frame)} bytes") from error


def _bad_header(frame: bytes) -> str:
    if len(frame) > MAX_FRAME_BYTES:
        return f"a frame of {len(frame)} bytes, more than {MAX_FRAME_BYTES}"
    if frame[: len(MAGIC)] != MAGIC:
        return f"no magic {MAGIC!r} at the start of a frame of {len(frame)} bytes: {frame[:8]!r}"
    if len(frame) < HEADER_BYTES:
        return "the frame ends before its version"
    return f"protocol version {frame[len(MAGIC)]}, expected {PROTOCOL_VERSION}"


def for_worker() -> Decoder[ToWorker]:
    return Decoder(ToWorker, what="message to a worker")


def from_worker() -> Decoder[FromWorker]:
    return Decoder(FromWorker, what="message of a worker")


def from_client() -> Decoder[ToScheduler]:
    return Decoder(ToScheduler, what="message of a client")


def for_client() -> Decoder[ToClient]:
    return Decoder(ToClient, what="message to a client")
