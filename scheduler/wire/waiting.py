"""What waits for the engine's words: where they go, submits that were not answered, requests that are live, questions;
and how long a silent engine is waited for.

Owns the records only; `conversation.py` decides about them, the clients tell the time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

import attrs

from ...statemachine.errors import EngineError
from . import codec, messages
from .result import StreamMessage

Reply = messages.Stats | messages.Health | messages.CancelAck
_QUESTIONS: dict[Any, messages.ToScheduler] = {
    messages.Stats: messages.GetStats(),
    messages.Health: messages.GetHealth(),
}


class Sink(Protocol):
    """Where one stream's messages go: a thread's or a loop's queue."""

    def put(self, item: "StreamMessage | EngineError") -> None: ...


class ReplySink(Protocol):
    """Where one answer goes."""

    def put(self, item: "Reply | EngineError") -> None: ...


@attrs.define(eq=False)
class Submitted:
    """A submit that was not answered yet. `sink` is None once its stream was left, `again` when it was said twice;
    `alone`: no other stream of its id was there, so that an id that is taken when it is said again is its own;
    `resume_from`: a resume has taken it over, for a stream that begins there."""

    sink: Sink | None
    frame: bytes
    again: bool = False
    alone: bool = True
    quiet: bool = False  # nothing was heard since the last nudge
    resume_from: int | None = None


@attrs.define(eq=False)
class Live:
    """An accepted request. `next_index` is how much of its output the stream has; `stalled`, that output came from
    beyond it and what lies between was asked for."""

    sink: Sink
    next_index: int
    accepted: bool = True  # the stream has heard so
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


class Questions:
    """Cancels, stats and health that wait for an answer, each kind in its order. A cancel that nobody waits for (None),
    of a stream that was left, is said again all the same until it is answered."""

    def __init__(self) -> None:
        self._cancels: dict[str, deque[ReplySink | None]] = {}
        self._asked: dict[type, deque[ReplySink | None]] = {kind: deque() for kind in _QUESTIONS}

    def cancel(self, request_id: str, sink: ReplySink | None) -> None:
        self._cancels.setdefault(request_id, deque()).append(sink)

    def ask(self, kind: type[messages.Stats] | type[messages.Health], sink: ReplySink) -> None:
        self._asked[kind].append(sink)

    def answer(self, message: Reply) -> None:
        """It is for who asked first, if anybody waits for it."""
        if isinstance(message, messages.CancelAck):
            sinks = self._cancels.get(message.request_id, deque())
        else:
            sinks = self._asked[type(message)]
        sink = sinks.popleft() if sinks else None
        if sink is not None:
            sink.put(message)
        if isinstance(message, messages.CancelAck) and not sinks:
            self._cancels.pop(message.request_id, None)

    def sinks(self) -> Iterator[ReplySink]:
        """Of those who wait."""
        everyone = [*self._cancels.values(), *self._asked.values()]
        return (sink for sinks in everyone for sink in sinks if sink is not None)

    def forget(self, sink: ReplySink) -> None:
        """Who asked waits no longer; the answer, if it comes, is as good for the next one."""
        for kind, asked in self._asked.items():
            self._asked[kind] = deque(one for one in asked if one is not sink)
        cancels = {
            request_id: deque(one for one in sinks if one is not sink) for request_id, sinks in self._cancels.items()
        }
        self._cancels = {request_id: sinks for request_id, sinks in cancels.items() if sinks}

    def clear(self) -> None:
        self._cancels.clear()
        for sinks in self._asked.values():
            sinks.clear()

    def drop_left(self, request_id: str) -> bool:
        """Forget the cancels of this id that nobody waits for. Return whether there were any."""
        sinks = self._cancels.get(request_id, deque())
        staying: deque[ReplySink | None] = deque(sink for sink in sinks if sink is not None)
        if len(staying) == len(sinks):
            return False
        self._cancels[request_id] = staying
        return True

    def drop_all_left(self) -> list[str]:
        return [request_id for request_id in self._cancels if self.drop_left(request_id)]

    def frames(self, is_used: Callable[[str], bool]) -> list[bytes]:
        """All of them. is_used: whether a stream that was not left has this id."""
        frames: list[bytes] = []
        for request_id, sinks in self._cancels.items():
            used = is_used(request_id)
            num_asked = sum(not used or sink is not None for sink in sinks)
            frames += [codec.encode(messages.CancelRequest(request_id=request_id))] * num_asked
        for kind, asked in self._asked.items():
            frames += [codec.encode(_QUESTIONS[kind])] * len(asked)
        return frames


class Patience:
    """When a silent engine is asked again (a long queue is silent too) and when it is given up. A silence begins when
    something was asked or heard, whichever came last: what came before the question proves nothing."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._heard = self._nudged = now

    def heard(self, now: float) -> None:
        self._heard = now

    def judge(self, now: float, asked: Callable[[], Iterable[float]]) -> Literal["wait", "ask", "give up"]:
        """asked: the times at which what is unanswered, or still streams, was asked; looked at now and then only."""
        if now - self._nudged <= self._timeout_s / 4 and now - self._heard <= self._timeout_s:
            return "wait"
        oldest = min(asked(), default=now)
        if now - max(self._heard, oldest) > self._timeout_s:
            return "give up"
        if now - max(self._nudged, oldest) <= self._timeout_s / 4:
            return "wait"
        self._nudged = now
        return "ask"


def has_failed(sink: Any) -> bool:
    """Whether what a stream has not read ends with an error, so that there is nothing to cancel. Empties its queue."""
    while not sink.empty():
        if isinstance(sink.get_nowait(), EngineError):
            return True
    return False
