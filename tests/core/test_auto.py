"""The policy `auto`: what it learns, what it chooses, that it settles, and that it finds out again."""

from itertools import pairwise
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.acceptance import NOTHING, Acceptance
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies import parse_policy
from dsparkd.scheduler.core.policies.auto import PROBE_LEN, best_lengths
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import worker
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st

# One row: plain 100; each token more 10; a block 60. Many rows: tokens cost what they cost, nothing is shared.
TABLE = CostTable(
    fingerprint=(),
    context_len=64,
    rows=(1, 8),
    widths=(1, 8),
    target_ns=((100, 170), (200, 1600)),
    draft_ns=(60, 200),
)


class Costly(Bench):
    """A bench whose workers measured TABLE."""

    def send(self, event: events.Input) -> Any:
        if isinstance(event, events.WorkerReady):
            event = attrs.evolve(event, costs=TABLE)
        return super().send(event)


def decodes(bench: Bench) -> list[events.Decode]:
    return [row for one in bench.commands for row in one.rows if isinstance(row, events.Decode)]


def test_a_draft_counts_where_it_was_reached_and_old_evidence_fades() -> None:
    one = NOTHING.after(3, 1)
    assert one == Acceptance((1.0, 1.0), (1.0, 0.0), 0, 1)
    assert one.after(0, 0) == attrs.evolve(one, rest_len=1)
    again = one.after(2, 2)
    assert (again.rest_len, again.last_accepted_len) == (0, 2)
    assert again.tested == (1.9375, 1.9375)
    assert again.stood == (1.9375, 1.0)
    assert NOTHING.chances(2, [0.7, 0.5]) == [0.7, 0.5]
    assert one.chances(3, [0.5] * 3) == [(1 + 2) / 5, (0 + 2) / 5, 0.5]


def test_a_request_cut_at_a_stop_or_limit_counts_what_came_out() -> None:
    bench = Costly("auto", vocab_size=50, acceptance=[7])
    bench.submit(0, [1], max_tokens=4)
    bench.run()
    assert bench.core.ledger.acceptance.tested == (1.0, 1.0)  # room for two drafts after the first token


@settings(derandomize=True, max_examples=60, deadline=None)
@given(chance=st.floats(0.0, 1.0))
def test_for_one_row_the_choice_is_the_best_of_all_lengths(chance: float) -> None:
    survival = [chance ** (index + 1) for index in range(7)]
    rates = [1 / TABLE.target(1, 1)]
    for length in range(1, 8):
        rates.append((1 + sum(survival[:length])) / (TABLE.target(1, 1 + length) + TABLE.draft(1)))
    (chosen,), _ = best_lengths([survival], TABLE)
    assert rates[chosen] == pytest.approx(max(rates))


def test_a_crowd_drafts_for_those_that_pay_and_not_for_the_others() -> None:
    good, bad = [0.99] * 7, [0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    cheap = attrs.evolve(TABLE, target_ns=((100, 170), (200, 900)))
    lengths, _ = best_lengths([bad, good, bad, good], cheap)
    assert lengths[0] == lengths[2] == 0
    assert min(lengths[1], lengths[3]) > 0
    assert best_lengths([bad] * 8, cheap) == ([0] * 8, 1.0)
    assert best_lengths([], cheap) == ([], 1.0)
    flat = attrs.evolve(TABLE, target_ns=((5, 5), (5, 5)), draft_ns=(1, 1))
    assert best_lengths([good] * 3, flat)[0] == [7] * 3


def run_one(accepts: list[int], max_tokens: int) -> list[events.Decode]:
    bench = Costly("auto", limits=Limits(num_slots=1, max_model_len=4096), vocab_size=50, acceptance=accepts)
    bench.submit(0, [1], max_tokens=max_tokens)
    bench.run(max_steps=100_000)
    assert bench.tokens[0] == bench.solo([1], max_tokens)
    return decodes(bench)


def test_predictable_text_is_drafted_whole_and_hopeless_text_settles_at_none() -> None:
    assert {row.draft_len for row in run_one([7], 800)[20:-3]} == {7}
    hopeless = [row.draft_len for row in run_one([0], 800)]
    rest = hopeless[60:]
    probes = [index for index, length in enumerate(rest) if length > 0]
    assert len(probes) <= len(rest) // PROBE_LEN + 1, "it rests but for a probe now and then"
    assert probes, "it asks again"


def test_text_that_became_predictable_is_found_again() -> None:
    lens = [row.draft_len for row in run_one([0] * 6 + [7] * 4000, 3000)]  # the first six blocks fail, then none
    drafted = [index for index, length in enumerate(lens) if length > 0]
    turn = drafted[6]  # the probe that finds it
    assert turn > 2 * PROBE_LEN
    found = lens[turn + 20 :]
    assert len(found) > 100
    assert all(length > 0 for length in found[:-1]), "a few good probes one after another, then it drafts for good"


@settings(derandomize=True, max_examples=10, deadline=None)
@given(accepts=st.lists(st.integers(0, 7), min_size=5, max_size=30))
def test_it_never_changes_a_token_and_decides_the_same_again(accepts: list[int]) -> None:
    def run() -> tuple[dict[int, list[int]], list[Any]]:
        bench = Costly("auto", limits=Limits(num_slots=3, max_model_len=256), vocab_size=50, acceptance=accepts)
        for number in range(5):
            bench.submit(number, [number + 1] * 9, max_tokens=60, max_draft_len=(None, 3, 0, None, 1)[number])
        bench.run()
        assert all(bench.tokens[number] == bench.solo([number + 1] * 9, 60) for number in range(5))
        return bench.tokens, bench.commands

    assert run() == run()


def test_it_does_not_flap_between_equals() -> None:
    """At a chance where drafting and resting cost about the same, it changes its mind seldom."""
    lens = [row.draft_len for row in run_one([0, 1, 0, 1, 1], 1500)]
    switches = sum((one > 0) != (other > 0) for one, other in pairwise(lens))
    assert switches <= 2 + 2 * (1 + len(lens) // PROBE_LEN) + len(lens) // 20


def test_only_policies_that_learn_keep_facts() -> None:
    for policy, learns in (("auto", True), ("fixed:7", False)):
        bench = Costly(policy, vocab_size=50)
        bench.submit(0, [1], max_tokens=40)
        bench.run()
        assert (bench.core.ledger.acceptance != NOTHING) == learns


def test_what_was_learned_is_in_the_fingerprint() -> None:
    bench = Costly("auto", vocab_size=50)
    bench.submit(0, [1], max_tokens=40)
    bench.tick()
    ledger = bench.core.ledger
    before = ledger.fingerprint()
    ledger.requests[0].acceptance = NOTHING.after(1, 1)
    changed = ledger.fingerprint()
    ledger.acceptance = NOTHING.after(1, 1)
    assert len({before, changed, ledger.fingerprint()}) == 3


def test_without_a_cost_table_it_is_refused_by_name_and_with_an_argument_too() -> None:
    bench = Bench("auto")
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert "the policy auto needs a cost table" in bench.core.ledger.worker.reason
    with pytest.raises(Refused, match="expected auto, it takes nothing"):
        parse_policy("auto:")


def test_a_restarted_worker_needs_no_table_of_its_own() -> None:
    bench = Costly("auto", vocab_size=50)
    bench.lose_worker()
    while bench.core.ledger.worker.state is worker.State.DEAD:
        bench.tick(milliseconds=100)
    Bench.boot(bench)
    assert bench.core.ledger.worker.state is worker.State.READY
