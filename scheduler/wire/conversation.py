"""A client's side of the conversation as pure state: which message belongs to which request. Sans-IO.

Owns routing by request id, the folding of a stream into a `Result`, and when the engine counts as lost; never a socket,
thread or clock. `client.py` and `client_async.py` feed it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import msgspec

from ...statemachine.errors import EngineError, Refused
from . import codec, messages

_reader = codec.from_client()  # as the engine reads
StreamMessage = messages.Accepted | messages.Tokens | messages.Finished
Reply = messages.Stats | messages.Health | messages.CancelAck


class EngineLost(EngineError):
    """No engine answers at the address."""


class Sink(Protocol):
    """Where one stream's messages go: a thread's or a loop's queue."""

    def put(self, item: "StreamMessage | EngineError") -> None: ...


class ReplySink(Protocol):
    """Where one answer goes."""

    def put(self, item: "Reply | EngineError") -> None: ...


@attrs.frozen(kw_only=True)
class Result:
    """A finished request. `error` is set when `state` is FAILED; `text` is None for an engine without a tokenizer."""

    request_id: str
    token_ids: list[int]
    text: str | None
    finish_reason: str
    state: str
    prompt_len: int
    counts: messages.RequestCounts
    passes: list[messages.Pass]
    seed: int | None
    transitions: dict[str, int]
    error: str | None


