"""What a caller asks, judged: the body of an OpenAI call to a prompt and options of the engine.

Owns the fields that are known here. The engine judges their values; a field that would be ignored is refused by name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from chat import Messages, Render, Unrenderable

MOST_SAMPLES = 128
# Options of the engine that OpenAI does not have, under the engine's own names (docs/protocol.md).
OWN = ("top_k", "min_p", "min_tokens", "ignore_eos", "stop_token_ids", "max_draft_len", "priority", "deadline_ms",
       "cache_salt")  # fmt: skip
SAME = ("temperature", "top_p", "seed")  # under one name in both
# Fields that are not offered, and the value that asks for nothing.
NOTHING_ASKED: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "store": False,
    "response_format": {"type": "text"},
}


class Bad(Exception):
    """A call that cannot be answered: the field `param`, and what was expected."""

    def __init__(self, param: str | None, message: str, *, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@attrs.frozen(kw_only=True)
class Asked:
    prompt: str | list[int]
    options: dict[str, Any]
    n: int
    stream: bool
    include_usage: bool
    num_top: int | None  # log-probabilities beside the token's own; None: none at all


def completion(body: dict[str, Any], *, model: str) -> Asked:
    """Of POST /v1/completions. Raises `Bad`."""
    given = _Given(body, model)
    prompt = given.take("prompt")
    if not isinstance(prompt, str) and not _are_ids(prompt):
        raise Bad("prompt", "prompt: expected one text, or one list of token ids")
    num_top = given.take("logprobs")
    if num_top is not None and type(num_top) is not int:
        raise Bad("logprobs", f"logprobs = {num_top!r}: expected an integer")
    return given.asked(prompt, num_top, max_tokens=16)


def chat(body: dict[str, Any], *, model: str, render: Render | None, max_model_len: int) -> Asked:
    """Of POST /v1/chat/completions. Raises `Bad`."""
    if render is None:
        raise Bad("messages", "chat needs a template, and this gateway was started without one", code="no_template")
    given = _Given(body, model)
    messages = _messages(given.take("messages"))
    wanted, num_top = given.take("logprobs", False), given.take("top_logprobs")
    if type(wanted) is not bool:
        raise Bad("logprobs", f"logprobs = {wanted!r}: expected true or false")
    if num_top is not None and not wanted:
        raise Bad("top_logprobs", "top_logprobs: expected logprobs = true beside it")
    longest = given.take("max_completion_tokens")
    if longest is not None and body.get("max_tokens") is not None:
        raise Bad("max_tokens", "max_tokens and max_completion_tokens: expected one of them")
    try:
        prompt = render(messages)
    except Unrenderable as error:
        raise Bad("messages", f"messages: the checkpoint's template refuses them: {error}") from error
    return given.asked(prompt, (num_top or 0) if wanted else None, max_tokens=longest or max_model_len)


class _Given:
    """The fields of a body; null is the same as absent."""

    def __init__(self, body: dict[str, Any], model: str) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        asked = self.take("model")
        if asked != model:
            message = f"model = {asked!r}: expected {model!r}"
            raise Bad("model", message, code="model_not_found", status=404)

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def asked(self, prompt: str | list[int], num_top: int | None, *, max_tokens: int) -> Asked:
        """Take the fields that both calls have, and refuse what is left."""
        options = {"max_tokens": self.take("max_tokens", max_tokens), "temperature": self.take("temperature", 1.0)}
        options |= {name: self._left.pop(name) for name in (*SAME, *OWN) if name in self._left}
        stop = self.take("stop", [])
        options["stop"] = [stop] if isinstance(stop, str) else stop
        options["label"] = self.take("user")
        if num_top is not None:
            options |= {"logprobs": True, "top_logprobs": num_top}
        n, stream = self.take("n", 1), self._flag("stream")
        if type(n) is not int or not 1 <= n <= MOST_SAMPLES:
            raise Bad("n", f"n = {n!r}: expected an integer in 1..{MOST_SAMPLES}")
        usage = self._include_usage(stream)
        for name, value in self._left.items():
            if name not in NOTHING_ASKED or value != NOTHING_ASKED[name]:
                raise Bad(name, f"{name}: not offered", code="unsupported_parameter")
        return Asked(prompt=prompt, options=options, n=n, stream=stream, include_usage=usage, num_top=num_top)

    def _flag(self, name: str) -> bool:
        value = self.take(name, False)
        if type(value) is not bool:
            raise Bad(name, f"{name} = {value!r}: expected true or false")
        return value

    def _include_usage(self, stream: bool) -> bool:
        given = self.take("stream_options", {})
        if not isinstance(given, dict) or given.keys() - {"include_usage"} or (given and not stream):
            raise Bad("stream_options", f"stream_options = {given!r}: expected include_usage alone, with stream = true")
        return bool(given.get("include_usage"))


def _messages(given: Any) -> Messages:
    if not isinstance(given, list) or not given:
        raise Bad("messages", "messages: expected a list of one message or more")
    return [_message(one, f"messages[{index}]") for index, one in enumerate(given)]


def _message(given: Any, place: str) -> dict[str, str]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise Bad(place, f"{place}: expected an object with role and content")
    for name in (name for name, value in given.items() if name not in ("role", "content") and value is not None):
        raise Bad(f"{place}.{name}", f"{place}.{name}: not offered", code="unsupported_parameter")
    content = given.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.keys() == _TEXT_PART for part in content):
        content = "".join(str(part["text"]) for part in content if part["type"] == "text")
    if not isinstance(content, str):
        raise Bad(f"{place}.content", f"{place}.content: expected text, or parts of type text")
    return {"role": given["role"], "content": content}


_TEXT_PART = {"type", "text"}


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(one) is int for one in prompt)


Ask = Callable[[dict[str, Any]], Asked]
