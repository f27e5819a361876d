"""`AsyncClient`: the same conversation for asyncio.

Owns one task that reads the socket and one that keeps the connection alive; belongs to the loop that opened it.
`conversation.py` decides what belongs to whom. Use it as `async with AsyncClient(address) as client`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self

import zmq
import zmq.asyncio

from ...statemachine.errors import EngineError, PeerError, Refused
from . import codec, messages
from .conversation import Conversation
from .curve import ClientKeys
from .frames import Prompt, frame_of, submit_frame
from .result import EngineLost, Result, ResultBuilder, StreamMessage
from .samples import samples_of
from .sockets import dealer

_CLOSE_LINGER_MS = 500
_MOST_AT_ONCE = 256  # frames
_NOBLOCK = int(zmq.NOBLOCK)  # a plain integer: pyzmq looks at an Enum's bits in Python


class _Sink(asyncio.Queue[Any]):
    """A queue whose `put` does not wait, as the conversation expects."""

    def put(self, item: Any) -> None:  # type: ignore[override]
        self.put_nowait(item)


class AsyncStream(AsyncIterator[StreamMessage]):
    """The messages of one request, ending after the terminal one. Leaving it early (`async with`, `close`) cancels."""

    def __init__(self, client: "AsyncClient", request_id: str, sink: _Sink) -> None:
        self.request_id = request_id
        self._client = client
        self._queue = sink
        self._ended = False
        self._builder = ResultBuilder()

    async def __anext__(self) -> StreamMessage:
        if self._ended:
            raise StopAsyncIteration
        item = await self._queue.get()
        self._ended = isinstance(item, messages.Finished | EngineError)
        if isinstance(item, messages.Finished):
            await self._client._was_read(self.request_id)
        if isinstance(item, EngineError):
            raise item
        self._builder.add(item)
        return item  # type: ignore[no-any-return]

    async def cancel(self) -> bool:
        """Cancel it and return whether there was something to cancel; its terminal message still comes."""
        return not self._ended and await self._client.cancel(self.request_id)

    async def result(self) -> Result:
        """Consume the rest and return the whole, what was read before included."""
        async for _ in self:
            pass
        return self._builder.whole()

    async def close(self) -> None:
        """Leave it: cancelled if it has not ended."""
        if not self._ended:
            self._ended = True
            await self._client._leave(self.request_id, self._queue)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncClient:
    """A connection to an engine, which comes back by itself. `timeout_s`: how long a silent engine is waited for,
    before `EngineLost`. `resume_token`: of an earlier client's `welcome`, to be that client and resume its requests.
    `keys`: of `dsparkd.curve_keys(...)`, for an engine that asks for them."""

    def __init__(
        self, address: str, *, timeout_s: float = 30.0, resume_token: str | None = None, keys: ClientKeys | None = None
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._keys = keys
        self.welcome: messages.Welcome | None = None
        self._conversation = Conversation(address, resume_token=resume_token)
        self._context = zmq.asyncio.Context()
        self._socket: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._welcomed = asyncio.Event()
        self._heard = self._sent = 0.0

    async def connect(self) -> Self:
        """Connect and wait for the engine's welcome. Raises `EngineLost`."""
        self._socket = dealer(self._context, self.address, probes=True, keys=self._keys)  # type: ignore[arg-type]
        self._heard = self._sent = time.monotonic()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep_alive())]
        try:
            await asyncio.wait_for(self._welcomed.wait(), self.timeout_s)
        except BaseException as error:  # a cancelled caller too must leave no task behind
            await self.close()
            if isinstance(error, TimeoutError):
                raise self._conversation.lost(self.timeout_s) from None
            raise
        return self

    async def submit(self, prompt: Prompt, *, request_id: str | None = None, **options: Any) -> AsyncStream:
        """Submit text, token ids or messages of a chat, and return its stream. Options are `RequestOptions`, judged by
        the engine."""
        name = request_id or f"r-{secrets.token_hex(8)}"
        frame = submit_frame(self.address, prompt, request_id=name, options=options)
        sink = _Sink()
        await self._send(frame)
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
        each = samples_of(self.address, n, request_id, options)
        return [await self.submit(prompt, request_id=name, **own) for name, own in each]

    async def resume(self, request_id: str, *, from_index: int = 0) -> AsyncStream:
        """Return a new stream of a request, from output index `from_index` on: a live one, or one whose end no stream
        of this client has heard."""
        frame, sink = (
            frame_of(self.address, messages.ResumeRequest(request_id=request_id, from_index=from_index)),
            _Sink(),
        )
        await self._send(frame)
        self._conversation.resume(request_id, sink, from_index)
        return AsyncStream(self, request_id, sink)

    async def cancel(self, request_id: str) -> bool:
        """Cancel and wait for the acknowledgement: whether there was something to cancel. Idempotent."""
        frame, sink = frame_of(self.address, messages.CancelRequest(request_id=request_id)), _Sink()
        await self._send(frame)
        self._conversation.cancel(request_id, sink)
        return bool((await self._answer(sink)).live)

    async def stats(self) -> dict[str, Any]:
        return dict((await self._ask(messages.Stats, messages.GetStats())).values)

    async def health(self) -> messages.Health:
        health: messages.Health = await self._ask(messages.Health, messages.GetHealth())
        return health

    async def wait_ready(self, timeout_s: float = 120.0) -> messages.Health:
        """Wait until the worker serves. Raises `Refused` (NO_WORKER) when none will, `EngineLost` in the end."""
        until = time.monotonic() + timeout_s
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
        await self._try(codec.encode(messages.Goodbye(reason="closed")))
        open_one, self._socket = self._socket, None  # who closes it at the same time finds it closed
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        open_one.close(linger=_CLOSE_LINGER_MS)
        self._conversation.fail_all(EngineLost(f"the client of {self.address} is closed"))
        self._context.term()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _ask(self, kind: Any, question: messages.ToScheduler) -> Any:
        sink = _Sink()
        await self._send(codec.encode(question))
        self._conversation.ask(kind, sink)
        return await self._answer(sink)

    async def _answer(self, sink: _Sink) -> Any:
        try:
            item = await asyncio.wait_for(sink.get(), self.timeout_s)
        except TimeoutError:
            raise self._conversation.lost(self.timeout_s) from None
        if isinstance(item, EngineError):
            raise item
        return item

    async def _leave(self, request_id: str, sink: _Sink) -> None:
        for frame in self._conversation.leave(request_id, sink):
            await self._try(frame)

    async def _was_read(self, request_id: str) -> None:
        for frame in self._conversation.heard(request_id):
            await self._try(frame)

    async def _send(self, frame: bytes) -> None:
        """Never yields, so that what a caller registers afterwards is there before the answer.

        What cannot be sent, for want of a connection, a welcome or room, is said again with what waits for an answer.
        """
        if self._socket is None or not self._conversation.greeting:
            await self._say(frame)

    async def _say(self, frame: bytes) -> None:
        if self._socket is None:
            raise EngineLost(f"the client of {self.address} is not connected")
        self._sent = time.monotonic()
        with suppress(zmq.Again):
            await self._socket.send(frame, zmq.NOBLOCK)

    async def _try(self, frame: bytes) -> None:
        """Say what nobody waits for. While the pipe is full it is not said: `_keep_alive` will notice the silence."""
        with suppress(EngineLost):
            await self._say(frame)

    async def _receive(self) -> None:
        """What waits behind a frame is read without asking the loop, which would cost several times the reading."""
        decoder = codec.for_client()
        waiting: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        while True:
            await self._take(decoder, await self._socket.recv())
            with suppress(zmq.Again):
                for _ in range(_MOST_AT_ONCE):
                    await self._take(decoder, waiting.recv(_NOBLOCK))
            await asyncio.sleep(0)  # the streams' readers have their turn

    async def _take(self, decoder: codec.Decoder[messages.ToClient], frame: bytes) -> None:
        self._heard = time.monotonic()
        try:
            message = decoder.decode(frame)
        except PeerError as error:
            self._conversation.fail_all(PeerError(f"{self.address}: {error}"))
            return
        for answer in self._conversation.feed(message):
            await self._try(answer)
        if isinstance(message, messages.Welcome):
            self.welcome = message
            self._welcomed.set()

    async def _keep_alive(self) -> None:
        """Show that we are there; a long queue is silent too, so ask before giving the engine up."""
        asked = time.monotonic()
        while True:
            keep_alive_s = self.welcome.keep_alive_s if self.welcome else self.timeout_s
            await asyncio.sleep(min(keep_alive_s, self.timeout_s / 4) / 2)
            now = time.monotonic()
            if self._conversation.num_open == 0:
                self._heard = asked = now
            if now - self._heard > self.timeout_s:
                self._conversation.fail_all(self._conversation.lost(self.timeout_s))
                self._heard = now
            elif now - asked > self.timeout_s / 4:
                asked = now
                for frame in self._conversation.nudge():
                    await self._try(frame)
                self._conversation.ask(messages.Health, _Sink())
                await self._try(codec.encode(messages.GetHealth()))
            elif now - self._sent >= keep_alive_s:
                await self._try(codec.encode(messages.KeepAlive()))
