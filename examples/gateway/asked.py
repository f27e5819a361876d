"""What a caller asks, judged: the body of an OpenAI call to a prompt and options of the engine.

Owns the fields that are known here. Values are judged by the engine's own rules, before anything is sent, so that every
wrong field is named in one answer, by the name that the caller gave it; a field that would be ignored is refused.
"""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec
from chat import Messages, Render, Unrenderable
from dsparkd import Refused
from dsparkd.scheduler.service.options import read_options
from dsparkd.scheduler.wire.option_rules import expected_of

MOST_SAMPLES = 128
MOST_TOLD = 20  # problems that one answer names
# Options of the engine that OpenAI does not have, under the engine's own names (docs/protocol.md).
OWN = ("top_k", "min_p", "min_tokens", "ignore_eos", "stop_token_ids", "max_draft_len", "priority", "deadline_ms",
       "cache_salt")  # fmt: skip
SAME = ("temperature", "top_p", "seed")  # under one name in both
# Fields that are not offered, and the value that asks for nothing, with its types: false is no 0 here.
NOTHING_ASKED: Mapping[str, tuple[Any, tuple[type, ...]]] = {
    "presence_penalty": (0, (int, float)),
    "frequency_penalty": (0, (int, float)),
    "logit_bias": ({}, (dict,)),
    "best_of": (1, (int,)),
    "echo": (False, (bool,)),
    "store": (False, (bool,)),
    "response_format": ({"type": "text"}, (dict,)),
}
SURROGATES = "text without lone surrogates"  # which JSON can say, and UTF-8 cannot


