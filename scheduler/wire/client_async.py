"""`AsyncClient`: the same conversation for asyncio.

Owns one task that reads the socket and one that keeps the connection alive; belongs to the loop that opened it.
`conversation.py` decides what belongs to whom. Use it as `async with AsyncClient(address) as client`.
"""

import asyncio
import secrets
import time
from contextlib import suppress
from typing import Any, Self

import zmq
import zmq.asyncio

from ...statemachine.errors import EngineError, PeerError, Refused
from . import codec, messages
from .conversation import Conversation
from .curve import ClientKeys
from .frames import Prompt, cancel_frame, check_client, check_wait, id_of, resume_frame, submit_frame
from .result import EngineLost, Result
from .samples import samples_of
from .sockets import dealer
from .stream import AsyncStream as AsyncStream
from .waiting import Patience, has_failed

_CLOSE_LINGER_MS = 500
_MOST_AT_ONCE = 256  # frames
_NOBLOCK = int(zmq.NOBLOCK)  # a plain integer: pyzmq looks at an Enum's bits in Python


class _Sink(asyncio.Queue[Any]):
    """A queue whose `put` does not wait, as the conversation expects; and since when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s = time.monotonic()

    def put(self, item: Any) -> None:  # type: ignore[override]
        self.put_nowait(item)


class AsyncClient:
    """A connection to an engine, which comes back by itself. `timeout_s`: how long a silent engine is waited for,
    before `EngineLost`. `resume_token`: of an earlier client's `welcome`, to be that client and resume its requests.
    `keys`: of `dsparkd.curve_keys(...)`, for an engine that asks for them."""

    def __init__(
        self, address: str, *, timeout_s: float = 30.0, resume_token: str | None = None, keys: ClientKeys | None = None
    ) -> None:
        check_client(address, timeout_s=timeout_s, resume_token=resume_token, keys=keys)
        self.address = address
        self.timeout_s = timeout_s
        self._keys = keys
        self.welcome: messages.Welcome | None = None
        self._conversation = Conversation(address, resume_token=resume_token)
        self._context = zmq.asyncio.Context()
        self._socket: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._welcomed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._patience = Patience(timeout_s, 0.0)
        self._sent = 0.0

    async def connect(self) -> Self:
        """Connect and wait for the engine's welcome. Idempotent, until it is closed. Raises `EngineLost`."""
        loop = asyncio.get_running_loop()
        if self._socket is not None:
            if loop is not self._loop:
                raise Refused(
                    "BAD_CONFIG", f"{self.address}: this client belongs to another event loop: make a new one"
                )
            return await self._be_welcomed()
        if self._closed:
            raise EngineLost(f"the client of {self.address} is closed: make a new one")
        self._loop = loop
        self._socket = dealer(self._context, self.address, probes=True, keys=self._keys)  # type: ignore[arg-type]
        self._sent = time.monotonic()
        self._patience.heard(self._sent)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep_alive())]
        try:
            return await self._be_welcomed()
        except BaseException:  # a cancelled caller too must leave no task behind
            await self.close()
            raise

    async def submit(self, prompt: Prompt, *, request_id: str | None = None, **options: Any) -> AsyncStream:
        """Submit text, token ids or messages of a chat, and return its stream. Options are `RequestOptions`, judged by
        the engine."""
        name = f"r-{secrets.token_hex(8)}" if request_id is None else request_id
        frame = submit_frame(self.address, prompt, request_id=name, options=options)
        sink = _Sink()
        self._send(frame)
        self._conversation.submit(name, sink, frame)
        return AsyncStream(self, name, sink)

    async def generate(self, prompt: Prompt, *, request_id: str | None = None, **options: Any) -> Result:
        """Submit and wait for the end; leaving early (a cancelled task) cancels the request."""
        async with await self.submit(prompt, request_id=request_id, **options) as stream:
            return await stream.result()

    async def samples(
        self, prompt: Prompt, *, n: int, request_id: str | None = None, **options: Any
    ) -> list[AsyncStream]:
        """Submit `n` samples of one prompt: requests `request_id/0`, `/1`, ... of one seed, one sample index each."""
        each = samples_of(self.address, n, id_of(self.address, request_id), options)
        return [await self.submit(prompt, request_id=name, **own) for name, own in each]

    async def resume(self, request_id: str, *, from_index: int = 0) -> AsyncStream:
        """Return a new stream of a request, from output index `from_index` on: a live one, or one whose end no stream
        of this client has heard."""
        resume_frame(self.address, request_id, from_index)  # refuses what cannot be said
        self._send()  # raises when it is closed
        sink = _Sink()
        self._send(*self._conversation.resume(request_id, sink, from_index))
        return AsyncStream(self, request_id, sink)

    async def cancel(self, request_id: str) -> bool:
        """Cancel and wait for the acknowledgement: whether there was something to cancel. Idempotent."""
        frame, sink = cancel_frame(self.address, request_id), _Sink()
        self._send(frame)
        self._conversation.cancel(request_id, sink)
        return bool((await self._answer(sink)).live)

    async def stats(self) -> dict[str, Any]:
        return dict((await self._ask(messages.Stats, messages.GetStats())).values)

    async def health(self) -> messages.Health:
        health: messages.Health = await self._ask(messages.Health, messages.GetHealth())
        return health

    async def wait_ready(self, timeout_s: float = 120.0) -> messages.Health:
        """Wait until the worker serves. Raises `Refused` (NO_WORKER) when none will, `EngineLost` in the end."""
        until = time.monotonic() + check_wait(self.address, timeout_s)
        while True:
            health = await self.health()
            if health.worker in ("READY", "DEGRADED"):
                return health
            if health.worker in ("STOPPED", "ABANDONED"):
                raise Refused("NO_WORKER", f"{self.address}: {'; '.join(health.reasons)}")
            if time.monotonic() > until:
                raise EngineLost(f"the engine at {self.address} is not ready: {health.worker}, {health.reasons}")
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Say goodbye (live requests are cancelled by the engine). Idempotent."""
        if self._socket is None:
            return
        self._try(codec.encode(messages.Goodbye(reason="closed")))
        open_one, self._socket = self._socket, None  # who closes it at the same time finds it closed
        self._closed = True
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # whoever is cancelled here closes all the same
            open_one.close(linger=_CLOSE_LINGER_MS)
            self._conversation.fail_all(EngineLost(f"the client of {self.address} is closed"))
            self._welcomed.set()  # who waits for it hears that it is closed
            self._context.term()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _be_welcomed(self) -> Self:
        try:
            await asyncio.wait_for(self._welcomed.wait(), self.timeout_s)
        except TimeoutError:
            raise self._conversation.lost(self.timeout_s) from None
        if self._closed:
            raise EngineLost(f"the client of {self.address} is closed")
        return self

    async def _ask(self, kind: Any, question: messages.ToScheduler) -> Any:
        sink = _Sink()
        self._send(codec.encode(question))
        self._conversation.ask(kind, sink)
        return await self._answer(sink)

    async def _answer(self, sink: _Sink) -> Any:
        try:
            item = await asyncio.wait_for(sink.get(), self.timeout_s)
        except BaseException as error:
            self._conversation.forget(sink)
            if isinstance(error, TimeoutError):
                raise self._conversation.lost(self.timeout_s) from None
            raise
        if isinstance(item, EngineError):
            raise item
        return item

    def _drop(self, request_id: str, sink: _Sink) -> None:
        """Leave a stream. Called from `__del__`, which may run in any thread at any moment, so it takes no lock."""
        if self._loop is not None and self._socket is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._leave, request_id, sink)

    def _leave(self, request_id: str, sink: _Sink) -> None:
        if not has_failed(sink):
            self._try(*self._conversation.leave(request_id, sink))

    def _was_read(self, request_id: str) -> None:
        self._try(*self._conversation.heard(request_id))

    def _send(self, *frames: bytes) -> None:
        """Say what somebody will wait for. Never yields, so that it is registered before the answer comes.

        What cannot be sent, for want of a welcome or room, is said again with what waits for an answer.
        """
        if self._socket is None:
            raise EngineLost(f"the client of {self.address} is {'closed' if self._closed else 'not connected'}")
        if not self._conversation.greeting:
            self._try(*frames)

    def _try(self, *frames: bytes) -> None:
        """While the pipe is full nothing is said: `_keep_alive` will notice the silence. A send that does not wait is
        over when it returns."""
        for frame in frames if self._socket is not None else ():
            self._sent = time.monotonic()
            with suppress(zmq.Again):
                self._socket.send(frame, _NOBLOCK).result()

    async def _receive(self) -> None:
        """What waits behind a frame is read without asking the loop, which would cost several times the reading."""
        decoder = codec.for_client()
        waiting: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        while True:
            self._take(decoder, await self._socket.recv())
            with suppress(zmq.Again):
                for _ in range(_MOST_AT_ONCE):
                    self._take(decoder, waiting.recv(_NOBLOCK))
            await asyncio.sleep(0)  # the streams' readers have their turn

    def _take(self, decoder: codec.Decoder[messages.ToClient], frame: bytes) -> None:
        self._patience.heard(time.monotonic())
        try:
            message = decoder.decode(frame)
        except PeerError as error:
            self._conversation.fail_all(PeerError(f"{self.address}: {error}"))
            return
        self._try(*self._conversation.feed(message))
        if isinstance(message, messages.Welcome):
            self.welcome = message
            self._welcomed.set()

    async def _keep_alive(self) -> None:
        """Show that we are there; a long queue is silent too, so ask before giving the engine up."""
        while True:
            keep_alive_s = self.welcome.keep_alive_s if self.welcome else self.timeout_s
            await asyncio.sleep(min(keep_alive_s, self.timeout_s / 4) / 2)
            now = time.monotonic()
            judged = self._patience.judge(now, lambda: (sink.asked_s for sink in self._conversation.sinks()))
            if judged == "give up":
                self._conversation.fail_all(self._conversation.lost(self.timeout_s))
            elif judged == "ask":
                self._try(*self._conversation.nudge(), codec.encode(messages.GetHealth()))
            elif now - self._sent >= keep_alive_s:
                self._try(codec.encode(messages.KeepAlive()))
