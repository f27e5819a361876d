"""The clients' edge: their frames to the core's events and direct answers, the core's outputs to their frames.

Owns the client socket, who counts as present, and the queue of what to tell; never decides for the core. `loop.py`
calls `receive` at the start of a poll and `send` at its end.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import structlog

from ...statemachine.errors import PeerError, Refused
from ..core import events, results
from ..wire import codec
from ..wire import messages as wire
from ..wire.sockets import Router
from .ratelimit import Drops
from .translate import Client, Record, RequestOutput, Translate

log = structlog.get_logger()
SILENT_KEEP_ALIVES = 3  # so many missed, and a client counts as unreachable
LINGER_MS = 1000


@attrs.frozen
class _Early:
    """A submit that came before the first READY, when eos and vocabulary are not known yet."""

    arrived_ns: int
    client: int
    message: wire.Submit


class ClientEdge:
    """`questions` answers GetStats and GetHealth."""

    def __init__(
        self,
        router: Router,
        translate: Translate,
        *,
        keep_alive_s: float,
        max_early: int,
        questions: Callable[[wire.GetStats | wire.GetHealth], wire.Message],
        welcome: Callable[[Client], wire.Welcome],
    ) -> None:
        self.router = router
        self.translate = translate
        self.drops = Drops("client_frame_dropped")
        self.ready = False
        self._silence_ns = int(SILENT_KEEP_ALIVES * keep_alive_s * 1e9)
        self._next_silence_check_ns = 0
        self._max_early = max_early
        self._questions = questions
        self._welcome = welcome
        self._decoder = codec.from_client()
        self._early: deque[_Early] = deque()
        self._away: set[int] = set()
        self._told: list[tuple[int, Record | None, Any]] = []

    # ---- in -----------------------------------------------------------------------------------------------------

    def receive(self, now_ns: int) -> Iterator[events.Input]:
        """Yield the events of what has arrived. The core must handle each before the next is asked for."""
        for identity, parts in self.router.receive():
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
        while self._early:
            early = self._early.popleft()
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
            yield events.ClientHello(client.number)
        if isinstance(message, wire.GetStats | wire.GetHealth):
            self._told.append((client.number, None, self._questions(message)))
        elif isinstance(message, wire.Goodbye):
            self.drop_early(client.number)
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
        if self.ready:
            yield from self._request(client, message, now_ns)
        elif isinstance(message, wire.CancelRequest):
            self._cancel_early(client, message.request_id)
        elif isinstance(message, wire.ResumeRequest):
            self._refuse(client, message.request_id, Refused("UNKNOWN_ID", "nothing has been accepted yet"))
        elif self.num_early >= self._max_early:
            self._refuse(client, message.request_id, Refused("QUEUE_FULL", "no worker is ready, and the queue is full"))
        else:
            self._early.append(_Early(now_ns, client.number, message))

    def _cancel_early(self, client: Client, request_id: str) -> None:
        """It was never accepted, so a refusal is its one answer."""
        mine = [
            early for early in self._early if (early.client, early.message.request_id) == (client.number, request_id)
        ]
        self._told.append((client.number, None, wire.CancelAck(request_id=request_id, live=bool(mine))))
        if mine:
            self._early.remove(mine[0])
            self._refuse(client, request_id, Refused("CANCELLED", "it was cancelled before it was accepted"))

    @property
    def num_early(self) -> int:
        return len(self._early)

    def drop_early(self, client: int) -> None:
        self._early = deque(early for early in self._early if early.client != client)

    def _request(
        self, client: Client, message: wire.Submit | wire.CancelRequest | wire.ResumeRequest, now_ns: int
    ) -> Iterator[events.Input]:
        try:
            if isinstance(message, wire.Submit):
                yield self.translate.submit(client, message, now_ns)
            elif isinstance(message, wire.ResumeRequest):
                yield self.translate.resume(client, message)
            else:
                event = self.translate.cancel(client, message)
                if event is None:
                    nothing = wire.CancelAck(request_id=message.request_id, live=False)
                    self._told.append((client.number, None, nothing))
                else:
                    yield event
        except Refused as refused:
            self._refuse(client, message.request_id, refused)

    def _refuse(self, client: Client, request_id: str, refused: Refused) -> None:
        answer = wire.Refused(code=refused.code, message=str(refused), request_id=request_id)
        self._told.append((client.number, None, answer))

    # ---- out ----------------------------------------------------------------------------------------------------

    def take(self, output: RequestOutput | results.Welcome | results.ForgetClient) -> None:
        """Settle the names of an output now; it is encoded and sent by `send`."""
        if isinstance(output, results.Welcome):
            client = self.translate.clients.get(output.client)
            if client is not None:
                self._told.append((client.number, None, self._welcome(client)))
        elif isinstance(output, results.ForgetClient):
            self._away.discard(output.client)
            self.translate.forget(output.client)
        else:
            self._told.append((output.client, self.translate.settle(output), output))

    def send(self) -> None:
        """Encode and send what was taken, in its order, then what waits in outboxes."""
        told, self._told = self._told, []
        for number, record, output in told:
            message = output if record is None else self.translate.tell(record, output)
            if isinstance(output, results.Ended):
                self._canonical_line(record, output)
            client = self.translate.clients.get(number)
            if client is not None and client.identity is not None:
                self.router.send(client.identity, codec.encode(message))
        self.router.flush()

    def close(self, last_word: str) -> None:
        """Tell who is there that nobody will answer any more: a question that waits would wait in vain."""
        farewell = codec.encode(wire.Refused(code="ENGINE_GONE", message=last_word))
        for client in self.translate.clients.values():
            if client.identity is not None:
                self.router.send(client.identity, farewell)
        self.router.close(linger_ms=LINGER_MS)

    def _canonical_line(self, record: Record | None, ended: results.Ended) -> None:
        """One line a request, with all that one would ask of it."""
        counts = ended.counts
        drafting = counts.num_passes - counts.num_zero_passes
        log.info(
            "request",
            client=ended.client,
            request_id=record.request_id if record else None,
            label=record.label if record else None,
            state=ended.state,
            reason=ended.reason,
            prompt_len=ended.prompt_len,
            output_len=ended.output_len,
            seconds=round((time.monotonic_ns() - record.arrived_ns) / 1e9, 6) if record else None,
            passes=counts.num_passes,
            zero_passes=counts.num_zero_passes,
            acceptance_len=round(counts.num_emitted_drafting / drafting, 3) if drafting else None,
            restarts=counts.num_restarts,
        )