class _Glance(reprlib.Repr):
    """A value as the caller may know it again, and no more of it than that: answers stay short."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring = 2, 80

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"


SHOWN = _Glance()


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
    prompt = given.prompt()
    given.longest("max_tokens", default=16)
    return given.asked(lambda: prompt, given.take_num_top("logprobs"))


def chat(body: dict[str, Any], *, model: str, render: Render | None, max_model_len: int) -> Asked:
    """Of POST /v1/chat/completions. Raises `Bad`."""
    if render is None:
        raise Bad("messages", "chat needs a template, and this gateway was started without one", code="no_template")
    given = _Given(body, model)
    messages = given.messages()
    given.longest("max_completion_tokens", "max_tokens", default=max_model_len)
    num_top = (given.take_num_top("top_logprobs") or 0) if given.flag("logprobs") else None
    given.refuse("top_logprobs", "logprobs = true beside it")

    def rendered() -> str:
        try:
            return render(messages)
        except Unrenderable as error:
            raise Bad("messages", f"messages: the checkpoint's template refuses them: {error}") from error

    return given.asked(rendered, num_top)


class _Problems:
    """What is wrong with a body, until `told`."""

    def __init__(self) -> None:
        self._problems: list[Bad] = []

    def wrong(self, param: str, value: Any, expected: str, *, code: str | None = None, status: int = 400) -> None:
        said = f"{param}: missing" if value is None else f"{param} = {SHOWN.repr(value)}:"
        message = f"{said}{',' if value is None else ''} expected {expected}"
        self._problems.append(Bad(param, message, code=code, status=status))

    def not_offered(self, place: str, fields: Mapping[str, Any]) -> None:
        """All of these but those that are null, or have the one value that asks for nothing."""
        for name, value in fields.items():
            nothing, kinds = NOTHING_ASKED.get(name, (None, ())) if not place else (None, ())
            if value is None or (type(value) in kinds and value == nothing):
                continue
            shown = name if name and name.isprintable() and len(name) <= SHOWN.maxstring else SHOWN.repr(name)
            message = f"{place}{shown} = {SHOWN.repr(value)}: not offered"
            message += f", expected {SHOWN.repr(nothing)} or none" if kinds else ""
            self._problems.append(Bad(f"{place}{shown}", message, code="unsupported_parameter"))

    def text(self, param: str, value: Any, expected: str) -> str:
        if not isinstance(value, str):
            self.wrong(param, value, expected)
            return ""
        if not _is_utf8(value):
            self.wrong(param, value, SURROGATES)
        return value

    def told(self) -> None:
        """Raise one `Bad` of all of them: the first gives the field and the status, the message names each."""
        if self._problems:
            first, more = self._problems[0], len(self._problems) - MOST_TOLD
            messages = [str(one) for one in self._problems[:MOST_TOLD]] + ([f"and {more} more"] if more > 0 else [])
            raise Bad(first.param, "; ".join(messages), code=first.code, status=first.status)


class _Given(_Problems):
    """The fields of a body; null is the same as absent."""

    def __init__(self, body: dict[str, Any], model: str) -> None:
        super().__init__()
        self._left = {name: value for name, value in body.items() if value is not None}
        self._options: dict[str, Any] = {}
        self._longest = ""
        asked = self._left.pop("model", None)
        if not isinstance(asked, str):
            self.wrong("model", asked, repr(model))
        elif asked != model:
            self.wrong("model", asked, repr(model), code="model_not_found", status=404)

    def prompt(self) -> str | list[int]:
        given, expected = self._left.pop("prompt", None), "one text, or one list of token ids"
        if not isinstance(given, list):
            return self.text("prompt", given, expected)
        if not given or not all(type(one) is int for one in given):
            self.wrong("prompt", given, expected)
        elif (at := next((at for at, one in enumerate(given) if not 0 <= one < 2**63), None)) is not None:
            self.wrong(f"prompt[{at}]", given[at], "a token id")
        return given

    def messages(self) -> Messages:
        given = self._left.pop("messages", None)
        if not isinstance(given, list) or not given:
            self.wrong("messages", given, "a list of one message or more")
            return []
        return [self._message(one, f"messages[{index}]") for index, one in enumerate(given)]

    def longest(self, *names: str, default: int) -> None:
        """The engine's `max_tokens`, under one of these names: the first is the one to use."""
        given = {name: self._left.pop(name) for name in names if name in self._left}
        self._longest = f"{names[0]} = {default}, its default"
        self._options["max_tokens"] = default
        for index, (name, value) in enumerate(given.items()):
            if index:
                self.wrong(name, value, f"none beside {next(iter(given))}")
            elif self._option(name, "max_tokens", value):
                self._longest = f"{name} = {value}"

    def take_num_top(self, name: str) -> int | None:
        value = self._left.pop(name, None)
        if value is not None:
            self._option(name, "top_logprobs", value, logprobs=True)
        return value

    def refuse(self, name: str, expected: str) -> None:
        if name in self._left:
            self.wrong(name, self._left.pop(name), expected)

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if type(value) is not bool:
            self.wrong(name, value, "true or false")
        return value is True

    def asked(self, prompt: Callable[[], str | list[int]], num_top: int | None) -> Asked:
        """Take the fields that both calls have, and refuse what is left."""
        self._options |= {"temperature": 1.0} | ({} if num_top is None else {"logprobs": True, "top_logprobs": num_top})
        for name in ("user", "stop", *SAME, *OWN):
            if name in self._left:
                self._option(name, {"user": "label"}.get(name, name), self._left.pop(name))
        n, stream = self._left.pop("n", 1), self.flag("stream")
        if type(n) is not int or not 1 <= n <= MOST_SAMPLES:
            self.wrong("n", n, f"an integer in 1..{MOST_SAMPLES}")
        usage = self._include_usage(stream)
        if self._options.get("min_tokens", 0) > self._options["max_tokens"]:
            self.wrong("min_tokens", self._options["min_tokens"], f"at most {self._longest}")
        self.not_offered("", self._left)
        self.told()
        return Asked(prompt=prompt(), options=self._options, n=n, stream=stream, include_usage=usage, num_top=num_top)

    def _option(self, name: str, under: str, value: Any, **beside: Any) -> bool:
        """Keep an option of the engine if its rule for it holds; `name` is what the caller calls it."""
        meant, expected = value, expected_of(under)
        if name == "stop":  # a text alone is a list of one
            meant, expected = [value] if isinstance(value, str) else value, f"a text, or {expected}"
        try:
            read_options(msgspec.Raw(msgspec.msgpack.encode({under: meant, **beside})))
        except UnicodeEncodeError:
            self.wrong(name, value, SURROGATES, code="BAD_OPTION")
        except (Refused, OverflowError, RecursionError):
            self.wrong(name, value, expected, code="BAD_OPTION")
        else:
            self._options[under] = meant
            return True
        return False

    def _include_usage(self, stream: bool) -> bool:
        given = self._left.pop("stream_options", None)
        if given is None:
            return False
        if not isinstance(given, dict):
            self.wrong("stream_options", given, "an object with include_usage")
            return False
        usage = given.get("include_usage")
        if usage is not None and type(usage) is not bool:
            self.wrong("stream_options.include_usage", usage, "true or false")
        self.not_offered("stream_options.", {name: given[name] for name in given if name != "include_usage"})
        if given and not stream:
            self.wrong("stream_options", given, "stream = true beside it")
        return usage is True

    def _message(self, given: Any, place: str) -> dict[str, str]:
        if not isinstance(given, dict):
            self.wrong(place, given, "an object with role and content")
            return {}
        self.not_offered(f"{place}.", {name: given[name] for name in given if name not in ("role", "content")})
        role = self.text(f"{place}.role", given.get("role"), "text")
        content, place = given.get("content"), f"{place}.content"
        if isinstance(content, list) and content:
            content = "".join(self._part(part, f"{place}[{index}]") for index, part in enumerate(content))
        return {"role": role, "content": self.text(place, content, "text, or a list of parts of type text")}

    def _part(self, given: Any, place: str) -> str:
        if not isinstance(given, dict):
            self.wrong(place, given, "an object with type and text")
            return ""
        if given.get("type") != "text":
            self.wrong(f"{place}.type", given.get("type"), "'text', no other is offered", code="unsupported_parameter")
            return ""
        self.not_offered(f"{place}.", {name: given[name] for name in given if name not in ("type", "text")})
        return self.text(f"{place}.text", given.get("text"), "text")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Ask = Callable[[dict[str, Any]], Asked]
