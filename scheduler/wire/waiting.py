"""What waits for the engine's words: where they go, submits that were not answered, requests that are live.

Owns the records only; `conversation.py` decides about them.
"""

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
    """A submit that was not answered yet. `sink` is None once its stream was left, `again` when it was said twice."""

    sink: Sink | None
    frame: bytes
    again: bool = False
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
