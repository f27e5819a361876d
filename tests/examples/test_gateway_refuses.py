"""What the gateway refuses: every wrong field, by the caller's own name for it, and its value."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the gateway's own extra is not installed")

MODEL = "dsparkd"
SAID = [{"role": "user", "content": "x"}]
WHOLE = {"completions": {"model": MODEL, "prompt": "x"}, "chat/completions": {"model": MODEL, "messages": SAID}}

# Values of JSON by kind. A field takes none of a kind that is not its own.
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(1, 20),
    "half": st.integers(0, 9).map(lambda one: one + 0.5),
    "below": st.integers(-(2**80), -1),
    "beyond": st.integers(2**64, 2**80),
    "text": st.text(st.characters(exclude_characters=";", codec="utf-8"), max_size=3),
    "torn": st.just("a\ud800"),
    "list": st.lists(st.booleans(), max_size=2),
    "texts": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
    "map": st.dictionaries(st.sampled_from(["", "a"]), st.none(), max_size=1),
}
INTEGERS = {name: {"int"} for name in ("max_tokens", "n", "seed", "top_k", "max_draft_len", "deadline_ms")}
BOTH: dict[str, set[str]] = {
    **INTEGERS,
    "priority": {"int", "below"},
    "min_tokens": {"int"},
    "temperature": {"int", "half", "beyond"},
    "top_p": {"int", "half"},
    "min_p": {"int", "half"},
    "ignore_eos": {"bool"},
    "stop_token_ids": {"list"},
    "stop": {"text", "texts", "list"},
    "cache_salt": {"text"},
    "user": {"text"},
    "stream": {"bool"},
    "stream_options": {"map"},
    "presence_penalty": set(),
    "frequency_penalty": set(),
    "logit_bias": {"map"},
    "best_of": {"int"},
    "echo": {"bool"},
    "store": {"bool"},
    "response_format": {"map"},
    "top_z": set(),
}
FIELDS = {
    "completions": {**BOTH, "prompt": {"text"}, "logprobs": {"int"}, "top_logprobs": set()},
    "chat/completions": {**BOTH, "messages": set(), "logprobs": {"bool"}, "top_logprobs": {"int"},
                         "max_completion_tokens": {"int"}, "prompt": set()},
}  # fmt: skip


@pytest.fixture
def read(gateway_folder: Path) -> Any:
    """Judge a body as a route does; the field that is refused, and what is said of it."""
    asked = importlib.import_module("asked")
    render = importlib.import_module("chat").plain_chat

    def read(route: str, body: dict[str, Any]) -> tuple[str | None, str]:
        try:
            if route == "completions":
                asked.completion(body, model=MODEL)
            else:
                asked.chat(body, model=MODEL, render=render, max_model_len=512)
        except asked.Bad as bad:
            assert bad.status == 400
            return bad.param, str(bad)
        raise AssertionError(f"taken: {body!r}")

    return read


@st.composite
def wrong(draw: st.DrawFn, most: int) -> tuple[str, dict[str, Any]]:
    route = draw(st.sampled_from(sorted(FIELDS)))
    fields = draw(st.lists(st.sampled_from(sorted(FIELDS[route])), min_size=1, max_size=most, unique=True))
    if route.startswith("chat") and {"max_tokens", "max_completion_tokens"} <= set(fields):
        fields.remove("max_tokens")  # refused beside each other, whatever they are
    return route, {
        name: draw(st.one_of(*(KINDS[kind] for kind in KINDS if kind not in FIELDS[route][name]))) for name in fields
    }


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wrong(most=3))
def test_every_value_of_a_wrong_type_is_refused_with_its_field_and_what_was_expected(read: Any, case: Any) -> None:
    route, fields = case
    fields = {name: value for name, value in fields.items() if not _asks_for_nothing(name, value)}
    if not fields:
        return
    param, message = read(route, {**WHOLE[route], **fields})
    sentences = message.split("; ")
    for name in fields:
        assert any(one.startswith((f"{name} = ", f"{name}[0]")) for one in sentences), (name, message)
    assert param is not None
    assert param.partition("[")[0] in fields
    assert all(": expected " in one or ": not offered" in one for one in sentences)


def _asks_for_nothing(name: str, value: Any) -> bool:
    return name.endswith("_penalty") and type(value) is int and value == 0


PARTS = st.one_of(
    *(KINDS[kind] for kind in KINDS),
    st.none(),
    st.builds(lambda kind: {"type": kind, "text": "x"}, st.sampled_from(["image_url", "input_audio", 5, None])),
    st.builds(
        lambda text: {"type": "text", "text": text}, st.one_of(st.none(), *(KINDS[k] for k in KINDS if k != "text"))
    ),
    st.just({"type": "text", "text": "x", "cache_control": {}}),
    st.just({"type": "image_url", "image_url": {"url": "x"}}),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS, st.integers(0, 2))
def test_a_part_of_a_message_that_is_no_text_is_refused_with_its_place(read: Any, part: Any, at: int) -> None:
    parts: list[Any] = [{"type": "text", "text": "x"}] * 2
    parts.insert(at, part)
    param, message = read("chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": parts}]})
    assert param is not None
    assert param.startswith(f"messages[0].content[{at}]")
    assert message.startswith(param)


@pytest.mark.parametrize("value", ["no", 1, 0, [], {}])
def test_whether_to_tell_the_usage_is_true_or_false(read: Any, value: Any) -> None:
    more = {"stream": True, "stream_options": {"include_usage": value}}
    param, message = read("completions", {**WHOLE["completions"], **more})
    assert (param, message.endswith("expected true or false")) == ("stream_options.include_usage", True)


@pytest.mark.parametrize(
    ("route", "more", "said"),
    [
        ("completions", {"user": 5}, "user = 5: expected text of at most 256 characters"),
        ("completions", {"logprobs": 21}, "logprobs = 21: expected an integer in 0..20"),
        ("completions", {"logprobs": True}, "logprobs = true: expected an integer in 0..20"),
        ("chat/completions", {"max_completion_tokens": "5"}, "max_completion_tokens = '5': expected an integer in 1.."),
        ("completions", {"frequency_penalty": 0.5}, "frequency_penalty = 0.5: not offered, expected 0 or none"),
        ("completions", {"best_of": True}, "best_of = true: not offered, expected 1 or none"),
        ("completions", {"min_tokens": 30}, "min_tokens = 30: expected at most max_tokens = 16, its default"),
        ("chat/completions", {"min_tokens": 9, "max_completion_tokens": 8}, "at most max_completion_tokens = 8"),
        ("chat/completions", {"max_tokens": 9, "max_completion_tokens": 8}, "max_tokens = 9: expected none beside"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs = 2: expected logprobs = true beside it"),
        ("completions", {"prompt": None}, "prompt: missing, expected one text"),
        ("completions", {"model": None}, "model: missing, expected 'dsparkd'"),
    ],
)  # fmt: skip
def test_a_caller_reads_its_own_names_and_values(read: Any, route: str, more: Any, said: str) -> None:
    param, message = read(route, {**WHOLE[route], **more})
    assert said in message
    assert message.startswith(str(param))


def test_a_body_that_is_wrong_everywhere_is_answered_shortly(read: Any) -> None:
    _, message = read(
        "completions", {**WHOLE["completions"], **{"x" * 10_000 + str(at): "y" * 10_000 for at in range(99)}}
    )
    assert message.endswith("; and 79 more")
    assert len(message) < 8_000
