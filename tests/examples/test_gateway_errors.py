"""Whatever goes wrong in the gateway is told as an OpenAI error object, without the engine's own affairs in it."""

import asyncio
import gc
import importlib
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dsparkd import Client, EngineLost, LocalError, Refused

pytest.importorskip("starlette", reason="the gateway's own extra is not installed")


class Asker:
    """A caller of the application without a socket between."""

    def __init__(self, address: str) -> None:
        template = importlib.import_module("chat").plain_chat
        self._app = importlib.import_module("app").make_app(address, model="a/b", template=template)

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        sent: list[Any] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return waiting.pop() if waiting else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        async def ask() -> None:
            scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
            async with self._app.router.lifespan_context(self._app):
                with suppress(ZeroDivisionError):  # which the server is to log
                    await self._app(scope, receive, send)

        asyncio.run(ask())
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, json.loads(b"".join(part.get("body", b"") for part in sent[1:]).decode())


@pytest.fixture
def http(gateway_folder: Path, talking: Client) -> Asker:
    return Asker(talking.address)


DEEP = b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", b'{"model":"a/b","prompt":"a","\\ud800":1}', 400),
        ("POST", "/v1/completions", b'{"model":"\\ud800","prompt":"a"}', 404),
        ("POST", "/v1/completions", b'{"model":"a/b","prompt":"\\ud800"}', 400),
        ("POST", "/v1/completions", b'{"model":"a/b","prompt":"a","stop":["\\ud800"]}', 400),
        ("POST", "/v1/chat/completions", b'{"model":"a/b","messages":[{"role":"a","content":"a","\\ud800":1}]}', 400),
        ("POST", "/v1/chat/completions", b'{"model":"a/b","messages":[{"role":"\\ud800","content":"a"}]}', 400),
        ("POST", "/v1/chat/completions", b'{"model":"a/b","messages":[{"\\ud800":{"\\ud800":"\\ud800"}}]}', 400),
        ("POST", "/v1/completions", DEEP, 400),
        ("POST", "/v1/completions", b'{"model":"a/b","prompt":"a","seed":' + b"9" * 5_000 + b"}", 400),
        ("POST", "/v1/completions", b"\xff", 400),
        ("POST", "/v1/completions", b'{"model":"a/b","prompt":[99999]}', 400),
        ("POST", "/v1/nowhere", b"{}", 404),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/v1/completions", b"", 405),
        ("POST", "/v1/models", b"", 405),
        ("GET", "/v1/models/gpt", b"", 404),
    ],
)  # fmt: skip
def test_whatever_is_asked_the_answer_is_an_openai_object(
    http: Asker, method: str, path: str, body: bytes, status: int
) -> None:
    found, headers, said = http(method, path, body)
    assert found == status, said
    error = said["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if status == 405:
        assert headers["allow"]


def test_a_model_is_described_by_its_name(http: Asker) -> None:
    assert http("GET", "/v1/models/a/b", b"")[2] == http("GET", "/v1/models", b"")[2]["data"][0]


def test_a_bug_of_ours_is_an_openai_error_too(http: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **more: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(importlib.import_module("app"), "completion", broken)
    status, _, said = http("POST", "/v1/completions", b"{}")
    assert (status, said["error"]["type"]) == (500, "server_error")
    assert "secret" not in json.dumps(said)


def test_a_full_queue_is_told_without_the_engines_address_and_our_ids(http: Asker) -> None:
    asked = {"model": "a/b", "prompt": "a", "n": 60, "max_tokens": 40}
    status, _, said = http("POST", "/v1/completions", json.dumps(asked).encode())
    assert status == 429
    assert said["error"]["message"].startswith("24 requests wait")


@pytest.mark.parametrize("kind", [EngineLost, LocalError, lambda text: Refused("DRAINING", text)])
def test_no_error_tells_the_engines_address(gateway_folder: Path, kind: Any) -> None:
    said = importlib.import_module("said")
    for text in ("{0}: request r-12/0: no", "{0}: no", "no engine answered at {0} for 30 s"):
        _, body = said.error_of(kind(text.format("ipc:///secret/e")), address="ipc:///secret/e")
        assert "secret" not in body["error"]["message"]
        assert "r-12" not in body["error"]["message"]


class LostStream:
    """Of an engine that is given up in the moment in which nobody waits for it any more."""

    async def cancel(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise EngineLost("nobody there") from None

    async def close(self) -> None:
        pass


def test_a_caller_that_leaves_a_dying_engine_leaves_no_task_that_failed_unheard(gateway_folder: Path) -> None:
    app, unheard = importlib.import_module("app"), []

    async def scenario() -> None:
        hung_up = asyncio.Event()

        async def receive() -> dict[str, str]:
            hung_up.set()
            return {"type": "http.disconnect"}

        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with app.left_with_the_caller(SimpleNamespace(receive=receive), [LostStream()]):
            await hung_up.wait()
        await asyncio.sleep(0)  # the watcher ends
        gc.collect()

    asyncio.run(scenario())
    assert unheard == []
