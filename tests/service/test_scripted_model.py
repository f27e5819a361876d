"""The scripted worker keeps the laws that the real one must keep: its output depends on the text alone."""

from itertools import pairwise
from typing import Any

import pytest
from dsparkd.scheduler.core.events import Decode, Emitted, Open, Params, RowFault, Scrub, Scrubbed, Seed, Seeded
from dsparkd.scheduler.trace.scripted import Faults, ScriptedFault, ScriptedModel
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st

PROMPT = [5, 6, 7, 8, 9]
PARAMS = Params()


def model(**changes: Any) -> ScriptedModel:
    return ScriptedModel(**{"num_slots": 3, "max_model_len": 200, "vocab_size": 50, "block_len": 7, **changes})


def seeds(prompt: list[int], cuts: list[int], *, slot: int = 0, propose_len: int = 7, params: Params = PARAMS) -> Any:
    """Chunks of `prompt`, cut at `cuts`."""
    borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(prompt)}), len(prompt)]
    for start, end in pairwise(borders):
        last = end == len(prompt)
        opens = Open() if start == 0 else None
        yield Seed(slot, 1, start, prompt[start:end], last, propose_len if last else 0, params, 0, opens)


def run(made: ScriptedModel, *, draft_lens: list[int], cuts: list[int], params: Params = PARAMS) -> list[int]:
    """The output of one request whose passes ask for these draft lengths (as far as held)."""
    output: list[int] = []
    held = 0
    for row in seeds(PROMPT, cuts, params=params):
        (report,) = made.run_rows([row])
    assert isinstance(report, Emitted)
    output, held = list(report.token_ids), report.held_len
    for draft_len in draft_lens:
        (report,) = made.run_rows([Decode(0, 1, min(draft_len, held), 7)])
        assert isinstance(report, Emitted), report
        assert len(report.token_ids) == report.accepted_len + 1
        output, held = output + report.token_ids, report.held_len
    return output


LAW = settings(derandomize=True, max_examples=60, deadline=None)
LENS = st.lists(st.integers(0, 7), min_size=1, max_size=8)
CUTS = st.lists(st.integers(1, 4), max_size=4)


@LAW
@given(LENS, CUTS, st.sampled_from([1.0, 2.4, 8.0]), st.sampled_from([0.0, 0.8]))
def test_plain_decoding_equals_any_draft_lengths_and_any_chunks(
    lens: list[int], cuts: list[int], mean: float, temperature: float
) -> None:
    params = Params(temperature=temperature, seed=11)
    drafted = run(model(mean=mean), draft_lens=lens, cuts=cuts, params=params)
    plain = run(model(block_len=7), draft_lens=[0] * (len(drafted) - 1), cuts=[], params=params)
    assert drafted == plain
    assert drafted == model().continuation(PROMPT, len(drafted), params=params)


@LAW
@given(st.integers(0, 7), st.integers(0, 7))
def test_the_prescribed_number_of_drafts_stands(prescribed: int, draft_len: int) -> None:
    made = model(acceptance=[prescribed])
    for row in seeds(PROMPT, []):
        made.run_rows([row])
    (report,) = made.run_rows([Decode(0, 1, draft_len, 7)])
    assert isinstance(report, Emitted)
    assert report.accepted_len == min(prescribed, draft_len)


def test_the_mean_acceptance_length_is_met_with_the_least_variance() -> None:
    made = model(mean=3.25, max_model_len=20_000)
    for row in seeds(PROMPT, []):
        made.run_rows([row])
    lens = [len(made.run_rows([Decode(0, 1, 7, 7)])[0].token_ids) for _ in range(4000)]  # type: ignore[union-attr]
    assert set(lens) == {3, 4}
    assert abs(sum(lens) / len(lens) - 3.25) < 0.03


def test_seeds_matter_to_sampled_requests_only() -> None:
    greedy = [run(model(), draft_lens=[7] * 5, cuts=[], params=Params(seed=seed))[:8] for seed in (1, 2)]
    sampled = [
        run(model(), draft_lens=[7] * 5, cuts=[], params=Params(temperature=1.0, seed=seed))[:8] for seed in (1, 2)
    ]
    assert greedy[0] == greedy[1]
    assert sampled[0] != sampled[1]


