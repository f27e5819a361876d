"""What a client says becomes an event or one refusal that names everything wrong with it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.service.telling import tell
from dsparkd.scheduler.service.text import IncrementalText
from dsparkd.scheduler.service.translate import Client, Translate
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st


class Bytes:
    """A tokenizer whose tokens are UTF-8 bytes; it decodes half a character to U+FFFD, as real ones do."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


@pytest.fixture
def translate() -> Translate:
    made = Translate(Bytes())
    made.vocab_size = 256
    made.eos_token_ids = frozenset({0})
    return made


@pytest.fixture
def client(translate: Translate) -> Client:
    translate.hello(b"identity", wire.ClientHello(), 0)
    found = translate.client_of(b"identity")
    assert found is not None
    return found


def submit(request_id: str = "a", prompt: Any = (1, 2), **options: Any) -> wire.Submit:
    raw = msgspec.Raw(msgspec.msgpack.encode(options))
    if isinstance(prompt, str):
        return wire.Submit(request_id, prompt=prompt, options=raw)
    return wire.Submit(request_id, prompt_token_ids=None if prompt is None else list(prompt), options=raw)


def ended(client: int, request: int) -> results.Ended:
    counts = results.Counts(0, 0, 0, 0, 0, 0, (), (), 0, 0)
    return results.Ended(client, request, "FINISHED", "stop", "", 2, 0, counts, {})


def test_a_submit_becomes_an_event_with_everything_resolved(translate: Translate, client: Client) -> None:
    message = submit(temperature=1, top_k=5, seed=3, stop_token_ids=[7], deadline_ms=2, max_draft_len=4, passes=True)
    event = translate.submit(client, message, now_ns=10)
    params = events.Params(temperature=1.0, top_k=5, seed=3, passes=True)
    assert event.prompt == (1, 2)
    assert event.options == events.Options(stop_token_ids=frozenset({7, 0}), max_draft_len=4, params=params)
    assert event.deadline_ns == 2_000_010


def test_eos_is_no_stop_for_who_ignores_it(translate: Translate, client: Client) -> None:
    event = translate.submit(client, submit(ignore_eos=True, stop_token_ids=[7]), 0)
    assert event.options.stop_token_ids == frozenset({7})


def test_a_request_without_a_seed_gets_one_and_is_told_it(translate: Translate, client: Client) -> None:
    first, second = (translate.submit(client, submit(name), 0) for name in "ab")
    assert first.options.params.seed != second.options.params.seed
    accepted = results.Accepted(client.number, first.request)
    told = tell(translate.settle(accepted), accepted)
    assert told == wire.Accepted(request_id="a", prompt_len=2, seed=first.options.params.seed)


def test_text_is_tokenised_and_refused_without_a_tokenizer(translate: Translate, client: Client) -> None:
    assert translate.submit(client, submit(prompt="hé"), 0).prompt == tuple("hé".encode())
    translate.tokenizer = None
    with pytest.raises(Refused) as caught:
        translate.submit(client, submit("b", prompt="h"), 0)
    assert caught.value.code == "TEXT_UNAVAILABLE"


def test_a_stop_string_without_a_tokenizer_is_refused_by_name(translate: Translate, client: Client) -> None:
    assert translate.submit(client, submit(stop=["x"]), 0).options.stop == ("x",)
    translate.tokenizer = None
    with pytest.raises(Refused, match="stop is text") as caught:
        translate.submit(client, submit("b", stop=["x"]), 0)
    assert caught.value.code == "TEXT_UNAVAILABLE"
    assert "b" not in client.ids


def test_what_may_not_be_drawn_before_min_tokens_is_what_would_end_the_output(
    translate: Translate, client: Client
) -> None:
    def masked(request_id: str, **options: Any) -> tuple[int, ...]:
        params = translate.submit(client, submit(request_id, **options), 0).options.params
        return params.masked_token_ids

    assert masked("a", min_tokens=3, stop_token_ids=[7, 300]) == (0, 7), "nobody draws what is beyond the vocabulary"
    assert masked("b", min_tokens=3, stop_token_ids=[7], ignore_eos=True) == (7,)
    assert masked("c", stop_token_ids=[7]) == ()
    with pytest.raises(Refused, match="every token ends the output") as caught:
        masked("d", min_tokens=1, stop_token_ids=list(range(256)))
    assert caught.value.code == "BAD_OPTION"


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ((), "EMPTY_PROMPT"),
        ("", "EMPTY_PROMPT"),
        (None, "BAD_PROMPT"),
        ((1, 256), "BAD_TOKEN"),
        ((-1,), "BAD_TOKEN"),
        ("x" * (64 * 512 + 1), "PROMPT_TOO_LONG"),
    ],
)
def test_a_bad_prompt_is_refused_by_its_code(translate: Translate, client: Client, prompt: Any, code: str) -> None:
    with pytest.raises(Refused) as caught:
        translate.submit(client, submit(prompt=prompt), 0)
    assert caught.value.code == code
    assert not client.ids, "a refused id is free again"


