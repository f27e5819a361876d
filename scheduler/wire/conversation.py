"""A client's side of the conversation as pure state: which message belongs to which request. Sans-IO.

Owns routing by request id, what is said again after a connection was lost, and when the engine counts as lost; never a
socket, thread or clock. `client.py` and `client_async.py` feed it and send the frames that it returns.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from ...statemachine.errors import EngineError, Refused
from . import codec, messages
from .result import EngineLost
from .waiting import Live, Newest, Questions, ReplySink, Sink, Submitted

Frames = list[bytes]
_OF_RESUMES = frozenset({"UNKNOWN_ID", "UNKNOWN_REQUEST", "BAD_INDEX", "ENGINE_RESTARTED"})  # no submit is refused so


class Conversation:
    """The routing state of one client.

    The first answer to each submit (Accepted or Refused) goes to the submits of that id in their order; what follows
    goes to the accepted one. So a duplicate id is refused to the second stream, and the first goes on. A stream that is
    left cancels its own request only, whoever bears the same id: while it is unanswered, that is when it is accepted.
    Of an id that has a live stream every further Accepted is that stream's: a second one of it is refused.

    On a new connection everything that waits is said again: live streams resume where they are, submits that were not
    answered are repeated (and resumed, if the engine had accepted them). Before them comes what makes ids free: streams
    that were left, and ends that were read. While `greeting`, nothing need be sent: all of it will be said again. An
    engine that does not know the client any more has lost its live requests, and their streams hear so.

    What comes of an id that was never asked for here belongs to an earlier process of this client, which may be resumed
    yet: nothing is said of it.
    """

    def __init__(self, address: str, *, resume_token: str | None = None) -> None:
        self.address = address
        self.welcome: messages.Welcome | None = None
        self.greeting = False
        self._unwelcome = False  # a nudge ago it was greeting already
        self._token = resume_token
        self._unanswered: dict[str, deque[Submitted]] = {}
        self._live: dict[str, Live] = {}
        self._questions = Questions()
        self._over = Newest(256)  # ids of what was read, left or refused here, until they are used again

    @property
    def num_open(self) -> int:
        """Streams and questions that somebody waits for."""
        return sum(1 for _ in self.sinks())

    def sinks(self) -> Iterator[Any]:
        """Of those who wait for something."""
        yield from (live.sink for live in self._live.values())
        yield from (one.sink for submitted in self._unanswered.values() for one in submitted if one.sink is not None)
        yield from self._questions.sinks()

    # ---- what callers want --------------------------------------------------------------------------------------

    def submit(self, request_id: str, sink: Sink, frame: bytes) -> None:
        submitted = self._unanswered.setdefault(request_id, deque())
        alone = request_id not in self._live and all(one.sink is None for one in submitted)
        submitted.append(Submitted(sink, frame, alone=alone))

    def resume(self, request_id: str, sink: Sink, from_index: int) -> Frames:
        """The new stream takes the request over from an older one of this client, which ends. Of a submit that was not
        answered it takes the answer over: the engine's words would not tell the two apart."""
        live, submitted = self._live.get(request_id), self._unanswered.get(request_id)
        older: Sink | None = None if live is None else live.sink
        frames: Frames = []
        if live is None and submitted:
            older, submitted[0].sink, submitted[0].resume_from = submitted[0].sink, sink, from_index
            for later in list(submitted)[1:]:
                later.alone = False
        else:
            frames = self._take_up(request_id, sink, from_index)
        if older is not None:
            older.put(Refused("RESUMED", f"request {request_id} goes on in a newer stream of this client"))
        return frames

    def leave(self, request_id: str, sink: Sink) -> Frames:
        """Forget a stream: its request is cancelled, or its end, which nobody has read, is as good as heard."""
        live = self._live.get(request_id)
        if live is not None and live.sink is sink:
            del self._live[request_id]
            return self._cancel(request_id)
        submitted = self._unanswered.get(request_id, ())
        waiting = [one for one in submitted if one.sink is sink]
        for one in waiting:
            one.sink = None
        goes_on = live is not None or any(one.resume_from is not None for one in submitted)
        return [] if waiting or goes_on else self.heard(request_id)  # the end of what goes on is its own

    def heard(self, request_id: str) -> Frames:
        """The end of a request was read: the engine need not keep it any longer."""
        self._over.add(request_id)
        return [codec.encode(messages.Heard(request_id=request_id))]

    def cancel(self, request_id: str, sink: ReplySink | None) -> None:
        self._questions.cancel(request_id, sink)

    def ask(self, kind: type[messages.Stats] | type[messages.Health], sink: ReplySink) -> None:
        self._questions.ask(kind, sink)

    def forget(self, sink: ReplySink) -> None:
        """Nobody waits for this answer any more."""
        self._questions.forget(sink)

    def nudge(self) -> Frames:
        """Say again what was not answered since the last nudge: a frame of either side may have been lost."""
        frames = self._hello() if self._unwelcome else []
        self._unwelcome = self.greeting
        for request_id, live in self._live.items():
            if live.quiet:
                frames.append(self._resume(request_id, live))
            live.quiet = True
        for submitted in self._unanswered.values():
            for one in submitted:
                if one.quiet:
                    one.again = True
                    frames.append(one.frame)
                one.quiet = True
        return frames + self._questions.frames(self._is_used)

    # ---- what the engine says -----------------------------------------------------------------------------------

    def feed(self, message: messages.ToClient) -> Frames:
        """Route one message; return what is to be said now."""
        if isinstance(message, messages.Tokens):
            return self._tokens(message)
        if isinstance(message, messages.Accepted):
            return self._accepted(message)
        if isinstance(message, messages.Finished):
            return self._finished(message)
        if isinstance(message, messages.Refused):
            return self._refused(message)
        if isinstance(message, messages.Connected):
            return self._hello()
        if isinstance(message, messages.Welcome):
            return self._welcomed(message)
        self._questions.answer(message)
        return []

    def fail_all(self, error: EngineError) -> None:
        """End every stream and question with `error`."""
        waiting = list(self.sinks())
        self._live.clear()
        self._unanswered.clear()
        self._questions.clear()
        for sink in waiting:
            sink.put(error)

    def lost(self, seconds: float) -> EngineLost:
        return EngineLost(f"no engine answered at {self.address} for {seconds:g} s")

    def _is_used(self, request_id: str) -> bool:
        return request_id in self._unanswered or request_id in self._live

    def _hello(self) -> Frames:
        """As the same client when there was one."""
        self.greeting = True
        return [codec.encode(messages.ClientHello(resume_token=self._token))]

    def _welcomed(self, message: messages.Welcome) -> Frames:
        forgotten = self._token is not None and not message.resumed
        self.welcome, self._token, self.greeting = message, message.resume_token, False
        return self._say_again(forgotten=forgotten)

    def _say_again(self, *, forgotten: bool) -> Frames:
        frames = self._farewells()
        if forgotten:
            lost, self._live = self._live, {}
            for request_id, live in lost.items():
                text = f"{self.address}: request {request_id}: the engine was restarted and knows nothing of it"
                live.sink.put(Refused("ENGINE_RESTARTED", text))
        frames += [self._resume(request_id, live) for request_id, live in self._live.items()]
        for submitted in self._unanswered.values():
            for one in submitted:
                one.again = True
                frames.append(one.frame)
        return frames + self._questions.frames(self._is_used)

    def _farewells(self) -> Frames:
        """What the engine knows of streams that were left ends, and their ids are free, before these are said again."""
        left = self._questions.drop_all_left()
        for request_id, submitted in list(self._unanswered.items()):
            staying = deque(one for one in submitted if one.sink is not None)
            if len(staying) < len(submitted) and request_id not in self._live:
                left.append(request_id)
            self._unanswered[request_id] = staying
        self._unanswered = {request_id: staying for request_id, staying in self._unanswered.items() if staying}
        cancels = [frame for request_id in dict.fromkeys(left) for frame in self._cancel(request_id)]
        return cancels + [codec.encode(messages.Heard(request_id=request_id)) for request_id in self._over]

    def _accepted(self, message: messages.Accepted) -> Frames:
        live = self._live.get(message.request_id)
        if live is not None:  # a resume's echo
            live.quiet = False
            if not live.accepted:
                live.accepted = True
                live.sink.put(message)
            return []
        one = self._answered(message.request_id)
        if one is None:  # it was answered before: said twice, and it may have been refused first
            return self._cancel(message.request_id) if message.request_id in self._over else []
        if one.sink is None:  # it was left in the meantime
            return self._cancel(message.request_id)
        if one.resume_from:
            return self._take_up(message.request_id, one.sink, one.resume_from)
        self._live[message.request_id] = Live(one.sink, 0)
        one.sink.put(message)
        return []

    def _tokens(self, message: messages.Tokens) -> Frames:
        live = self._live.get(message.request_id)
        if live is None:  # a stream that was left
            return []
        live.quiet = False
        end = message.index + len(message.token_ids)
        if message.index > live.next_index:
            return self._ask_for_gap(message.request_id, live)
        if message.index < live.next_index < end:  # its text cannot be divided
            live.stalled = False
            return self._ask_for_gap(message.request_id, live)
        if end <= live.next_index and message.token_ids:  # told again
            return []
        live.next_index, live.stalled = end, False
        live.sink.put(message)
        return []

    def _finished(self, message: messages.Finished) -> Frames:
        live = self._live.get(message.request_id)
        if live is None:  # that its end was heard was lost, unless its Accepted is still to come
            again = message.request_id in self._over and message.request_id not in self._unanswered
            return self.heard(message.request_id) if again else []
        if message.output_len > live.next_index:
            return self._ask_for_gap(message.request_id, live)
        del self._live[message.request_id]
        live.sink.put(message)
        return []

    def _ask_for_gap(self, request_id: str, live: Live) -> Frames:
        """Output that does not follow what the stream has. What does was lost, or is on its way already."""
        if live.stalled:
            return []
        live.stalled = True
        return [self._resume(request_id, live)]

    def _refused(self, message: messages.Refused) -> Frames:
        if message.code == "HELLO_FIRST":
            return [] if self.greeting else self._hello()  # one hello is enough for all that was sent before it
        request_id = message.request_id
        if request_id is None:
            self.fail_all(Refused(message.code, f"{self.address}: {message.message}"))
            return [codec.encode(messages.Goodbye())] if message.code == "ENGINE_GONE" else []
        error = Refused(message.code, f"{self.address}: request {request_id}: {message.message}")
        live = self._live.get(request_id)
        one = None if message.code in _OF_RESUMES else self._answered(request_id)
        if message.code == "DUPLICATE_ID" and live is None and one is not None and one.again and one.alone:
            if one.sink is None:
                return self._cancel(request_id)
            return self._take_up(request_id, one.sink, one.resume_from or 0)  # the first one was heard
        if one is not None:
            if message.code != "DUPLICATE_ID":  # said twice, the other one may be accepted
                self._over.add(request_id)
            if one.sink is not None:
                one.sink.put(error)
        elif live is not None and message.code != "DUPLICATE_ID":  # that answers a repeated submit
            del self._live[request_id]
            live.sink.put(error)
        return []

    def _answered(self, request_id: str) -> Submitted | None:
        """Whose turn it is among the submits of this id."""
        submitted = self._unanswered.get(request_id)
        if not submitted:
            return None
        one = submitted.popleft()
        if not submitted:
            del self._unanswered[request_id]
        self._over.discard(request_id)  # what had to be said of its id was said before it
        self._questions.drop_left(request_id)
        return one

    def _take_up(self, request_id: str, sink: Sink, from_index: int) -> Frames:
        """What the engine serves already goes to a stream that has not heard so."""
        live = self._live[request_id] = Live(sink, from_index, accepted=False, stalled=True)
        return [self._resume(request_id, live)]

    def _resume(self, request_id: str, live: Live) -> bytes:
        return codec.encode(messages.ResumeRequest(request_id=request_id, from_index=live.next_index))

    def _cancel(self, request_id: str) -> Frames:
        """Nobody waits for the answer, but it is said again until there is one; nor will its end be read."""
        self.cancel(request_id, None)
        return [codec.encode(messages.CancelRequest(request_id=request_id)), *self.heard(request_id)]