def test_a_window_that_inherits_a_prefix_answers_like_one_that_was_seeded() -> None:
    made = model()
    for row in seeds(PROMPT, []):
        made.run_rows([row])
    (report,) = made.run_rows([Seed(1, 1, 3, PROMPT[3:], True, 7, PARAMS, 0, Open(3, source_slot=0, source_epoch=1))])
    assert isinstance(report, Emitted)
    assert report.token_ids == model().continuation(PROMPT, 1)


def test_the_anchor_is_not_in_the_window_that_another_slot_inherits() -> None:
    made = model()
    for row in seeds(PROMPT, []):
        made.run_rows([row])
    keep = len(PROMPT) + 1
    (report,) = made.run_rows([Seed(1, 1, keep, [1], True, 7, PARAMS, 0, Open(keep, source_slot=0, source_epoch=1))])
    assert isinstance(report, RowFault)
    assert report.code == "POSITION"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (Decode(0, 2, 0, 0), "EPOCH"),
        (Decode(1, 1, 0, 0), "EPOCH"),
        (Decode(0, 1, 8, 0), "HELD"),
        (Decode(0, 1, 3, 8), "LIMIT"),
        (Seed(0, 1, 5, [1], True, 0, PARAMS, 0, None), "POSITION"),
        (Seed(0, 1, 6, [1], True, 0, PARAMS, 0, None), "POSITION"),
        (Seed(1, 1, 1, [1], True, 0, PARAMS, 0, Open()), "POSITION"),
        (Seed(1, 1, 0, [], True, 0, PARAMS, 0, Open()), "LIMIT"),
        (Seed(1, 1, 0, [1] * 201, True, 0, PARAMS, 0, Open()), "LIMIT"),
        (Seed(1, 1, 0, [50], True, 0, PARAMS, 0, Open()), "TOKEN"),
        (Seed(1, 1, 2, [1], True, 0, PARAMS, 0, Open(2)), "POSITION"),
        (Seed(1, 1, 2, [1], True, 0, PARAMS, 0, Open(2, source_slot=0, source_epoch=9)), "EPOCH"),
    ],
)
def test_a_row_that_does_not_fit_its_window_is_a_row_fault_and_moves_nothing(row: Any, code: str) -> None:
    made = model()
    for one in seeds(PROMPT, []):
        made.run_rows([one])
    before = [(slot.epoch, list(slot.text), list(slot.held)) for slot in made.slots]
    (report,) = made.run_rows([row])
    assert isinstance(report, RowFault)
    assert report.code == code
    assert [(slot.epoch, slot.text, slot.held) for slot in made.slots] == before


def test_a_failing_step_moves_no_row() -> None:
    made = model(faults=Faults(steps=frozenset({2})))
    made.run_rows(list(seeds(PROMPT, [])))
    text = list(made.slots[0].text)
    with pytest.raises(ScriptedFault):
        made.run_rows([Decode(0, 1, 7, 7), *seeds(PROMPT, [], slot=1)])
    assert made.slots[0].text == text
    assert made.slots[1].epoch is None
    with pytest.raises(ScriptedFault, match="twice"):
        made.run_rows([Decode(0, 1, 7, 7), Decode(0, 1, 0, 0)])
    assert made.slots[0].text == text


def test_a_scrubbed_slot_serves_only_after_it_was_opened_again() -> None:
    made = model(faults=Faults(rows=frozenset({(2, 0)})))
    made.run_rows(list(seeds(PROMPT, [])))
    (fault,) = made.run_rows([Decode(0, 1, 7, 7)])
    assert isinstance(fault, RowFault)
    assert made.run_rows([Scrub(0)]) == [Scrubbed(0)]
    (refused,) = made.run_rows([Decode(0, 1, 0, 0)])
    assert isinstance(refused, RowFault)
    assert isinstance(made.run_rows([Seed(0, 2, 0, [1], False, 0, PARAMS, 0, Open())])[0], Seeded)


def test_a_failing_drafter_costs_only_the_draft() -> None:
    made = model(faults=Faults(drafter=frozenset({1})))
    (report,) = made.run_rows(list(seeds(PROMPT, [])))
    assert isinstance(report, Emitted)
    assert report.held_len == 0
    assert made.lost is not None
    assert report.token_ids == made.continuation(PROMPT, 1)


def test_every_bad_setting_is_named_in_one_refusal() -> None:
    with pytest.raises(Refused) as caught:
        ScriptedModel(num_slots=0, max_model_len=1, vocab_size=1, block_len=3, mean=9)
    for name in ("num_slots", "max_model_len", "vocab_size", "mean"):
        assert name in str(caught.value)
