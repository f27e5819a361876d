"""A gateway with the OpenAI API over one engine: completions and chats, whole or as server-sent events.

Owns the HTTP side: one `AsyncClient` for all callers, a stream of the engine for each sample, and what becomes of both
when a caller leaves. `asked.py` reads what callers ask, `said.py` writes what they hear.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from asked import Ask, Asked, Bad, chat, completion
from chat import Render
from dsparkd import AsyncClient, AsyncStream, EngineError, Refused
from dsparkd.scheduler.wire import messages as wire
from said import DONE, Chat, Completion, Told, Usage, error_of, event
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CHAT = "/v1/chat/completions"
WRONG = (Bad, EngineError, HTTPException, ClientDisconnect, Exception)  # the last: our own bugs


def make_app(address: str, *, model: str, template: Render | None) -> Starlette:
    """Return the application; it connects when it starts and says goodbye when it ends."""
    gateway = Gateway(address, model=model, template=template)
    return Starlette(
        routes=[
            Route("/v1/completions", gateway.completions, methods=["POST"]),
            Route(CHAT, gateway.chat, methods=["POST"]),
            Route("/v1/models", gateway.models),
            Route("/v1/models/{name:path}", gateway.one_model),
            Route("/health", gateway.health),
        ],
        exception_handlers=dict.fromkeys(WRONG, gateway.refuse),
        lifespan=gateway.lifespan,
    )


class Gateway:
    """The routes. Every request of theirs is one of the engine's, or `n` of them."""

    def __init__(self, address: str, *, model: str, template: Render | None) -> None:
        self._address, self._model, self._template = address, model, template
        self._client: AsyncClient
        self._max_model_len = 0

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with AsyncClient(self._address) as client:
            if client.welcome is None or not client.welcome.has_text:
                raise SystemExit(f"{self._address}: this engine has no tokenizer, and a gateway without text is none")
            self._client, self._max_model_len = client, client.welcome.max_model_len
            yield

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, lambda body: completion(body, model=self._model), Completion(self._model))

    async def chat(self, request: Request) -> Response:
        def ask(body: dict[str, Any]) -> Asked:
            return chat(body, model=self._model, render=self._template, max_model_len=self._max_model_len)

        return await self._answer(request, ask, Chat(self._model))

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def one_model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self._model:
            raise Bad("model", f"model = {name!r}: expected {self._model!r}", code="model_not_found", status=404)
        return JSONResponse(self._described())

    async def health(self, request: Request) -> Response:
        health = await self._client.health()
        return JSONResponse({"ok": health.ok, "reasons": health.reasons}, 200 if health.ok else 503)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Everything that goes wrong is told in the shape of the API; faults of ours are logged, too."""
        if isinstance(error, HTTPException):
            error.detail = f"{request.method} {request.url.path}: {error.detail}"
        given = "messages" if request.url.path.endswith(CHAT) else "prompt"
        status, body = error_of(error, address=self._address, given=given)
        return JSONResponse(body, status, getattr(error, "headers", None))

    def _described(self) -> dict[str, Any]:
        return {"id": self._model, "object": "model", "created": 0, "owned_by": "dsparkd"}

    async def _answer(self, request: Request, ask: Ask, shape: Completion) -> Response:
        """Submit, wait until all are accepted (a refusal is an HTTP error then), and tell what comes."""
        asked = ask(await _body(request))
        async with AsyncExitStack() as stack:
            streams = await self._client.samples(asked.prompt, n=asked.n, **asked.options)
            await stack.enter_async_context(left_with_the_caller(request, streams))
            for stream in streams:
                await anext(stream)
            if asked.stream:
                events = _events(streams, asked, shape, stack.pop_all(), self._address)
                return StreamingResponse(events, media_type="text/event-stream")
            results = [await stream.result() for stream in streams]
            if wrong := next((one for one in results if one.error), None):
                raise Refused(wrong.finish_reason, str(wrong.error))
            choices = [
                shape.choice(index, one.text or "", _told(asked, one), one.finish_reason)
                for index, one in enumerate(results)
            ]
            usage = Usage(results[0].prompt_len, sum(len(one.token_ids) for one in results))
            return JSONResponse(shape.whole(choices, usage))


@asynccontextmanager
async def left_with_the_caller(request: Request, streams: Sequence[AsyncStream]) -> AsyncIterator[None]:
    """Cancel the requests when the caller hangs up, or when what is done with them fails."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        with suppress(EngineError):  # an engine that is gone has nothing left to cancel
            for stream in streams:
                await stream.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        for stream in streams:
            await stream.close()


async def _events(
    streams: Sequence[AsyncStream], asked: Asked, shape: Completion, stack: AsyncExitStack, address: str
) -> AsyncIterator[bytes]:
    """The samples' pieces as they come, then the usage for who asked for it."""
    no_usage: dict[str, Any] = {"usage": None} if asked.include_usage else {}
    used = Usage(0, 0)
    async with stack:
        for index in range(len(streams)):
            if (first := shape.first(index)) is not None:
                yield event(shape.piece([first], no_usage))
        try:
            async for index, message in _merged(streams):
                reason = None
                if isinstance(message, wire.Finished):
                    if message.state == "FAILED":
                        raise Refused(message.reason, message.message or message.reason)
                    used = Usage(message.prompt_len, used.completion_tokens + message.output_len)
                    reason = message.reason
                told = _told(asked, message) if isinstance(message, wire.Tokens) else None
                if message.text or told or reason:
                    yield event(shape.piece([shape.part(index, message.text or "", told, reason)], no_usage))
        except EngineError as error:
            yield event(error_of(error, address=address)[1])
            return
        if asked.include_usage:
            yield event(shape.piece([], {"usage": used.said()}))
        yield DONE


async def _merged(streams: Sequence[AsyncStream]) -> AsyncIterator[tuple[int, wire.Tokens | wire.Finished]]:
    """All messages of all streams, each stream's in order."""
    waiting = {asyncio.ensure_future(anext(stream)): index for index, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index, message = waiting.pop(task), task.result()
                yield index, message
                if not isinstance(message, wire.Finished):
                    waiting[asyncio.ensure_future(anext(streams[index]))] = index
    finally:
        for task in waiting:
            task.cancel()


def _told(asked: Asked, one: Any) -> Told | None:
    """Log-probabilities of a message or a result, for who asked for them."""
    if asked.num_top is None or not one.token_ids:
        return None
    tops = one.top_logprobs or [None] * len(one.token_ids)
    each = zip(one.token_ids, one.logprobs or (), tops, strict=False)  # none are told of tokens of an earlier worker
    return [(token_id, logprob, list(best or ())) for token_id, logprob, best in each if logprob is not None]


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except RecursionError as error:
        raise Bad(None, "the body: nested too deeply to be read") from error
    except ValueError as error:
        raise Bad(None, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Bad(None, "the body: expected a JSON object")
    return body
