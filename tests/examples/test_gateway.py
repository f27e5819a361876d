"""The gateway, asked by the `openai` package: whole and streamed answers, refusals, callers that hang up."""

import http.client
import importlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, EngineLost, LocalError, Refused

openai = pytest.importorskip("openai", reason="the openai package (extra dev) is not installed")
pytest.importorskip("starlette", reason="the gateway's own extra is not installed")

PROMPT = "def main():"


def eventually(found: Any) -> Any:
    until = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < until
    return value


class Served:
    """One gateway process."""

    def __init__(self, folder: Path, address: str, *flags: str) -> None:
        command = [sys.executable, str(folder / "gateway"), "--connect", address, "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the gateway did not start"
        self.openai = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        request = urllib.request.Request(f"{self.url}/{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> None:
        self.openai.close()
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def gateway(talking: Client) -> Iterator[Served]:
    served = Served(Path(__file__).parents[2] / "examples", talking.address, "--plain-chat")
    yield served
    served.stop()


def test_a_completion_says_what_the_engine_says_whole_and_streamed(gateway: Served, talking: Client) -> None:
    for options in ({"temperature": 0}, {"temperature": 0.9, "seed": 7, "top_p": 0.8}):
        expected = talking.generate(PROMPT, max_tokens=60, **options)
        asked = {"model": "dsparkd", "prompt": PROMPT, "max_tokens": 60, **options}
        whole = gateway.openai.completions.create(**asked)
        assert whole.choices[0].text == expected.text
        assert whole.choices[0].finish_reason == "length"
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (expected.prompt_len, 60)
        pieces = list(gateway.openai.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert "".join(choice.text for piece in pieces for choice in piece.choices) == expected.text
        assert [choice.finish_reason for piece in pieces for choice in piece.choices if choice.finish_reason] == [
            "length"
        ]
        assert sum(bool(piece.choices and piece.choices[0].text) for piece in pieces) > 5, "it streams"
        assert pieces[-1].usage.total_tokens == expected.prompt_len + 60


def test_a_chat_says_what_the_engine_says_to_its_rendered_prompt(gateway: Served, talking: Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    expected = talking.generate("system: Be brief.\nuser: Why?\nassistant:", max_tokens=40)
    asked = {"model": "dsparkd", "messages": messages, "max_tokens": 40, "temperature": 0}
    whole = gateway.openai.chat.completions.create(**asked)
    assert (whole.choices[0].message.role, whole.choices[0].message.content) == ("assistant", expected.text)
    pieces = list(gateway.openai.chat.completions.create(**asked, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected.text
    assert pieces[-1].choices[0].finish_reason == "length"


def test_samples_stops_and_log_probabilities_come_through(gateway: Served, talking: Client) -> None:
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": 24}
    expected = [stream.result() for stream in talking.samples(PROMPT, n=3, logprobs=True, top_logprobs=2, **asked)]
    asked |= {"model": "dsparkd", "prompt": PROMPT, "n": 3, "logprobs": 2}
    whole = gateway.openai.completions.create(**asked)
    assert [choice.text for choice in whole.choices] == [one.text for one in expected]
    for choice, one in zip(whole.choices, expected, strict=True):
        assert choice.logprobs.tokens == [f"token_id:{token_id}" for token_id in one.token_ids]
        assert choice.logprobs.token_logprobs == pytest.approx(one.logprobs)
        assert [len(best) for best in choice.logprobs.top_logprobs] == [2] * 24
    texts = {0: "", 1: "", 2: ""}
    for piece in gateway.openai.completions.create(**asked, stream=True):
        for choice in piece.choices:
            texts[choice.index] += choice.text
    assert [texts[index] for index in range(3)] == [one.text for one in expected]
    plain = expected[0].text or ""
    stop = plain[len(plain) // 2 :][:3]
    cut = gateway.openai.completions.create(**(asked | {"n": 1, "logprobs": None}), stop=[stop])
    assert cut.choices[0].text == plain[: plain.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    chat = gateway.openai.chat.completions.create(
        model="dsparkd", messages=[{"role": "user", "content": "x"}], max_tokens=4, logprobs=True, top_logprobs=2
    )
    assert [len(one.top_logprobs) for one in chat.choices[0].logprobs.content] == [2] * 4


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"extra_body": {"top_z": 1}}, "top_z"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"model": "gpt"}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_is_not_offered_is_refused_and_the_field_is_named(gateway: Served, more: Any, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        gateway.openai.completions.create(**({"model": "dsparkd", "prompt": PROMPT, "max_tokens": 4} | more))
    assert caught.value.status_code == (404 if param == "model" else 400)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": "x", "tool_calls": []}, "messages[0].tool_calls"),
        ({"content": "x"}, "messages[0].role"),
    ],
)
def test_what_a_message_may_not_hold_is_refused_with_its_place(gateway: Served, message: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        gateway.openai.chat.completions.create(model="dsparkd", messages=[message])
    assert caught.value.param == param


def test_what_asks_for_nothing_is_no_reason_to_refuse(gateway: Served) -> None:
    asked = {"model": "dsparkd", "prompt": PROMPT, "max_tokens": 2, "presence_penalty": 0, "echo": False, "best_of": 1}
    assert gateway.openai.completions.create(**asked, extra_body={"top_k": 5}, user="me").usage.completion_tokens == 2


def test_a_body_that_is_no_object_and_a_model_list(gateway: Served) -> None:
    for body in (b"{", b"[]"):
        status, said = gateway.post("completions", body)
        assert (status, said["error"]["type"]) == (400, "invalid_request_error")
    assert [one.id for one in gateway.openai.models.list()] == ["dsparkd"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Refused("QUEUE_FULL", "24 requests wait"), 429, "rate_limit_error"),
        (Refused("CLIENT_LIMIT", "3 requests are live"), 429, "rate_limit_error"),
        (Refused("DRAINING", "no new request"), 503, "server_error"),
        (Refused("WORKER_LOST", "no worker"), 503, "server_error"),
        (Refused("DEADLINE", "9 ms"), 504, "server_error"),
        (EngineLost("nobody there"), 503, "server_error"),
        (Refused("PROMPT_TOO_LONG", "600 tokens"), 400, "invalid_request_error"),
        (Refused("ROW_FAULT", "it raised"), 500, "server_error"),
        (LocalError("a bug"), 500, "server_error"),
    ],
    ids=lambda one: getattr(one, "code", None) or str(one),
)
def test_what_the_engine_refuses_becomes_a_status(gateway_folder: Path, error: Any, status: int, kind: str) -> None:
    said = importlib.import_module("said")
    found, body = said.error_of(error)
    assert (found, body["error"]["type"]) == (status, kind)
    assert body["error"]["code"] == getattr(error, "code", body["error"]["code"])


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_caller_that_hangs_up_cancels_its_request(gateway: Served, talking: Client, stream: bool) -> None:
    def cancelled() -> int:
        return int(talking.stats()["ended"].get("CANCELLED", 0))

    before, asked = cancelled(), {"model": "dsparkd", "prompt": PROMPT, "max_tokens": 480, "max_draft_len": 0}
    host = gateway.url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({**asked, "stream": stream}))
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    eventually(lambda: talking.stats()["requests"])
    connection.sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: cancelled() > before)
