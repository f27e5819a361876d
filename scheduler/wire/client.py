"""`Client`: submit, stream, cancel and ask, from ordinary threads.

Owns one background thread, which alone touches the socket: it sends what callers queue, keeps the connection alive and
hands messages to the streams' queues. Any thread may call any method. `conversation.py` decides what belongs to whom.
"""

import math
import os
import queue
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Self

import zmq

from ...statemachine.errors import EngineError, PeerError, Refused
from . import codec, messages
from .conversation import Conversation
from .curve import ClientKeys
from .frames import Prompt, cancel_frame, check_client, check_wait, id_of, resume_frame, submit_frame
from .result import EngineLost, Result
from .samples import samples_of
from .sockets import dealer
from .stream import Stream as Stream
from .stream import Waiting
from .waiting import Patience, has_failed

_CLOSE_LINGER_MS = 500
_GOODBYE_S = 1.0  # how long a goodbye waits for a connection that has just gone
_Left = tuple[str, Waiting]  # a stream that nobody reads any more


class Client:
    """A connection to an engine, which comes back by itself. `timeout_s`: how long a silent engine is waited for,
    before `EngineLost`. `resume_token`: of an earlier client's `welcome`, to be that client and resume its requests.
    `keys`: of `dsparkd.curve_keys(...)`, for an engine that asks for them."""

    def __init__(
        self, address: str, *, timeout_s: float = 30.0, resume_token: str | None = None, keys: ClientKeys | None = None
    ) -> None:
        check_client(address, timeout_s=timeout_s, resume_token=resume_token, keys=keys)
        self.address = address
        self.timeout_s = timeout_s
        self._lock = threading.Lock()  # guards the conversation and the outgoing queue
        self._conversation = Conversation(address, resume_token=resume_token)
        self._outgoing: deque[bytes | _Left] = deque()
        self._closing = False
        self._patience_ends = math.inf
        self._welcomed = Waiting()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = dealer(
            self._context, address, probes=True, keys=keys
        )  # refuses a bad address before anything else is opened
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._serve, name="dsparkd-client", daemon=True)
        self._thread.start()
        try:
            self.welcome: messages.Welcome = self._answer(self._welcomed)
        except BaseException:  # an interrupted caller too must leave no thread behind
            self.close()
            raise

    def submit(self, prompt: Prompt, *, request_id: str | None = None, **options: Any) -> Stream:
        """Submit text, token ids or messages of a chat, and return its stream. Options are `RequestOptions`, judged by
        the engine."""
        name = f"r-{secrets.token_hex(8)}" if request_id is None else request_id
        frame, sink = submit_frame(self.address, prompt, request_id=name, options=options), Waiting()
        with self._lock:
            self._send(frame)
            self._conversation.submit(name, sink, frame)
        return Stream(self, name, sink)

    def generate(self, prompt: Prompt, *, request_id: str | None = None, **options: Any) -> Result:
        """Submit and wait for the end. A refusal raises `Refused`; a failure is in `Result.error`."""
        return self.submit(prompt, request_id=request_id, **options).result()

    def samples(self, prompt: Prompt, *, n: int, request_id: str | None = None, **options: Any) -> list[Stream]:
        """Submit `n` samples of one prompt: requests `request_id/0`, `/1`, ... of one seed, one sample index each."""
        each = samples_of(self.address, n, id_of(self.address, request_id), options)
        return [self.submit(prompt, request_id=name, **own) for name, own in each]

    def resume(self, request_id: str, *, from_index: int = 0) -> Stream:
        """Return a new stream of a request, from output index `from_index` on: a live one, or one whose end no stream
        of this client has heard."""
        resume_frame(self.address, request_id, from_index)  # refuses what cannot be said
        sink = Waiting()
        with self._lock:
            self._send()  # raises when it is closed
            self._send(*self._conversation.resume(request_id, sink, from_index))
        return Stream(self, request_id, sink)

    def cancel(self, request_id: str) -> bool:
        """Cancel and wait for the acknowledgement: whether there was something to cancel. Idempotent."""
        frame, sink = cancel_frame(self.address, request_id), Waiting()
        with self._lock:
            self._send(frame)
            self._conversation.cancel(request_id, sink)
        return bool(self._answer(sink).live)

    def stats(self) -> dict[str, Any]:
        return dict(self._ask(messages.Stats, messages.GetStats()).values)

    def health(self) -> messages.Health:
        health: messages.Health = self._ask(messages.Health, messages.GetHealth())
        return health

    def wait_ready(self, timeout_s: float = 120.0) -> messages.Health:
        """Wait until the worker serves. Raises `Refused` (NO_WORKER) when none will, `EngineLost` in the end."""
        until = time.monotonic() + check_wait(self.address, timeout_s)
        while True:
            health = self.health()
            if health.worker in ("READY", "DEGRADED"):
                return health
            if health.worker in ("STOPPED", "ABANDONED"):
                raise Refused("NO_WORKER", f"{self.address}: {'; '.join(health.reasons)}")
            if time.monotonic() > until:
                raise EngineLost(f"the engine at {self.address} is not ready: {health.worker}, {health.reasons}")
            threading.Event().wait(0.02)

    def close(self) -> None:
        """Say goodbye (live requests are cancelled by the engine) and end the thread. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._outgoing.append(codec.encode(messages.Goodbye(reason="closed")))
            self._patience_ends = time.monotonic() + min(self.timeout_s, _GOODBYE_S)
            self._closing = True
            self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, kind: Any, question: messages.ToScheduler) -> Any:
        sink = Waiting()
        with self._lock:
            self._send(codec.encode(question))
            self._conversation.ask(kind, sink)
        return self._answer(sink)

    def _answer(self, sink: Waiting) -> Any:
        try:
            item = sink.get(timeout=self.timeout_s)
        except BaseException as error:
            with self._lock:
                self._conversation.forget(sink)
            if isinstance(error, queue.Empty):
                raise self._conversation.lost(self.timeout_s) from None
            raise
        if isinstance(item, EngineError):
            raise item
        return item

    def _leave(self, request_id: str, sink: Waiting) -> None:
        """Cancel without waiting. Called from `__del__`, which may run in any thread at any moment, so lock-free."""
        if not self._closing:
            self._outgoing.append((request_id, sink))
            self._wake()

    def _was_read(self, request_id: str) -> None:
        with self._lock:
            self._outgoing += self._conversation.heard(request_id)
            if not self._closing:
                self._wake()

    def _send(self, *frames: bytes) -> None:
        """Queue frames. The lock is held, so that their answers cannot be routed before they are asked for."""
        if self._closing:
            raise EngineLost(f"the client of {self.address} is closed")
        if not self._conversation.greeting:  # else it is said once we are welcome
            self._outgoing += frames
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of wake-ups already
            os.write(self._wake_write, b"w")

    # ---- the background thread ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        decoder = codec.for_client()
        sent = time.monotonic()
        patience = Patience(self.timeout_s, sent)
        try:
            self._flush()
            while not self._closing or self._outgoing:
                welcome = self._conversation.welcome
                keep_alive_s = welcome.keep_alive_s if welcome else self.timeout_s / 4
                pause_s = min(keep_alive_s, self.timeout_s / 4) / 2
                ready = dict(poller.poll(math.ceil(1000 * min(pause_s, _GOODBYE_S / 8 if self._closing else pause_s))))
                now = time.monotonic()
                if self._wake_read in ready:
                    os.read(self._wake_read, 65536)
                if self._flush():
                    sent = now
                elif welcome and now - sent >= keep_alive_s:
                    self._try(codec.encode(messages.KeepAlive()))
                    sent = now
                if self._socket in ready:
                    self._receive(decoder)
                    self._flush()
                    patience.heard(now)
                self._watch(patience, now)
        except Exception as error:  # a dead thread must not leave callers waiting
            self._conversation.fail_all(EngineLost(f"the client of {self.address} failed: {error}"))
            raise
        finally:
            with self._lock:
                self._closing = True
                self._conversation.fail_all(EngineLost(f"the client of {self.address} is closed"))
            self._socket.close(linger=_CLOSE_LINGER_MS)

    def _flush(self) -> bool:
        flushed = False
        while self._outgoing:
            head = self._outgoing.popleft()
            if not isinstance(head, bytes):
                self._farewell(*head)
            elif not self._try(head):
                self._outgoing.appendleft(head)
                return flushed
            flushed = True
        return flushed

    def _farewell(self, request_id: str, sink: Waiting) -> None:
        if not has_failed(sink):
            with self._lock:
                self._outgoing.extendleft(self._conversation.leave(request_id, sink))

    def _try(self, frame: bytes) -> bool:
        """Return False while the pipe is full: nobody reads at the other end, which `_watch` will notice."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self, decoder: codec.Decoder[messages.ToClient]) -> None:
        while True:
            try:
                message = decoder.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except PeerError as error:
                with self._lock:
                    self._conversation.fail_all(PeerError(f"{self.address}: {error}"))
                return
            with self._lock:
                was_greeting = self._conversation.greeting
                answers = self._conversation.feed(message)
                if self._conversation.greeting and not was_greeting and not self._closing:
                    self._drop_frames()
                if isinstance(message, messages.Welcome):
                    self._welcomed.put(message)
                self._outgoing.extendleft(reversed(answers))  # a hello comes before all that waits

    def _drop_frames(self) -> None:
        """On a new connection all that waits for an answer is said again; streams that were left have yet to be."""
        for _ in range(len(self._outgoing)):
            head = self._outgoing.popleft()
            if not isinstance(head, bytes):
                self._outgoing.append(head)

    def _watch(self, patience: Patience, now: float) -> None:
        with self._lock:
            if self._closing and now > self._patience_ends:
                self._outgoing.clear()  # nobody is there to hear the goodbye
            judged = patience.judge(now, lambda: (sink.asked_s for sink in self._conversation.sinks()))
            if judged == "give up":
                self._conversation.fail_all(self._conversation.lost(self.timeout_s))
            elif judged == "ask":
                self._outgoing += [*self._conversation.nudge(), codec.encode(messages.GetHealth())]
