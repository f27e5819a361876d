"""Every option of a request does on the real worker what it does without drafting, at any draft length."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.service.options import read_options
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from dsparkd.worker.backend import TorchBackend
from option_support import NAME, PROMPTS, Asked, Letters, answers, asked
from worker_support import Driver, backend, seed
from zero_draft_support import twin


@pytest.fixture(scope="module")
def undrafted() -> TorchBackend:
    return backend(NAME, drafter=False, num_slots=1, paranoid=False)


@pytest.fixture(scope="module")
def drafted() -> TorchBackend:
    return backend(NAME, num_slots=3, paranoid=False)


@pytest.fixture(scope="module")
def replayed() -> TorchBackend:
    """The CPU twin of graphs."""
    return backend(NAME, num_slots=3, runner="static", paranoid=False)


FIRST = 4  # how many of greedy's first tokens of each prompt end the output, in the tests of min_tokens


@pytest.fixture(scope="module")
def favoured(undrafted: TorchBackend) -> list[int]:
    """Tokens that the target likes to begin with."""
    return sorted({token for tokens, _ in answers(asked("fixed:0", undrafted)) for token in tokens[:FIRST]})


@pytest.mark.parametrize("death", [False, True], ids=["", "death"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_l068_nothing_ends_an_output_before_min_tokens_and_the_tokens_are_those_of_plain_decoding(
    undrafted: TorchBackend,
    drafted: TorchBackend,
    replayed: TorchBackend,
    favoured: list[int],
    temperature: float,
    death: bool,
) -> None:
    options = {"temperature": temperature, "seed": 5, "stop_token_ids": favoured}
    short = answers(asked("fixed:0", undrafted), **options)
    plain = answers(asked("fixed:0", undrafted), **options, min_tokens=10)
    assert any(len(tokens) < 10 for tokens, _ in short), "else nothing is masked"
    assert all(len(tokens) >= 10 and not {*tokens[:10]} & {*favoured} for tokens, _ in plain)
    assert any(reason == "stop" for _, reason in plain), "behind min_tokens they end it"
    for policy, made in (("fixed:0", drafted), ("fixed:2", drafted), ("fixed:7", drafted), ("fixed:7", replayed)):
        engine = asked(policy, made)
        assert answers(engine, death=death, **options, min_tokens=10) == plain


def test_l068_what_is_masked_is_what_the_target_alone_masks(undrafted: TorchBackend, favoured: list[int]) -> None:
    target, _ = twin(NAME)
    engine = asked("fixed:0", undrafted)
    (tokens, _), *_ = answers(engine, stop_token_ids=favoured, min_tokens=10)
    text = [*PROMPTS[0], *tokens]
    logits = target.logits_and_features(text)[0][len(PROMPTS[0]) - 1 : -1]
    logits[:10, favoured] = -torch.inf
    assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize("mean", [1.0, 8.0], ids=["none-stand", "all-stand"])
def test_l068_eos_is_possible_at_token_11_for_drafters_of_which_all_and_none_stand(mean: float) -> None:
    bench = Bench(target=[7], mean=mean, vocab_size=50)
    params = events.Params(min_tokens=10, masked_token_ids=(7,))
    bench.submit(0, [1, 2], max_tokens=20, stop_token_ids=frozenset({7}), params=params)
    bench.run()
    assert (bench.tokens[0], bench.ended[0][0].reason) == ([8] * 10 + [7], "stop")


@pytest.mark.parametrize("output_len", [0, 2])
@pytest.mark.parametrize("min_tokens", [1, 4, 9])
def test_drafts_are_masked_up_to_the_very_index_that_the_target_is(
    drafted: TorchBackend, favoured: list[int], min_tokens: int, output_len: int
) -> None:
    """A drafter that proposed what the target may not say, or not what it may, would have its drafts rejected."""
    target, drafter = twin(NAME)
    driver = Driver(drafted)
    params = wire.Params(min_tokens=min_tokens, masked_token_ids=favoured)
    for number, prompt in enumerate(PROMPTS):
        epoch = 900 + 100 * output_len + 10 * min_tokens + number
        row = driver.one(seed(0, epoch, prompt, propose_len=7, params=params, output_len=output_len))

        def chosen(index: int, logits: torch.Tensor) -> int:
            early = output_len + 1 + index < min_tokens
            return int((logits.index_fill(0, torch.tensor(favoured), -torch.inf) if early else logits).argmax())

        features = target.logits_and_features(prompt)[1]
        expected = drafter.propose(features, row.token_ids[0], len(prompt), chosen)
        assert driver.window(0).held == expected.token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_l074_log_probabilities_are_those_of_plain_decoding_for_every_pattern_of_acceptance(
    undrafted: TorchBackend, drafted: TorchBackend, replayed: TorchBackend, temperature: float
) -> None:
    options = {"temperature": temperature, "top_p": 0.9, "seed": 5, "logprobs": True, "top_logprobs": 3}
    plain = asked("fixed:0", undrafted)
    before = answers(plain, **options)
    target, _ = twin(NAME)
    patterns = set()
    for policy, made in (("fixed:0", drafted), ("fixed:2", drafted), ("fixed:7", drafted), ("fixed:5", replayed)):
        engine = asked(policy, made)
        assert answers(engine, **options) == before
        patterns |= {one.accepted_len for one in engine.outputs if isinstance(one, results.Tokens)}
        for number, (tokens, _) in enumerate(before):
            for part in ("logprobs", "top_logprobs"):
                told, expected = (torch.tensor(one.told(number, part)) for one in (engine, plain))
                assert len(told) == len(tokens)
                torch.testing.assert_close(told, expected, atol=1e-4, rtol=0)
    assert patterns >= {0, 1, 2, 3}
    for number, (tokens, _) in enumerate(before):
        text = [*PROMPTS[number], *tokens]
        logits = target.logits_and_features(text)[0][len(PROMPTS[number]) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(plain.told(number, "logprobs")), own, atol=1e-4, rtol=0)
        assert plain.told(number, "top_token_ids") == logits.topk(3).indices.tolist()


def test_l074_log_probabilities_are_of_the_unmasked_logits(undrafted: TorchBackend, favoured: list[int]) -> None:
    engine = asked("fixed:0", undrafted)
    answers(engine, stop_token_ids=favoured, min_tokens=10, logprobs=True, top_logprobs=1)
    assert {ids[0] for ids in engine.told(0, "top_token_ids")[:10]} & {*favoured}, "the best token was not allowed"
    assert max(engine.told(0, "logprobs")[:1]) < engine.told(0, "top_logprobs")[0][0]


def test_l074_log_probabilities_are_cut_like_the_ids(drafted: TorchBackend) -> None:
    engine = asked("fixed:7", drafted)
    letters = Letters().decode([token for tokens, _ in answers(asked("fixed:7", drafted)) for token in tokens[8:10]])
    stops = [letters[index : index + 2] for index in range(0, len(letters), 2)]
    ended = answers(engine, stop=stops, logprobs=True)
    assert {reason for _, reason in ended} == {"stop"}
    for number, (tokens, _) in enumerate(ended):
        assert len(engine.told(number, "logprobs")) == len(tokens)


CASES: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 5},
    "temperature": {"temperature": 0.8, "seed": 1},
    "top_k": {"temperature": 1.5, "seed": 1, "top_k": 2},
    "top_p": {"temperature": 1.5, "seed": 1, "top_p": 0.3},
    "min_p": {"temperature": 1.5, "seed": 1, "min_p": 0.5},
    "seed": {"temperature": 0.8, "seed": 2},
    "sample_index": {"temperature": 0.8, "seed": 1, "sample_index": 1},
    "stop_token_ids": {},  # with the tokens that greedy begins with, below
    "ignore_eos": {},
    "stop": {"stop": list("abcdefgh")},
    "min_tokens": {"min_tokens": 10},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
}
SAME_ANSWER = {"deadline_ms", "max_draft_len", "margins", "passes", "label", "cache_salt", "priority"}
BASES: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 1.5, "seed": 1},
    "top_p": {"temperature": 1.5, "seed": 1},
    "min_p": {"temperature": 1.5, "seed": 1},
    "seed": {"temperature": 0.8, "seed": 1},
    "sample_index": {"temperature": 0.8, "seed": 1},
}


def test_l070_every_option_is_known_to_change_the_answer_or_to_leave_it() -> None:
    assert {*CASES} | SAME_ANSWER == {*wire.RequestOptions.__struct_fields__}


@pytest.mark.parametrize("name", [name for name in CASES if name != "ignore_eos"])
def test_l070_every_option_changes_the_answer_exactly_as_in_plain_decoding(
    undrafted: TorchBackend, drafted: TorchBackend, favoured: list[int], name: str
) -> None:
    options = {**CASES[name]}
    base = {**BASES.get(name, {})}
    if name in ("stop_token_ids", "min_tokens"):
        options["stop_token_ids"] = favoured
    if name == "min_tokens":
        base["stop_token_ids"] = favoured

    def whole(engine: Asked, asked_for: dict[str, Any]) -> Iterator[Any]:
        yield answers(engine, **asked_for)
        rows = [one for one in engine.outputs if isinstance(one, results.Tokens)]
        yield {(one.detail is not None, bool(one.detail and one.detail.top_logprobs)) for one in rows}

    plain = [*whole(asked("fixed:0", undrafted), options)]
    assert plain != [*whole(asked("fixed:0", undrafted), base)], "it does nothing"
    assert [*whole(asked("fixed:5", drafted), options)] == plain


NOT_OFFERED = (
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "do_sample",
    "n",
    "typical_p",
)


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_l070_an_option_that_is_not_offered_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refused, match=f"'{name}': unknown") as caught:
        read_options(msgspec.Raw(msgspec.msgpack.encode({name: 1, "temperature": 1})))
    assert caught.value.code == "UNSUPPORTED_OPTION"
    assert ("Client.samples" in str(caught.value)) == (name == "n")


GREEDY = {"top_k": 5, "top_p": 0.1, "seed": 3}
ONE = {"temperature": 1.3, "top_k": 1, "seed": 3}


@pytest.mark.parametrize("params", [GREEDY, ONE], ids=["greedy", "top_k=1"])
def test_l072_a_greedy_request_is_drafted_greedily_however_it_is_said(
    drafted: TorchBackend, params: dict[str, Any]
) -> None:
    driver = Driver(drafted)
    for number, prompt in enumerate(PROMPTS):
        driver.step(seed(0, 700 + 2 * number, prompt, propose_len=7))
        held = driver.window(0).held
        row = driver.one(seed(1, 701 + 2 * number, prompt, propose_len=7, params=wire.Params(**params)))
        assert driver.window(1).held == held
        assert len(row.token_ids) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_holds_in_rejection_mode_too(favoured: list[int], temperature: float) -> None:
    made = backend(NAME, acceptance="rejection", num_slots=3)
    for policy in ("fixed:0", "fixed:7"):
        options = {"temperature": temperature, "seed": 9, "stop_token_ids": favoured, "logprobs": True}
        engine = asked(policy, made)
        for number, (tokens, _) in enumerate(answers(engine, **options, min_tokens=10)):
            assert len(tokens) >= 10
            assert not {*tokens[:10]} & {*favoured}
            assert len(engine.told(number, "logprobs")) == len(tokens)
