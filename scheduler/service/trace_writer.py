"""Traces, written: every input of the core in order, each with a digest of what the core said to it.

Owns the files: a header, then events; with a folder they rotate, and each later file begins with a snapshot of the
core. `loop.py` hands it every turn after the worker has its next command. Reading and replaying are `trace/`'s.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ...statemachine.errors import Refused
from ..core import events
from ..core.handle import Core
from ..core.policies import Policy
from ..core.policies.auto import Auto
from ..core.policies.confidence import Confidence
from ..core.policies.fixed import Fixed
from ..core.policies.schedule import MaxConcurrency, Schedule
from ..core.results import Output
from ..wire.records import MAX_RECORD_BYTES, RecordWriter
from .config import Settings
from .packing import Packing, pack
from .snapshots import freeze

MAGIC = b"DSPTRC\x00\x01"
SCHEMA = 1
LEAST_KEY = 16  # bytes
SUFFIX = ".dsptrace"
HEADER, EVENT, SNAPSHOT, FAILURE = "header", "event", "snapshot", "failure"
BUILT_IN: Mapping[str, type[Any]] = {
    made.__name__: made for made in (Auto, Confidence, Fixed, MaxConcurrency, Schedule)
}
_PACKAGE = __name__.split(".", maxsplit=1)[0]
_encoder = msgspec.msgpack.Encoder()


def digest(outputs: Sequence[Any]) -> bytes:
    """64 bits of the packed outputs of one input."""
    return hashlib.blake2b(_encoder.encode(outputs), digest_size=8).digest()


def described(policy: Policy, text: str | None) -> dict[str, Any]:
    """How to make the policy again: its text where there is one, and its values where it is a built-in one."""
    kind = type(policy).__name__
    values = attrs.asdict(policy) if BUILT_IN.get(kind) is type(policy) else None  # type: ignore[arg-type]
    return {"name": policy.name, "version": policy.version, "text": text, "kind": kind, "values": values}


class TraceWriter:
    """Records `core`. `path` is a file, or a folder (`trace = "FOLDER/"` or one that exists) of rotating files.

    Raises `Refused` (BAD_CONFIG) when nothing can be written there; a disk that fails later is an `OSError`.
    """

    def __init__(
        self,
        path: Path,
        core: Core,
        *,
        policy: dict[str, Any],
        full: bool = False,
        segment_bytes: int = 1 << 62,
        redact_key: bytes | None = None,
    ) -> None:
        self._core, self._full, self._segment_bytes, self._key = core, full, segment_bytes, redact_key
        self._folder = path if path.is_dir() else None
        self._path = path
        self._stem = time.strftime("%Y%m%dT%H%M%S") + f"-{os.getpid()}"
        self._redacting = None if redact_key is None else _before_any_request(redact_key)
        self._pack: Any = pack if self._redacting is None else self._redacting.pack
        self._knows_vocabulary = False
        self.num_segments = 0
        self._rotate_at = segment_bytes
        self._header: dict[str, Any] = {
            "schema": SCHEMA,
            "dsparkd": version(_PACKAGE),
            "limits": pack(core.limits),
            "policy": policy,
            "outputs": "full" if full else "digest",
            "redacted": redact_key is not None,
            "started_ns": time.monotonic_ns(),
            "started_wall_ns": time.time_ns(),
        }
        self._file = self._next_file()

    def know_vocabulary(self, vocab_size: int) -> None:
        """From here on token ids have names of their own when the trace is redacted; requests are heard after it."""
        if self._key is not None and not self._knows_vocabulary:
            self._knows_vocabulary = True
            self._redacting = redacting(vocab_size, self._key)
            self._pack = self._redacting.pack

    def took(self, event: events.Input, outputs: Sequence[Output], *, name: str | None = None) -> None:
        """An input and what the core said; `name` is a submit's request id, which the core does not know."""
        said = [self._pack(one) for one in outputs]
        note = None if self._key is not None else name
        self._append([EVENT, self._pack(event), digest(said), said if self._full else None, note])

    def failed(self, event: events.Input, error: BaseException) -> None:
        """The input that ended the engine."""
        self._append([FAILURE, self._pack(event), f"{type(error).__name__}: {error}"])

    def end_turn(self) -> None:
        """Hand everything to the system, and begin another file when this one is long enough."""
        self._file.flush()
        if self._folder is None or self._file.num_bytes < self._rotate_at:
            return
        snapshot = _encoder.encode([SNAPSHOT, freeze(self._core, redacting=self._redacting)])
        if len(snapshot) > MAX_RECORD_BYTES:  # a day with long queues; the next try finds a shorter one
            self._rotate_at = self._file.num_bytes + self._segment_bytes
            return
        self._file.close()
        self._file, self._rotate_at = self._next_file(), self._segment_bytes
        self._file.append(snapshot)

    def close(self) -> None:
        self._file.close()

    def _append(self, record: list[Any]) -> None:
        self._file.append(_encoder.encode(record))

    def _next_file(self) -> RecordWriter:
        self.num_segments += 1
        path = self._path
        if self._folder is not None:
            path = self._folder / f"{self._stem}-{self.num_segments:06}{SUFFIX}"
        try:
            file = RecordWriter(path, MAGIC)
        except OSError as error:
            raise Refused("BAD_CONFIG", f"trace = {str(path)!r}: expected a new file: {error}") from error
        file.append(_encoder.encode([HEADER, {**self._header, "segment": self.num_segments}]))
        return file


def open_trace(settings: Settings, core: Core, *, own_policy: bool) -> TraceWriter | None:
    """The writer that the settings ask for. `own_policy`: it was passed as an object, so no text makes it again."""
    if settings.trace is None:
        return None
    path = Path(settings.trace)
    try:
        if settings.trace.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        key = None if settings.trace_redact is None else Path(settings.trace_redact).read_bytes()
    except OSError as error:
        raise Refused("BAD_CONFIG", f"trace = {settings.trace!r}: {error}") from error
    if key is not None and len(key) < LEAST_KEY:
        found = f"a key of {len(key)} bytes"
        raise Refused("BAD_CONFIG", f"trace_redact = {settings.trace_redact!r}: {found}, expected {LEAST_KEY} or more")
    return TraceWriter(
        path,
        core,
        policy=described(core.policy, None if own_policy else settings.policy),
        full=settings.trace_outputs == "full",
        segment_bytes=settings.trace_segment_mb << 20,
        redact_key=key,
    )


def redacting(vocab_size: int, key: bytes) -> Packing:
    """Ids outside the vocabulary (a client may stop at any) stay: no text holds them."""
    tokens = permutation(vocab_size, key)
    return Packing(lambda one: tokens[one] if 0 <= one < vocab_size else one, lambda text: _hidden(text, key))


def _before_any_request(key: bytes) -> Packing:
    """Before the vocabulary is known a request can only be refused, whatever its tokens are."""
    return Packing(lambda one: 0, lambda text: _hidden(text, key))


def _hidden(text: str, key: bytes) -> str:
    """Equal texts stay equal, and none stays none."""
    return text and hashlib.blake2b(text.encode(), key=key[:64], digest_size=16).hexdigest()


def permutation(vocab_size: int, key: bytes) -> list[int]:
    """Another token id for each: the order of keyed hashes. Without the key nobody can tell which is which."""

    def rank(token_id: int) -> bytes:
        return hashlib.blake2b(token_id.to_bytes(8, "little"), key=key[:64], digest_size=16).digest()

    tokens = [0] * vocab_size
    for place, token_id in enumerate(sorted(range(vocab_size), key=rank)):
        tokens[token_id] = place
    return tokens
