"""What steps really take, over the table: the facts of `core/step_costs.py`, and that they are facts of the ledger."""

import math

import attrs
import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.step_costs import SURPRISE, UNKNOWN, Kind, StepCosts, kind_of
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import worker
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE = CostTable(
    fingerprint=(),
    context_len=64,
    rows=(1, 8),
    widths=(1, 8),
    target_ns=((1000, 1700), (2000, 16000)),
    draft_ns=(600, 2000),
)
LENS = st.lists(st.integers(0, 7), min_size=1, max_size=8)
STEPS = st.lists(st.tuples(LENS, st.integers(0, 8), st.integers(1, 2**63 - 1)), max_size=40)


def after(steps: list[tuple[list[int], int, int]]) -> StepCosts:
    known = UNKNOWN
    for lens, drafting, cost_ns in steps:
        known = known.after(TABLE, lens, min(drafting, len(lens)), cost_ns)
    return known


def honest(lens: list[int], drafting: int, times: float) -> tuple[list[int], int, int]:
    return lens, drafting, int(times * (TABLE.target(len(lens), len(lens) + sum(lens)) + TABLE.draft(drafting)))


@given(lens=LENS)
def test_every_step_is_of_one_kind(lens: list[int]) -> None:
    expected = Kind.PART if len(set(lens)) > 1 else Kind.WHOLE if lens[0] else Kind.REST
    assert kind_of(lens) is expected


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_whatever_times_are_reported_the_factors_are_finite_and_above_zero(
    steps: list[tuple[list[int], int, int]],
) -> None:
    known = after(steps)
    assert all(math.isfinite(one) and one > 0 for one in known.factors())
    assert all(0 <= count <= 32 for count in known.counts), "old steps fade"


@settings(max_examples=50, deadline=None)
@given(times=st.floats(0.05, 50), kind=st.sampled_from(Kind))
def test_a_machine_that_is_slower_throughout_is_known_by_every_kind_even_those_not_seen(
    times: float, kind: Kind
) -> None:
    lens = {Kind.REST: [0, 0], Kind.WHOLE: [3, 3], Kind.PART: [3, 0]}[kind]
    known = after([honest(lens, 0 if kind is Kind.REST else 2, times)] * 400)
    assert known.factors() == pytest.approx([times] * 3, rel=0.1, abs=0.05)


def test_a_kind_that_costs_more_is_known_apart() -> None:
    mixed = [honest([0], 0, 1.0), honest([4], 1, 1.0), honest([4, 0], 1, 1.5)]
    rest, whole, part = after(mixed * 60).factors()
    assert (rest, whole, part) == pytest.approx((1.0, 1.0, 1.5), rel=0.05)


def test_one_stalled_step_counts_for_no_more_than_a_few() -> None:
    """A machine that was suspended for a minute must not keep its engine from drafting for hours."""
    calm = [honest([4], 1, 1.0)] * 40
    known = after([*calm, honest([4], 1, 1e6)])
    assert known.factors()[Kind.WHOLE] <= 1 + SURPRISE / 16
    assert after([*calm, honest([4], 1, 1e6), *calm]).factors()[Kind.WHOLE] < 1.06


def test_steps_since_the_last_rest_are_counted_and_a_step_that_only_drafts_is_of_no_kind() -> None:
    known = after([honest([4], 1, 1.0), honest([2, 1], 2, 1.0)])
    assert (known.since[Kind.REST], known.counts[Kind.REST]) == (2, 0)
    anew = known.after(TABLE, [0, 0], 2, 5000)
    assert anew == attrs.evolve(known, since=(3, 2, 1))
    assert anew.after(TABLE, [0, 0], 0, 2000).since == (0, 3, 2)


def test_they_are_in_fork_and_fingerprint_and_a_fork_learns_for_itself() -> None:
    bench = Bench("auto", vocab_size=50, costs=TABLE)
    bench.submit(0, [1, 2], max_tokens=40)
    bench.tick()
    bench.answer()
    bench.tick()
    core, twin = bench.core, bench.core.fork()
    assert bench.in_flight is not None
    rows = bench.worker.run_rows(bench.in_flight.rows)
    report = events.Report(bench.in_flight.session, bench.in_flight.step_id, rows, cost_ns=9000)
    before = core.ledger.fingerprint()
    twin.handle(report)
    assert twin.ledger.step_costs != UNKNOWN
    assert core.ledger.step_costs == UNKNOWN
    assert core.ledger.fingerprint() == before
    learned = twin.ledger.fingerprint()
    twin.ledger.step_costs = UNKNOWN
    assert twin.ledger.fingerprint() != learned


@pytest.mark.parametrize("policy, cost_ns, learns", [("auto", 0, False), ("auto", 5, True), ("fixed:7", 5, False)])
def test_only_policies_that_learn_keep_them_and_a_worker_that_measures_nothing_teaches_nothing(
    policy: str, cost_ns: int, learns: bool
) -> None:
    class Timed(Bench):
        def send(self, event: events.Input) -> list[object]:
            return super().send(attrs.evolve(event, cost_ns=cost_ns) if type(event) is events.Report else event)

    bench = Timed(policy, vocab_size=50, costs=TABLE)
    bench.submit(0, [1, 2], max_tokens=40)
    bench.run()
    assert (bench.core.ledger.step_costs != UNKNOWN) is learns
    assert bench.tokens[0] == bench.solo([1, 2], 40)


def test_a_worker_that_reports_a_negative_time_breaks_its_contract() -> None:
    bench = Bench("auto", vocab_size=50, costs=TABLE)
    bench.submit(0, [1, 2], max_tokens=40)
    bench.tick()
    assert bench.in_flight is not None
    rows = bench.worker.run_rows(bench.in_flight.rows)
    bench.send(events.Report(bench.in_flight.session, bench.in_flight.step_id, rows, cost_ns=-5))
    assert bench.core.ledger.worker.state is worker.State.DEAD
    assert "cost_ns = -5: expected 0 or more" in bench.core.ledger.worker.reason
