"""Cost tables: monotone whatever was measured, interpolated between points, adopted once, and judged at the door."""

from itertools import pairwise
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.costs import CostTable, cost_problems, falls, monotone, pool
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import worker
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE = CostTable(
    fingerprint=(("device", "here"),),
    context_len=64,
    rows=(1, 2, 4),
    widths=(1, 8),
    target_ns=((100, 170), (120, 260), (160, 440)),
    draft_ns=(50, 60, 80),
)
TIMES = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


@settings(derandomize=True)
@given(times=TIMES)
def test_pooling_makes_times_that_never_fall_and_changes_no_more_than_it_must(times: list[int]) -> None:
    pooled = pool(times)
    assert len(pooled) == len(times)
    assert all(low <= high for low, high in pairwise(pooled))
    assert pool(pooled) == pooled
    assert abs(sum(pooled) - sum(times)) < len(times)  # means, rounded down
    if all(low <= high for low, high in pairwise(times)):
        assert pooled == tuple(times)
    assert min(times) <= pooled[0]
    assert pooled[-1] <= max(times)


@settings(derandomize=True)
@given(times=st.lists(st.lists(st.integers(1, 99), min_size=4, max_size=4), min_size=3, max_size=3), drafts=st.data())
def test_a_measured_table_becomes_monotone_both_ways_and_every_change_is_named(
    times: list[list[int]], drafts: Any
) -> None:
    draft_ns = tuple(drafts.draw(st.lists(st.integers(1, 99), min_size=3, max_size=3)))
    measured = attrs.evolve(TABLE, widths=(1, 2, 4, 8), target_ns=tuple(map(tuple, times)), draft_ns=draft_ns)
    used = monotone(measured)
    for line in (*used.target_ns, *zip(*used.target_ns, strict=True), used.draft_ns):
        assert all(low <= high for low, high in pairwise(line))
    for rows, width, before, after in used.corrections:
        index = TABLE.rows.index(rows)
        old, new = (
            (measured.draft_ns, used.draft_ns) if width == 0 else (measured.target_ns[index], used.target_ns[index])
        )
        at = index if width == 0 else used.widths.index(width)
        assert (old[at], new[at]) == (before, after)
    changed = sum(
        old != new for mine, its in zip(times, used.target_ns, strict=True) for old, new in zip(mine, its, strict=True)
    )
    assert len(used.corrections) == changed + sum(old != new for old, new in zip(draft_ns, used.draft_ns, strict=True))
    assert falls(used) == []
    assert len(falls(measured)) == len(used.corrections)


def test_times_between_points_are_interpolated_and_beyond_them_the_last_one_counts() -> None:
    assert TABLE.target(1, 1) == 100
    assert TABLE.target(2, 16) == 260
    assert TABLE.target(2, 9) == 120 + 140 * (4.5 - 1) / 7
    assert TABLE.target(3, 3) == 140
    assert TABLE.target(9, 900) == 440
    assert TABLE.target(0, 0) == TABLE.draft(0) == 0
    assert (TABLE.draft(1), TABLE.draft(3), TABLE.draft(9)) == (50, 70, 80)
    assert attrs.evolve(TABLE, draft_ns=()).draft(3) == 0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no rows": ({"rows": ()}, "rows = []: expected rising integers"),
    "rows that do not rise": ({"rows": (1, 4, 4)}, "rows = [1, 4, 4]"),
    "a width of nothing": ({"widths": (0, 8)}, "widths = [0, 8]"),
    "a line too short": ({"target_ns": ((1, 2), (3,), (4, 5))}, "lines of [2, 1, 2] times: expected 3 lines of 2"),
    "a time of nothing": ({"draft_ns": (1, 0, 2)}, "draft_ns[1] = 0: expected nanoseconds"),
    "a time that is not finite": ({"target_ns": ((1, float("inf")), (3, 4), (5, 6))}, "target_ns[0][1] = inf"),
    "a negative time": ({"target_ns": ((1, 2), (-3, 4), (5, 6))}, "target_ns[1][0] = -3"),
    "too few blocks": ({"draft_ns": (1,)}, "draft_ns has 1 times: expected 3, or none"),
    "a negative context": ({"context_len": -1}, "context_len = -1"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_table_is_named_and_at_ready_it_breaks_the_contract(fault: str) -> None:
    fields, said = BAD[fault]
    table = attrs.evolve(TABLE, **fields)
    assert any(said in problem for problem in cost_problems(table))
    bench = Bench(vocab_size=50)
    bench.lose_worker()
    while bench.core.ledger.worker.state is worker.State.DEAD:
        bench.tick(milliseconds=100)
    session = bench.core.ledger.worker.session
    bench.send(events.WorkerHello(session))
    bench.send(events.WorkerLoaded(session))
    bench.send(events.WorkerReady(session, 2, 256, 7, (), table))
    assert bench.core.ledger.worker.state is worker.State.DEAD
    assert said in bench.core.ledger.worker.reason


def test_a_flat_table_is_legal() -> None:
    flat = attrs.evolve(TABLE, target_ns=((5, 5), (5, 5), (5, 5)), draft_ns=(5, 5, 5))
    assert cost_problems(flat) == falls(flat) == []
    assert monotone(flat) == flat


class Costly(Bench):
    """A bench whose workers measured something."""

    table = attrs.evolve(TABLE, target_ns=((100, 90), (120, 260), (160, 440)))

    def send(self, event: events.Input) -> Any:
        if isinstance(event, events.WorkerReady):
            event = attrs.evolve(event, costs=self.table)
        return super().send(event)


def test_the_first_readys_table_is_adopted_corrected_and_shown_by_stats() -> None:
    bench = Costly(vocab_size=50)
    first = bench.core.ledger.fingerprint()
    shown = bench.core.stats()["cost_table"]
    assert shown["target_ns"] == [[95, 95], [120, 260], [160, 440]]
    assert shown["corrections"] == [[1, 1, 100, 95], [1, 8, 90, 95]]
    assert (shown["context_len"], shown["fingerprint"]) == (64, {"device": "here"})
    bench.table = attrs.evolve(TABLE, draft_ns=(1, 1, 1))
    bench.lose_worker()
    bench.revive()
    assert bench.core.stats()["cost_table"] == shown, "a restarted worker changes no prices"
    assert Bench(vocab_size=50).core.ledger.fingerprint() != first, "what decides is in the fingerprint"
    assert Bench(vocab_size=50).core.stats()["cost_table"] is None
