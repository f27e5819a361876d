"""What a caller says wrongly is refused at once and in one refusal: each key, its value and what was expected."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from dsparkd import AsyncClient, Client, Refused
from dsparkd.scheduler.service.options import read_options
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.frames import cancel_frame, id_of, resume_frame, submit_frame
from dsparkd.scheduler.wire.option_rules import judge
from hypothesis import given, settings
from hypothesis import strategies as st

NOWHERE = "ipc:///tmp/nobody-is-here/engine"
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
UNSAYABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "beyond 64 bits": ({"seed": 2**64}, ["seed = 18446744073709551616", "an integer in 0..2**63 - 1"]),
    "below 64 bits": (
        {"priority": -(2**70)},
        ["priority = -11805916", "an integer in -2**31..2**31 - 1"],
    ),
    "of thousands of digits": (
        {"max_tokens": 10**5000},
        ["max_tokens = an integer of 16610 bits", "integer in 1.."],
    ),
    "a list that holds such": ({"stop_token_ids": [2**64]}, ["stop_token_ids = [18446744073709551616]", "token ids"]),
    "no list": ({"stop_token_ids": range(3)}, ["stop_token_ids = range(0, 3)", "a list of token ids"]),
    "an array": ({"stop_token_ids": np.array([1])}, ["stop_token_ids = array([1])", "a list of token ids"]),
    "an integer of numpy": ({"top_k": np.int64(3)}, ["top_k = np.int64(3)", "an integer in 0.."]),
    "a number of numpy": ({"temperature": np.float32(0.5)}, ["temperature = np.float32(0.5)", "expected a"]),
    "half a character": ({"cache_salt": "\ud800"}, ["cache_salt = '\\ud800'", "text of at most"]),
    "half a character in a list": ({"stop": ["\ud800"]}, ["stop = ['\\ud800']", "a list of at most"]),
    "without end": ({"stop": CIRCLE}, ["stop = [", "a list of at most"]),
}
BAD_PROMPTS: dict[str, tuple[Any, list[str]]] = {
    "none": (None, ["prompt = None", "text, a list of token ids, or a list of messages"]),
    "a number": (5, ["prompt = 5"]),
    "bytes": (b"abc", ["prompt = b'abc'"]),
    "more bytes": (bytearray(b"abc"), ["prompt = bytearray(b'abc')"]),
    "a view of bytes": (memoryview(b"abc"), ["prompt = <memory"]),
    "an iterator": (iter([1, 2]), ["prompt = <list_iterator"]),
    "a set, which has no order": ({1}, ["prompt = {1}"]),
    "an array": (np.array([1]), ["prompt = array([1])"]),
    "one message": ({"role": "user", "content": "x"}, ["prompt = {'content'", "a list of messages"]),
    "half a character": ("\ud800", ["prompt = '\\ud800'", "text that is whole"]),
    "no token ids": ([1, 1.5, True, "a", 2**64], ["[1] = 1.5", "[2] = True", "[3] = 'a'", "[4] = 1844"]),
    "many of them": (["a"] * 9, ["prompt[4] = 'a'", "and 4 more"]),
    "half a message": ([{"role": "user"}], ["prompt[0] = {'role': 'user'}", "{role: text, content: text}"]),
    "half a character in a message": ([{"role": "user", "content": "\ud800"}], ["prompt[0] = ", "{role: text"]),
}  # fmt: skip


def refusal_of(act: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as caught:
        act()
    return caught.value


def submit(prompt: Any = (1, 2), request_id: Any = "name", **options: Any) -> bytes:
    return submit_frame(NOWHERE, prompt, request_id=request_id, options=options)


@pytest.mark.parametrize(("options", "named"), UNSAYABLE.values(), ids=UNSAYABLE.keys())
def test_an_option_that_cannot_be_sent_is_named_with_what_was_expected(
    options: dict[str, Any], named: list[str]
) -> None:
    refused = refusal_of(lambda: submit(**options))
    assert refused.code == "BAD_OPTION"
    assert [one for one in named if one not in str(refused)] == []


@pytest.mark.parametrize(("prompt", "named"), BAD_PROMPTS.values(), ids=BAD_PROMPTS.keys())
def test_a_prompt_that_is_none_is_named_with_what_was_expected(prompt: Any, named: list[str]) -> None:
    refused = refusal_of(lambda: submit(prompt))
    assert refused.code == "BAD_PROMPT"
    assert [one for one in named if one not in str(refused)] == []


@pytest.mark.parametrize("prompt", ["", "text", [], [1, 2], (1, 2), range(3), [-1], [{"role": "r", "content": "c"}]])
def test_what_the_engine_can_judge_is_left_to_it(prompt: Any) -> None:
    assert isinstance(codec.from_client().decode(submit(prompt, max_tokens=0, nonsense=1)), wire.Submit)


def test_one_refusal_lists_every_fault_of_a_request() -> None:
    refused = refusal_of(lambda: submit(None, 0, seed=2**64, temperature=-1, stop=("a",), top_k=np.int64(3)))
    assert refused.code == "BAD_OPTION"
    faults = ("request_id = 0", "prompt = None", "seed = 1844", "temperature = -1", "top_k = np.int64(3)")
    assert [one for one in faults if one not in str(refused)] == []
    assert "stop" not in str(refused)  # a tuple is sent as a list
    unknown = refusal_of(lambda: submit(seed=2**64, **{"\ud800": 1}))
    assert unknown.code == "UNSUPPORTED_OPTION"
    assert "seed = 1844" in str(unknown)
    at_odds = refusal_of(lambda: submit(None, max_tokens=3, min_tokens=4))
    assert "min_tokens = 4: expected at most max_tokens = 3" in str(at_odds)


@pytest.mark.parametrize("request_id", ["", 0, 5, b"x", "x" * 257, "\ud800", True, False])
def test_an_id_that_is_none_is_refused_and_never_replaced(request_id: Any) -> None:
    for act in (lambda: submit(request_id=request_id), lambda: id_of(NOWHERE, request_id)):
        refused = refusal_of(act)
        assert refused.code == "BAD_OPTION"
        assert "request_id = " in str(refused)


@pytest.mark.parametrize("from_index", [-1, 2**63, 1.0, "0", None, True])
def test_a_resume_and_a_cancel_name_what_is_wrong_with_them(from_index: Any) -> None:
    refused = refusal_of(lambda: resume_frame(NOWHERE, 5, from_index))  # type: ignore[arg-type]
    assert f"request_id = 5: expected text of 0..256 characters; from_index = {from_index!r}: expected" in str(refused)
    assert "request_id = None" in str(refusal_of(lambda: cancel_frame(NOWHERE, None)))  # type: ignore[arg-type]


def test_a_request_too_large_for_a_frame_is_refused_for_its_size() -> None:
    assert "bytes, more than" in str(refusal_of(lambda: submit("x" * 2**24)))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.integers(-1, 3), max_size=3), st.lists(st.text(max_size=3), max_size=3),
)  # fmt: skip
NAMES = st.sampled_from([*wire.RequestOptions.__struct_fields__, "n", "nonsense"])


@settings(deadline=None)
@given(options=st.dictionaries(NAMES, VALUES, max_size=5))
def test_client_and_engine_judge_options_alike(options: dict[str, Any]) -> None:
    unknown, problems = judge(options, {})
    code = "UNSUPPORTED_OPTION" if unknown else "BAD_OPTION"
    try:
        read_options(msgspec.Raw(msgspec.msgpack.encode(options)))
    except Refused as refused:
        assert (code, "; ".join(problems)) == (refused.code, str(refused))
    else:
        assert problems == []


BAD_CLIENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no time-out": ({"timeout_s": None}, "timeout_s = None: expected seconds"),
    "a time-out of nothing": ({"timeout_s": 0}, "timeout_s = 0: expected seconds"),
    "a negative time-out": ({"timeout_s": -1}, "timeout_s = -1: expected seconds"),
    "no number": ({"timeout_s": float("nan")}, "timeout_s = nan: expected seconds"),
    "no end": ({"timeout_s": float("inf")}, "timeout_s = inf: expected seconds"),
    "as good as no end": ({"timeout_s": 10**400}, "timeout_s = 1000"),
    "text for a time-out": ({"timeout_s": "5"}, "timeout_s = '5': expected seconds"),
    "a truth value": ({"timeout_s": True}, "timeout_s = True: expected seconds"),
    "a number for an address": ({"address": 5}, "address = 5: expected text"),
    "no address": ({"address": None}, "address = None: expected text"),
    "bytes for an address": ({"address": b"ipc:///tmp/x"}, "address = b'ipc:///tmp/x': expected text"),
    "a number for a token": ({"resume_token": 5}, "resume_token = 5: expected"),
    "half a character": ({"resume_token": "\ud800"}, "resume_token = '\\ud800': expected"),
    "a token without end": ({"resume_token": "x" * 2**24}, "resume_token = 'xxx"),
    "a path for keys": ({"keys": "client.key"}, "keys = 'client.key': expected"),
}


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize(("given", "named"), BAD_CLIENTS.values(), ids=BAD_CLIENTS.keys())
def test_a_client_of_what_is_none_is_refused_before_anything_is_opened(
    make: Any, given: dict[str, Any], named: str
) -> None:
    others = set(threading.enumerate())
    refused = refusal_of(lambda: make(**{"address": NOWHERE, **given}))
    assert refused.code == "BAD_CONFIG"
    assert named in str(refused)
    assert set(threading.enumerate()) <= others


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_one_refusal_lists_every_fault_of_a_client(make: Any) -> None:
    refused = refusal_of(lambda: make("nowhere", timeout_s=None, resume_token=5, keys=5))
    assert "4 problem(s)" in str(refused)


def test_ids_and_waits_that_are_none_are_refused_by_both_clients(serve: Any) -> None:
    async def run(address: str) -> list[str]:
        async with AsyncClient(address) as client:
            found = []
            for call in (
                client.generate([1], request_id=""),
                client.samples([1], n=1, request_id=0),  # type: ignore[arg-type]
                client.wait_ready(None),  # type: ignore[arg-type]
            ):
                with pytest.raises(Refused) as caught:
                    await call
                found.append(caught.value.code)
            return found

    engine = serve()
    client = engine.client()
    acts: list[Callable[[], Any]] = [
        lambda: client.generate([1], request_id=""),
        lambda: client.samples([1], n=1, request_id=0),  # type: ignore[arg-type]
        lambda: client.wait_ready(float("nan")),
    ]
    codes = ["BAD_OPTION", "BAD_OPTION", "BAD_CONFIG"]
    assert [refusal_of(act).code for act in acts] == codes
    assert asyncio.run(run(engine.address)) == codes
