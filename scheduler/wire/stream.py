"""`Stream` and `AsyncStream`: the messages of one request, as a thread or a task reads them.

Owns one stream's queue and what was read of it; `client.py` or `client_async.py` makes it and puts the messages in.
"""

import queue
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Self

from ...statemachine.errors import EngineError
from . import messages
from .result import Result, ResultBuilder, StreamMessage

if TYPE_CHECKING:
    from .client import Client
    from .client_async import AsyncClient, _Sink


class Waiting(queue.SimpleQueue[Any]):
    """Where a thread waits, and since when."""

    def __init__(self) -> None:
        self.asked_s = time.monotonic()


class Stream(Iterator[StreamMessage]):
    """The messages of one request, ending after the terminal one. Leaving it early (`with`, or dropping it) cancels.

    Raises `Refused` when the request was refused and `EngineLost` when the engine does not answer.
    """

    def __init__(self, client: "Client", request_id: str, sink: Waiting) -> None:
        self.request_id = request_id
        self._client = client
        self._queue = sink
        self._ended = False
        self._builder = ResultBuilder()

    def __next__(self) -> StreamMessage:
        if self._ended:
            raise StopIteration
        item = self._queue.get()
        self._ended = isinstance(item, messages.Finished | EngineError)
        if isinstance(item, messages.Finished):
            self._client._was_read(self.request_id)
        if isinstance(item, EngineError):
            raise item
        self._builder.add(item)
        return item  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancel it and return whether there was something to cancel; its terminal message still comes."""
        return not self._ended and self._client.cancel(self.request_id)

    def result(self) -> Result:
        """Consume the rest and return the whole, what was read before included."""
        deque(self, maxlen=0)
        return self._builder.whole()

    def close(self) -> None:
        """Leave it: cancelled if it has not ended."""
        if not self._ended:
            self._ended = True
            self._client._leave(self.request_id, self._queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream(AsyncIterator[StreamMessage]):
    """The messages of one request, ending after the terminal one. Leaving it early (`async with`, `close`, or dropping
    it) cancels."""

    def __init__(self, client: "AsyncClient", request_id: str, sink: "_Sink") -> None:
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
            self._client._was_read(self.request_id)
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
            self._client._leave(self.request_id, self._queue)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._client._drop(self.request_id, self._queue)
