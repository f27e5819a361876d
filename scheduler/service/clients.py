"""The clients' edge: their frames to the core's events and direct answers, the core's outputs to their frames.

Owns the client socket, who counts as present, and the queue of what to tell; never decides for the core. `loop.py`
calls `receive` at the start of a poll and `send` at its end.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import structlog

from ...statemachine.errors import PeerError, Refused
from ..core import events, results
from ..wire import codec
from ..wire import messages as wire
from ..wire.sockets import Router
from .early import Early, EarlySubmits
from .promises import ACCEPTED, CLIENT, EMITTED, ENDED, GONE, HEARD, Fact, Promises
from .ratelimit import Drops
from .request_line import log_request
from .telling import Record, RequestOutput, rest_of, tell
from .told_logprobs import logprobs_in
from .translate import Client, Translate

log = structlog.get_logger()
SILENT_KEEP_ALIVES = 3  # so many missed, and a client counts as unreachable
FAREWELL_S = 2.0  # how long a closing engine waits for clients to read its last word
_GOODBYE = codec.encode(wire.Goodbye())
_NOBODY = 0  # no client has this number


class ClientEdge:
    """`questions` answers GetStats and GetHealth; `keep` takes each fact into `promises`, and perhaps to a journal."""

    def __init__(
        self,
        router: Router,
        translate: Translate,
        *,
        keep_alive_s: float,
        max_early: int,
        questions: Callable[[wire.GetStats | wire.GetHealth], wire.Message],
        welcome: Callable[[Client], wire.Welcome],
        promises: Promises,
        keep: Callable[[Fact], None],
    ) -> None:
        self.router = router
        self.translate = translate
        self.drops = Drops("client_frame_dropped")
        self.refused: Counter[str] = Counter()  # by code: requests that never reached the core
        self.ready = False
        self._silence_ns = int(SILENT_KEEP_ALIVES * keep_alive_s * 1e9)
        self._next_silence_check_ns = 0
        self.early = EarlySubmits(max_early)
        self._questions = questions
        self._welcome = welcome
        self._promises, self._keep = promises, keep
        self._wall_ns = time.time_ns() - time.monotonic_ns()  # a time of facts over one of ours
        self._decoder = codec.from_client()
        self._away: set[int] = set()
        self._told: list[tuple[int, Record | None, Any]] = []

    # ---- in -----------------------------------------------------------------------------------------------------

    def receive(self, now_ns: int) -> Iterator[events.Input]:
        """Yield the events of what has arrived. The core must handle each before the next is asked for."""
        for identity, parts in self.router.receive():
            if parts == [b""]:  # what a probing DEALER sends first on every connection
                self.router.send(identity, codec.encode(wire.Connected()))
                continue
            try:
                if len(parts) != 1:
                    raise PeerError(f"message of a client: {len(parts)} parts, expected 1")
                message = self._decoder.decode(parts[0])
            except PeerError as error:
                self.drops.drop(str(error))
                if self.translate.client_of(identity) is not None:
                    self.router.send(identity, codec.encode(wire.Refused(code="BAD_MESSAGE", message=str(error))))
                continue
            yield from self._take(identity, message, now_ns)

    def release(self, now_ns: int) -> Iterator[events.Input]:
        """Yield the events of what waited for the first READY, in the order of arrival."""
        self.ready = True
        while self.early:
            early = self.early.pop()
            client = self.translate.clients.get(early.client)
            if client is not None:
                yield from self._request(client, early.message, early.arrived_ns)

    def watch(self, now_ns: int) -> Iterator[events.Input]:
        """Yield who has become unreachable: no route, an overflowing outbox, or silence."""
        for identity, reason in self.router.take_lost().items():
            client = self.translate.client_of(identity)
            if client is not None:
                log.info("client_unreachable", client=client.number, reason=reason)
                self.translate.part(client)
                self._away.add(client.number)
                yield events.ClientUnreachable(client.number)
        if now_ns < self._next_silence_check_ns:
            return
        self._next_silence_check_ns = now_ns + self._silence_ns // 8
        for client in list(self.translate.clients.values()):
            if now_ns - client.heard_ns > self._silence_ns and client.number not in self._away:
                log.info("client_unreachable", client=client.number, reason="silent")
                self._away.add(client.number)
                yield events.ClientUnreachable(client.number)

    def _take(self, identity: bytes, message: wire.ToScheduler, now_ns: int) -> Iterator[events.Input]:
        if isinstance(message, wire.ClientHello):
            yield from self._hello(identity, message, now_ns)
            return
        client = self.translate.client_of(identity)
        if client is None:
            if not isinstance(message, wire.Goodbye):
                self._hello_first(identity, message)
            return
        client.heard_ns = now_ns
        if client.number in self._away:
            self._away.discard(client.number)
            client.resumed = True  # it is welcomed again, and its requests are there
            yield events.ClientHello(client.number)
        if isinstance(message, wire.GetStats | wire.GetHealth):
            self._told.append((client.number, None, self._questions(message)))
        elif isinstance(message, wire.Heard):
            if self._promises.ended_of(client.number, message.request_id) is not None:
                self._keep([HEARD, client.number, message.request_id])
        elif isinstance(message, wire.Goodbye):
            self.early.drop(client.number)
            yield events.ClientGoodbye(client.number)
        elif not isinstance(message, wire.KeepAlive):
            yield from self._request_or_early(client, message, now_ns)

    def _hello(self, identity: bytes, message: wire.ClientHello, now_ns: int) -> Iterator[events.Input]:
        if message.version != wire.PROTOCOL_VERSION:
            text = f"protocol version {message.version}, expected {wire.PROTOCOL_VERSION}"
            self.router.send(identity, codec.encode(wire.Refused(code="BAD_VERSION", message=text)))
            return
        hello = self.translate.hello(identity, message, now_ns)
        self._away.discard(hello.client)
        # What was to be told went to a connection that is gone: Welcome comes first, resumes tell the rest.
        self._told = [(_NOBODY if to == hello.client else to, record, said) for to, record, said in self._told]
        if hello.client not in self._promises.clients:
            self._keep([CLIENT, hello.client, self.translate.clients[hello.client].token])
        yield hello

    def _hello_first(self, identity: bytes, message: wire.ToScheduler) -> None:
        """It speaks on a connection that never said hello: a client that outlived a restart, or a stranger."""
        request_id = getattr(message, "request_id", None)
        text = "this connection has not said hello, or was forgotten"
        refused = wire.Refused(code="HELLO_FIRST", message=text, request_id=request_id)
        self.router.send(identity, codec.encode(refused))

    def _request_or_early(
        self, client: Client, message: wire.Submit | wire.CancelRequest | wire.ResumeRequest, now_ns: int
    ) -> Iterator[events.Input]:
        promised = message.request_id in client.ids or self._promises.ended_of(client.number, message.request_id)
        if self.ready or promised or isinstance(message, wire.ResumeRequest):  # an earlier scheduler may have promised
            yield from self._request(client, message, now_ns)
        elif isinstance(message, wire.CancelRequest):
            self._cancel_early(client, message.request_id)
        elif self.early.repeats(client.number, message):
            log.debug("submit_repeated", client=client.number, request_id=message.request_id)
        elif self.early.is_full:
            self._refuse(client, message.request_id, Refused("QUEUE_FULL", "no worker is ready, and the queue is full"))
        else:
            self.early.add(Early(now_ns, client.number, message))

    def _cancel_early(self, client: Client, request_id: str) -> None:
        """It was never accepted, so a refusal is its one answer."""
        mine = self.early.find(client.number, request_id)
        self._told.append((client.number, None, wire.CancelAck(request_id=request_id, live=mine is not None)))
        if mine is not None:
            self.early.remove(mine)
            self._refuse(client, request_id, Refused("CANCELLED", "it was cancelled before it was accepted"))

    def _request(
        self, client: Client, message: wire.Submit | wire.CancelRequest | wire.ResumeRequest, now_ns: int
    ) -> Iterator[events.Input]:
        try:
            if isinstance(message, wire.Submit):
                if self._promises.ended_of(client.number, message.request_id) is not None:
                    text = "a request of this id has ended and is kept for its client until it says Heard"
                    raise Refused("DUPLICATE_ID", text)
                yield self.translate.submit(client, message, now_ns)
            elif isinstance(message, wire.ResumeRequest):
                yield from self._resume(client, message, now_ns)
            else:
                event = self.translate.cancel(client, message)
                if event is None:
                    nothing = wire.CancelAck(request_id=message.request_id, live=False)
                    self._told.append((client.number, None, nothing))
                else:
                    yield event
        except Refused as refused:
            self._refuse(client, message.request_id, refused)

    def _resume(self, client: Client, message: wire.ResumeRequest, now_ns: int) -> Iterator[events.Input]:
        """It is told anew that it was accepted, then its output, and its end if it has ended."""
        ended = self._promises.ended_of(client.number, message.request_id)
        if ended is not None:
            again = self.translate.again(ended, message.from_index, now_ns)
            self._told += [(client.number, None, one) for one in again]
            return
        if self.early.find(client.number, message.request_id) is not None:
            return  # it will be accepted when there is a worker
        event = self.translate.resume(client, message)
        record = self.translate.records[event.request]
        self._told.append((client.number, record, results.Accepted(client.number, event.request)))
        yield event

    def _refuse(self, client: Client, request_id: str, refused: Refused) -> None:
        self.refused[refused.code] += 1
        answer = wire.Refused(code=refused.code, message=str(refused), request_id=request_id)
        self._told.append((client.number, None, answer))

    # ---- out ----------------------------------------------------------------------------------------------------

    def take(self, output: RequestOutput | results.Welcome | results.ForgetClient) -> None:
        """Settle the names of an output now; it is encoded and sent by `send`."""
        if isinstance(output, results.Welcome):
            client = self.translate.clients.get(output.client)
            if client is not None and client.identity is not None:  # a recovered one has not come yet
                self._told.append((client.number, None, self._welcome(client)))
        elif isinstance(output, results.ForgetClient):
            self._away.discard(output.client)
            self.translate.forget(output.client)
            self._keep([GONE, output.client])
        else:
            record = self.translate.settle(output)
            self._promise(record, output)
            self._told.append((output.client, record, output))

    def _promise(self, record: Record, output: RequestOutput) -> None:
        """What its client is about to hear, as a fact."""
        if type(output) is results.Tokens:
            if output.index == len(self._promises.requests[output.request].token_ids):  # else it is told again
                logprobs = logprobs_in(output) if record.told is not None else ()
                self._keep([EMITTED, output.request, output.index, output.token_ids, *logprobs])
        elif isinstance(output, results.Ended):
            self._keep([ENDED, output, rest_of(record, output)])
        elif isinstance(output, results.Accepted) and output.request not in self._promises.requests:
            submit, deadline_ns = record.submit, record.submit.deadline_ns
            if deadline_ns is not None:
                submit = attrs.evolve(submit, deadline_ns=deadline_ns + self._wall_ns)
            self._keep([ACCEPTED, submit, record.request_id, record.options])
            if record.told is not None:
                self._promises.requests[output.request].logprobs = record.told

    def recover(self, now_ns: int) -> Iterator[events.Input]:
        """Yield what the core must hear of those whom an earlier scheduler promised something; they are away."""
        self.translate.skip_numbers(self._promises.requests)
        self._away.update(self._promises.clients)
        for number, token in self._promises.clients.items():
            yield self.translate.recover_client(number, token, now_ns)
        for request in self._promises.live:
            promise = self._promises.requests[request]
            due_ns = promise.submit.deadline_ns
            yield self.translate.recover(promise, None if due_ns is None else due_ns - self._wall_ns, now_ns)
        for number in list(self._promises.clients):
            yield events.ClientUnreachable(number)

    def send(self) -> None:
        """Encode and send what was taken, in its order, then what waits in outboxes."""
        told, self._told = self._told, []
        for number, record, output in told:
            message = output if record is None else tell(record, output)
            if isinstance(output, results.Ended):
                log_request(record, output)
            client = self.translate.clients.get(number)
            if client is not None and client.identity is not None:
                self.router.send(client.identity, codec.encode(message))
        self.router.flush()

    def close(self, last_word: str | None) -> None:
        """Tell who is there that nobody will answer any more: a question that waits would wait in vain.

        None: somebody will, so nothing is said.
        """
        if last_word is not None:
            self._say_farewell(codec.encode(wire.Refused(code="ENGINE_GONE", message=last_word)))
        self.router.close()

    def _say_farewell(self, frame: bytes) -> None:
        """Until each client has said goodbye: a connection that ends takes what was not read of it yet along."""
        listening = {one.identity for one in self.translate.clients.values() if one.identity is not None}
        for identity in listening:
            self.router.send(identity, frame)
        until = time.monotonic() + FAREWELL_S
        while listening and (left_s := until - time.monotonic()) > 0:
            self.router.flush()
            self.router.socket.poll(min(50, math.ceil(1e3 * left_s)))
            listening -= {identity for identity, parts in self.router.receive() if parts == [_GOODBYE]}
            listening -= set(self.router.take_lost())
