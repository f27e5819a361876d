"""What waits for the engine's words: where they go, submits that were not answered, requests that are live.

Owns the records only; `conversation.py` decides about them.
"""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import attrs

from ...statemachine.errors import EngineError
from . import messages
from .result import StreamMessage

Reply = messages.Stats | messages.Health | messages.CancelAck


class Sink(Protocol):
    """Where one stream's messages go: a thread's or a loop's queue."""

    def put(self, item: "StreamMessage | EngineError") -> None: ...


class ReplySink(Protocol):
    """Where one answer goes."""

    def put(self, item: "Reply | EngineError") -> None: ...


@attrs.define(eq=False)
class Submitted:
    """A submit that was not answered yet. `sink` is None once its stream was left, `again` when it was said twice;
    `alone`: no other stream of its id was there, so that an id that is taken when it is said again is its own."""

    sink: Sink | None
    frame: bytes
    again: bool = False
    alone: bool = True
    quiet: bool = False  # nothing was heard since the last nudge


@attrs.define(eq=False)
class Live:
    """An accepted request. `next_index` is how much of its output the stream has; `num_echoes`, how many resumes are to
    be answered; `stalled`, that output came from beyond it and what lies between was asked for."""

    sink: Sink
    next_index: int
    accepted: bool = True  # the stream has heard so
    num_echoes: int = 0
    stalled: bool = False
    quiet: bool = False


class Newest:
    """The newest `most` names of those that were added, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        self.discard(name)
        self._names[name] = None
        if len(self._names) > self._most:
            del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        self._names.pop(name, None)


def put_next(sinks: deque[ReplySink | None] | deque[ReplySink] | None, message: Reply) -> None:
    """An answer is for who asked first, if anybody waits for it."""
    sink = sinks.popleft() if sinks else None
    if sink is not None:
        sink.put(message)


def drop_left(sinks: deque[ReplySink | None] | None) -> bool:
    """Forget the cancels that nobody waits for, of streams that were left. Return whether there were any."""
    staying = [sink for sink in sinks or () if sink is not None]
    if sinks is None or len(staying) == len(sinks):
        return False
    sinks.clear()
    sinks.extend(staying)
    return True