class ResultBuilder:
    """Folds a stream's messages. Tokens and texts lie at their `index`, so a resumed stream may repeat some."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._texts: list[tuple[int, str]] = []
        self._passes: list[messages.Pass] = []
        self._seed: int | None = None
        self.result: Result | None = None

    def add(self, message: StreamMessage) -> None:
        if isinstance(message, messages.Accepted):
            self._seed = message.seed
        elif isinstance(message, messages.Tokens):
            self._token_ids[message.index :] = message.token_ids
            if message.text is not None:
                while self._texts and self._texts[-1][0] >= message.index:
                    self._texts.pop()
                self._texts.append((message.index, message.text))
            if message.verify is not None:
                self._passes.append(message.verify)
        else:
            self._finish(message)

    def whole(self) -> Result:
        """The result of a stream that was read to its end."""
        if self.result is None:
            raise EngineLost("the stream was left, or had failed, before its end")
        return self.result

    def _finish(self, end: messages.Finished) -> None:
        if end.text is not None:
            self._texts.append((end.output_len, end.text))
        self.result = Result(
            request_id=end.request_id,
            token_ids=self._token_ids,
            text="".join(text for _, text in self._texts) if self._texts else None,
            finish_reason=end.reason,
            state=end.state,
            prompt_len=end.prompt_len,
            counts=end.counts,
            passes=self._passes,
            seed=self._seed,
            transitions=end.transitions,
            error=(end.message or end.reason) if end.state == "FAILED" else None,
        )


class Conversation:
    """The routing state of one client.

    The first answer to each submit (Accepted or Refused) goes to the submits of that id in their order; what follows
    goes to the accepted one. So a duplicate id is refused to the second stream, and the first goes on. A stream that is
    left cancels its own request only, whoever bears the same id: while it is unanswered, that is when it is accepted.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.welcome: messages.Welcome | None = None
        self._greeting = False
        self._unanswered: dict[str, deque[Sink | None]] = {}  # None: left before it was answered
        self._live: dict[str, Sink] = {}
        self._cancels: dict[str, deque[ReplySink]] = {}
        self._asked: dict[type, deque[ReplySink]] = {messages.Stats: deque(), messages.Health: deque()}

    @property
    def num_open(self) -> int:
        """Streams and questions that wait for the engine."""
        return len(self._live) + sum(len(sinks) for sinks in self._waiting())

    def hello(self) -> messages.ClientHello:
        """The word that opens or reopens the conversation, as the same client when there was one."""
        return messages.ClientHello(resume_token=self.welcome.resume_token if self.welcome else None)

    def submit(self, request_id: str, sink: Sink) -> None:
        self._unanswered.setdefault(request_id, deque()).append(sink)

    def resume(self, request_id: str, sink: Sink) -> None:
        """The new stream takes the request over from an older one of this client, which ends."""
        older = self._live.get(request_id)
        self._live[request_id] = sink
        if older is not None:
            older.put(Refused("RESUMED", f"request {request_id} goes on in a newer stream of this client"))

    def leave(self, request_id: str, sink: Sink) -> messages.CancelRequest | None:
        """Forget a stream. Returns what to tell the engine, if its request is live."""
        if self._live.get(request_id) is sink:
            del self._live[request_id]
            return messages.CancelRequest(request_id=request_id)
        waiting = self._unanswered.get(request_id)
        if waiting is not None and sink in waiting:
            waiting[waiting.index(sink)] = None
        return None

    def cancel(self, request_id: str, sink: ReplySink) -> None:
        self._cancels.setdefault(request_id, deque()).append(sink)

    def ask(self, kind: type[messages.Stats] | type[messages.Health], sink: ReplySink) -> None:
        self._asked[kind].append(sink)

    def feed(self, message: messages.ToClient) -> messages.ClientHello | messages.CancelRequest | None:
        """Route one message; return the answer: a hello when the engine does not know us (any more), or a cancel."""
        if isinstance(message, messages.Tokens):
            self._put_live(message)
        elif isinstance(message, messages.Accepted):
            return self._accepted(message)
        elif isinstance(message, messages.Finished):
            self._put_live(message)
            self._live.pop(message.request_id, None)
        elif isinstance(message, messages.CancelAck):
            _put_next(self._cancels.get(message.request_id), message)
            if not self._cancels.get(message.request_id):
                self._cancels.pop(message.request_id, None)
        elif isinstance(message, messages.Refused):
            return self._refused(message)
        elif isinstance(message, messages.Welcome):
            self.welcome = message
            self._greeting = False
        else:
            _put_next(self._asked[type(message)], message)
        return None

    def fail_all(self, error: EngineError) -> None:
        """End every stream and question with `error`."""
        waiting: list[Any] = list(self._live.values())
        for sinks in self._waiting():
            waiting.extend(sink for sink in sinks if sink is not None)
            sinks.clear()
        self._live.clear()
        self._unanswered.clear()
        self._cancels.clear()
        for sink in waiting:
            sink.put(error)

    def lost(self, seconds: float) -> EngineLost:
        return EngineLost(f"no engine answered at {self.address} for {seconds:g} s")

    def _waiting(self) -> list[deque[Any]]:
        return [*self._unanswered.values(), *self._cancels.values(), *self._asked.values()]

    def _accepted(self, message: messages.Accepted) -> messages.CancelRequest | None:
        sink = self._answered(message.request_id)
        if sink is None:  # it was left in the meantime
            return messages.CancelRequest(request_id=message.request_id)
        self._live[message.request_id] = sink
        sink.put(message)
        return None

    def _refused(self, message: messages.Refused) -> messages.ClientHello | None:
        if message.code == "HELLO_FIRST":
            if self._greeting:  # answers to what was sent before the new hello
                return None
            self._greeting = True
            self.fail_all(EngineLost(f"the engine at {self.address} does not know this client any more"))
            return self.hello()
        if message.request_id is None:
            self.fail_all(Refused(message.code, f"{self.address}: {message.message}"))
            return None
        error = Refused(message.code, f"{self.address}: request {message.request_id}: {message.message}")
        if message.request_id in self._unanswered:
            sink = self._answered(message.request_id)
        else:
            sink = self._live.pop(message.request_id, None)
        if sink is not None:
            sink.put(error)
        return None

    def _answered(self, request_id: str) -> Sink | None:
        """Return whose turn it is among the submits of this id; None when that stream was left."""
        sinks = self._unanswered.get(request_id)
        if not sinks:
            return None
        sink = sinks.popleft()
        if not sinks:
            del self._unanswered[request_id]
        return sink

    def _put_live(self, message: messages.Tokens | messages.Finished) -> None:
        sink = self._live.get(message.request_id)
        if sink is not None:  # none: a stream that was left
            sink.put(message)


def submit_frame(address: str, prompt: str | Sequence[int], *, request_id: str, options: dict[str, Any]) -> bytes:
    """Return the frame of a Submit; what cannot be said is refused here, what may not be, by the engine."""
    try:
        raw = msgspec.Raw(msgspec.msgpack.encode(options))
        if isinstance(prompt, str):
            made = messages.Submit(request_id=request_id, prompt=prompt, options=raw)
        else:
            made = messages.Submit(request_id=request_id, prompt_token_ids=list(prompt), options=raw)
    except (TypeError, OverflowError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Refused("BAD_OPTION", f"{address}: request {request_id}: cannot be sent: {error}") from error
    return frame_of(address, made)


def frame_of(address: str, message: messages.ToScheduler) -> bytes:
    """Encode what a caller said. Raises `Refused` for what the engine could not read.

    Such a frame has no request id that its answer could carry, so it would cost every stream of the client.
    """
    try:
        frame = codec.encode(message)
        _reader.decode(frame)
    except EngineError as error:
        raise Refused("BAD_MESSAGE", f"{address}: {type(message).__name__} cannot be sent: {error}") from error
    return frame


def _put_next(sinks: deque[ReplySink] | None, message: Reply) -> None:
    if sinks:
        sinks.popleft().put(message)