BAD_VALUES: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 1.0, "3", True, None, 2**63],
    "temperature": [-0.1, 3.1e38, 1e300, math.nan, math.inf, "1", False, None],
    "top_k": [-1, 1.5, True],
    "top_p": [0, 1.01, -1, math.nan],
    "min_p": [-0.01, 1.5, math.inf],
    "seed": [-1, 2**63, 1.0, "x"],
    "sample_index": [-1, None],
    "stop_token_ids": [3, [-1], [True], ["a"], None],
    "ignore_eos": [1, "yes", None],
    "deadline_ms": [0, -5, 1.5],
    "max_draft_len": [-1, True],
    "cache_salt": [7, "x" * 300],
    "margins": [0],
    "passes": ["true"],
    "label": [3],
    "stop": ["x", [""], ["x" * 257], ["x"] * 17, [7], None],
    "min_tokens": [-1, 1.0, True, 257],  # the default limit is 256
    "logprobs": [1, "yes", None],
    "top_logprobs": [-1, 21, True, 1],  # 1 is fine beside logprobs = true only
    "priority": [2**31, -(2**31) - 1, 0.5, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values])
def test_a_bad_option_is_refused_with_key_and_expectation(
    translate: Translate, client: Client, name: str, value: Any
) -> None:
    with pytest.raises(Refused, match=f"^{name} = .*: expected ") as caught:
        translate.submit(client, submit(**{name: value}), 0)
    assert caught.value.code == "BAD_OPTION"


def test_the_table_of_bad_values_knows_every_option() -> None:
    assert set(BAD_VALUES) == {field.name for field in msgspec.structs.fields(wire.RequestOptions)}


def test_all_problems_of_a_request_come_in_one_refusal(translate: Translate, client: Client) -> None:
    with pytest.raises(Refused) as caught:
        translate.submit(client, submit(top_p=2, max_tokens=0, temprature=1), 0)
    assert caught.value.code == "UNSUPPORTED_OPTION"
    for part in ("'temprature': unknown", "top_p = 2", "max_tokens = 0"):
        assert part in str(caught.value)


@pytest.mark.parametrize("raw", [b"\xc1", b"\x91\x01", b"\x81\x01\x02", b"\x91" * 5000, b"\x81\xa1\xff\x01", b""])
def test_options_that_cannot_be_read_are_refused(translate: Translate, client: Client, raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        translate.submit(client, wire.Submit("a", prompt_token_ids=[1], options=msgspec.Raw(raw)), 0)
    assert caught.value.code in ("BAD_OPTION", "UNSUPPORTED_OPTION")


def test_a_name_is_free_again_after_its_end_but_not_after_a_duplicates_refusal(
    translate: Translate, client: Client
) -> None:
    first = translate.submit(client, submit(), 0)
    translate.settle(results.Accepted(client.number, first.request))
    again = translate.submit(client, submit(), 0)
    assert again.request == first.request, "the core must see the same request to call it a duplicate"
    translate.settle(results.Refusal(client.number, first.request, "DUPLICATE_ID", ""))
    assert translate.cancel(client, wire.CancelRequest("a")) is not None
    translate.settle(ended(client.number, first.request))
    assert translate.cancel(client, wire.CancelRequest("a")) is None
    assert translate.submit(client, submit(), 0).request != first.request
    assert len(translate.records) == 1


def test_clients_have_names_of_their_own(translate: Translate, client: Client) -> None:
    translate.hello(b"other", wire.ClientHello(), 0)
    other = translate.client_of(b"other")
    assert other is not None
    mine, its = translate.submit(client, submit(), 0), translate.submit(other, submit(), 0)
    assert mine.request != its.request
    assert mine.client != its.client


def test_a_resume_token_makes_the_same_client_on_a_new_connection(translate: Translate, client: Client) -> None:
    event = translate.hello(b"later", wire.ClientHello(resume_token=client.token), 5)
    assert event.client == client.number
    assert translate.client_of(b"later") is client
    assert translate.client_of(b"identity") is None
    assert translate.hello(b"thief", wire.ClientHello(resume_token="guess"), 5).client != client.number


LAW = settings(derandomize=True, max_examples=200, deadline=None)


@LAW
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_pieces_of_text_join_to_the_whole_and_never_end_in_half_a_character(data: bytes, cuts: list[int]) -> None:
    text = IncrementalText(Bytes())
    borders = [0, *sorted(cuts), len(data)]
    pieces = [text.push(list(data[a:b])) for a, b in pairwise(borders)]
    assert not any(piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces)
    assert "".join(pieces) + text.flush() == Bytes().decode(data)


def test_a_character_is_told_as_soon_as_it_is_whole() -> None:
    text = IncrementalText(Bytes())
    assert [text.push([byte]) for byte in "aé€".encode()] == ["a", "", "é", "", "", "€"]
    assert text.flush() == ""
