"""Limits and budgets of a plan, as properties of the functions that decide them."""

from itertools import pairwise
from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.plan import lengths
from dsparkd.scheduler.core.policies import parse_policy
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st


@given(remaining=st.integers(1, 30), held=st.integers(0, 8), wanted=st.integers(0, 10), block=st.integers(0, 8))
def test_a_draft_leaves_room_for_its_extra_token_now_and_in_the_next_pass(
    remaining: int, held: int, wanted: int, block: int
) -> None:
    draft_len, propose_len = lengths(remaining, min(held, block), wanted=wanted, block_len=block)
    assert 0 <= draft_len <= min(held, remaining - 1)
    assert 0 <= propose_len <= block
    if propose_len:
        assert wanted > 0
        assert propose_len <= remaining - 2  # one token is emitted at least, then draft + extra must fit
    if wanted > 0 and remaining >= block + 2:
        assert propose_len == block  # the whole block is kept, shorter lengths are prefixes
    if wanted == 0:
        assert draft_len == min(held, block, remaining - 1)  # what is held is verified, not thrown away


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    budget=st.integers(1, 30),
    num_slots=st.integers(1, 4),
)
def test_a_step_keeps_its_token_budget_and_nobody_starves(prompts: list[int], budget: int, num_slots: int) -> None:
    limits = Limits(num_slots=num_slots, max_model_len=64, max_step_tokens=budget)
    bench = Bench(limits=limits, vocab_size=50, mean=2.0)
    for request, length in enumerate(prompts):
        bench.submit(request, range(length), max_tokens=12)
    bench.run()
    waited: dict[tuple[int, int], int] = {}
    for command in bench.commands:
        tokens = 0
        for row in command.rows:
            assert not isinstance(row, events.Scrub)
            tokens += len(row.token_ids) if isinstance(row, events.Seed) else row.draft_len + 1
            waited[row.slot, row.epoch] = 0
        assert tokens <= budget
    for request, length in enumerate(prompts):
        assert bench.tokens[request] == bench.solo(range(length), 12)


def test_l026_a_row_left_out_by_the_budget_runs_soon_and_loses_nothing() -> None:
    limits = Limits(num_slots=4, max_model_len=64, max_step_tokens=9)
    bench = Bench(limits=limits, vocab_size=50, acceptance=[7])
    for request in range(4):
        bench.submit(request, [request + 1], max_tokens=30)
    bench.run()
    steps: dict[int, list[int]] = {}
    for command in bench.commands:
        for row in command.rows:
            if isinstance(row, events.Decode):
                assert row.draft_len >= 0
                steps.setdefault(row.slot, []).append(command.step_id)
    gaps = [later - earlier for seen in steps.values() for earlier, later in pairwise(seen)]
    assert max(gaps) > 1
    assert max(gaps) <= 4
    for request in range(4):
        assert bench.tokens[request] == bench.solo([request + 1], 30)


def test_decode_rows_and_chunks_share_a_step_and_a_chunk_token_always_fits() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64, max_step_tokens=4), vocab_size=50)
    bench.submit(0, [1], max_tokens=40)
    bench.tick()
    bench.answer()
    bench.submit(1, range(10), max_tokens=3)
    bench.tick()
    kinds = [type(row).__name__ for row in bench.commands[-1].rows]
    assert kinds == ["Decode", "Seed"]
    decode, seed = bench.commands[-1].rows
    assert isinstance(decode, events.Decode)
    assert isinstance(seed, events.Seed)
    assert decode.draft_len + 1 + len(seed.token_ids) == 4
    assert len(seed.token_ids) >= 1


@pytest.mark.parametrize("text", ["fixed", "fixed:", "fixed:-1", "fixed:x", "nothing"])
def test_a_policy_that_does_not_read_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(Refused, match="expected fixed:N") as caught:
        parse_policy(text)
    assert repr(text) in str(caught.value)


def test_all_bad_limits_are_refused_at_once() -> None:
    bad: dict[str, Any] = {"num_slots": 0, "max_model_len": 1, "max_restarts": -1, "step_deadline_ns": 0}
    with pytest.raises(Refused) as caught:
        Limits(**bad)
    assert all(name in str(caught.value) for name in bad)
