"""Prefix reuse: what a slot still holds serves later prompts, whoever was its tenant, and no text shows it."""

from collections.abc import Sequence
from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.ledger import Slot
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.prefix import context_lost, usable_len
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.scripted import Faults
from hypothesis import given
from hypothesis import strategies as st

LONG = list(range(100, 160))  # a prompt, and what shares its beginning


def bench(num_slots: int = 2, *, min_reuse_len: int | None = 4, **options: Any) -> Bench:
    return Bench(limits=Limits(num_slots=num_slots, max_model_len=400, min_reuse_len=min_reuse_len), **options)


def finish(one: Bench, request: int, prompt: Sequence[int], **options: Any) -> list[int]:
    """Run a request alone to its end and return its whole text; it must say what plain decoding says."""
    options = {"max_tokens": 6, **options}
    one.submit(request, prompt, **options)
    one.run()
    assert one.tokens[request] == one.solo(prompt, options["max_tokens"])
    return [*prompt, *one.tokens[request]]


def reused(one: Bench, request: int) -> int:
    return one.ended[request][0].counts.prefix_tokens_reused


def opens(one: Bench) -> list[tuple[int, events.Open]]:
    """(slot, Open) of every tenancy, in order."""
    return [
        (row.slot, row.opens)
        for command in one.commands
        for row in command.rows
        if isinstance(row, events.Seed) and row.opens is not None
    ]


def test_the_next_turn_of_a_chat_seeds_only_what_is_new() -> None:
    one = bench(num_slots=1)
    text = finish(one, 1, LONG)
    longer = [*text, 7, 8, 9]
    finish(one, 2, longer)
    # The last token of the first answer was never in the window: it is seeded with the new ones.
    assert reused(one, 2) == len(text) - 1
    seeds = [row for command in one.commands for row in command.rows if isinstance(row, events.Seed)]
    assert seeds[-1].token_ids == longer[len(text) - 1 :]


def test_l046_two_chats_take_turns_on_few_slots_and_both_say_what_they_say_alone() -> None:
    for num_slots in (1, 2):
        one = bench(num_slots)
        texts = {"long": LONG, "short": [1, 2, 3, 4, 5]}
        for turn in range(20):
            name = ("long", "short")[turn % 2]
            texts[name] = [*finish(one, turn, [*texts[name], 300 + turn], max_tokens=4)]
        for turn in range(2, 20):
            assert (reused(one, turn) > 0) == (num_slots == 2), f"turn {turn} on {num_slots} slots"


def test_a_long_prefix_is_copied_from_a_request_that_still_runs() -> None:
    one = bench()
    one.submit(1, LONG, max_tokens=40)
    one.tick()
    one.answer()
    one.submit(2, [*LONG[:50], 5, 6], max_tokens=6)
    one.run()
    assert reused(one, 2) == 50
    assert opens(one)[1] == (1, events.Open(50, 0, 1))
    assert one.tokens[2] == one.solo([*LONG[:50], 5, 6], 6)
    assert one.tokens[1] == one.solo(LONG, 40)


def test_a_slot_that_holds_mostly_something_else_is_copied_from_and_left_for_its_owner() -> None:
    one = bench()
    finish(one, 1, LONG)
    finish(one, 2, [*LONG[:10], 5])
    assert opens(one)[1] == (1, events.Open(10, 0, 1))
    finish(one, 3, [*LONG, 9])
    assert reused(one, 3) == len(LONG)


def test_the_least_recently_left_slot_is_taken_when_nothing_fits() -> None:
    one = bench(num_slots=3)
    for request, first in enumerate((10, 20, 30)):
        finish(one, request, [first] * 8)
    finish(one, 3, [10] * 8)  # a hit makes slot 0 the youngest
    finish(one, 4, [40] * 8)
    finish(one, 5, [50] * 8)
    assert [slot for slot, _ in opens(one)] == [0, 1, 2, 0, 1, 2]


def test_requests_of_different_salts_never_share() -> None:
    one = bench(num_slots=2)
    finish(one, 1, LONG, salt="a")
    finish(one, 2, LONG, salt="b")
    finish(one, 3, LONG)
    finish(one, 4, LONG, salt="b")
    assert [reused(one, request) > 0 for request in (1, 2, 3, 4)] == [False, False, False, True]


def test_nothing_is_kept_when_it_is_switched_off() -> None:
    one = bench(num_slots=1, min_reuse_len=None)
    text = finish(one, 1, LONG)
    finish(one, 2, text)
    assert reused(one, 2) == 0
    assert all(kept == events.Open() for _, kept in opens(one))


def test_a_prefix_shorter_than_the_least_is_not_worth_it() -> None:
    one = bench(num_slots=2, min_reuse_len=20)
    finish(one, 1, LONG)
    finish(one, 2, [*LONG[:19], 1, 2, 3])
    finish(one, 3, [*LONG[:20], 1, 2, 3])
    assert [reused(one, request) for request in (2, 3)] == [0, 20]


def test_l044_a_repeated_prompt_is_reused_to_the_same_length_with_and_without_drafting() -> None:
    found = []
    for policy in ("fixed:7", "fixed:0"):
        one = bench(num_slots=2, policy=policy)
        finish(one, 1, LONG)
        finish(one, 2, LONG)
        found.append(reused(one, 2))
    assert found == [len(LONG) - 1] * 2


def test_what_a_dead_worker_held_is_forgotten() -> None:
    one = bench()
    finish(one, 1, LONG)
    one.lose_worker()
    one.revive()
    finish(one, 2, LONG)
    assert reused(one, 2) == 0
    assert not any(isinstance(row, events.RowFault) for report in one.reports for row in getattr(report, "rows", ()))


def test_a_scrubbed_slot_serves_nobody() -> None:
    one = bench(num_slots=1, faults=Faults(rows=frozenset({(3, 0)})))
    one.submit(1, LONG, max_tokens=30)
    one.run()
    assert one.tokens[1] == one.solo(LONG, 30)
    assert [kept for _, kept in opens(one)] == [events.Open(), events.Open()]


def test_a_retiring_slot_offers_nothing_before_its_step_is_over() -> None:
    one = bench()
    one.submit(1, LONG, max_tokens=40)
    one.tick()
    one.answer()
    one.tick()
    one.send(events.Cancel(0, 1))  # its row is in flight
    one.submit(2, LONG, max_tokens=6)
    one.tick()
    assert one.core.ledger.slots[0].state.name == "RETIRING"
    one.answer()
    one.run()
    assert reused(one, 2) == len(LONG) - 1  # planned after the step: the content is there, and sure
    assert one.tokens[2] == one.solo(LONG, 6)


def test_a_step_that_fails_while_it_takes_a_prefix_over_leaves_no_trace_in_the_text() -> None:
    for failing in (4, 5):
        one = bench(num_slots=2, faults=Faults(steps=frozenset({failing})), mean=3.0)
        finish(one, 1, LONG, max_tokens=4)
        finish(one, 2, [*LONG[:40], 1, 2, 3], max_tokens=4)
        finish(one, 3, [*LONG, 4, 4], max_tokens=4)


def test_after_a_failed_take_over_no_more_is_offered_than_it_kept() -> None:
    """Positions behind what an Open keeps may be overwritten, although the step that wrote them never counted."""
    one = bench(num_slots=2, faults=Faults(steps=frozenset({3})))
    finish(one, 1, LONG, max_tokens=1)
    one.submit(2, [*LONG[:50], 1, 2], max_tokens=6)
    one.submit(3, [5, 5, 5, 5], max_tokens=6)
    one.tick()
    assert opens(one)[1] == (0, events.Open(50, 0, 1))
    one.worker.num_runs = 2
    one.answer()
    one.send(events.Cancel(0, 2))
    finish(one, 4, [*LONG, 7], max_tokens=6)
    assert reused(one, 4) == 50
    assert not any(isinstance(row, events.RowFault) for report in one.reports for row in getattr(report, "rows", ()))


def test_statistics_sum_what_was_reused() -> None:
    one = bench(num_slots=1)
    finish(one, 1, LONG)
    finish(one, 2, LONG)
    assert one.core.stats()["prefix_tokens_reused"] == len(LONG) - 1


# ---- rings -------------------------------------------------------------------------------------------------------


def ring_bench(window: int, num_slots: int = 2) -> Bench:
    one = bench(num_slots)
    capacity = one.core.ledger.worker.capacity
    assert capacity is not None
    object.__setattr__(capacity, "drafter_window", window)
    return one


def test_where_a_ring_has_lost_rows_the_last_window_is_seeded_again() -> None:
    one = ring_bench(window=20)
    text = finish(one, 1, LONG)
    finish(one, 2, [*LONG[:50], 1, 2])
    assert reused(one, 2) == 50 - 20
    finish(one, 3, [*text, 1])  # the whole content: its ring is all there
    assert reused(one, 3) == len(text) - 1


@given(
    window=st.integers(1, 12),
    held=st.integers(1, 40),
    start=st.integers(0, 12),
    common=st.integers(1, 40),
    more=st.integers(1, 12),
)
def test_whatever_is_kept_the_drafter_finds_every_row_that_it_reads(
    window: int, held: int, start: int, common: int, more: int
) -> None:
    """Rows of a context are there from `start` on, and inside the ring; a keep may use them or must do without."""
    one = ring_bench(window)
    source = Slot(0)
    source.window_len, source.context_start = held, min(start, held)
    common = min(common, held)
    there = set(range(max(source.context_start, held - window), held))
    keep_len = usable_len(source, common, one.core.ledger)
    assert 0 <= keep_len <= common
    kept = set() if context_lost(source, keep_len, one.core.ledger) else {row for row in there if row < keep_len}
    text_len = common + more  # everything from keep_len on is seeded, then the drafter reads one window
    rows = kept | set(range(keep_len, text_len))
    assert set(range(max(0, text_len - window), text_len)) <= rows


@pytest.mark.parametrize("window", [8, 20, 45])
def test_a_chat_on_a_ring_goes_on_saying_what_it_says_alone(window: int) -> None:
    one = ring_bench(window)
    text = LONG
    for turn in range(6):
        text = finish(one, turn, [*text, 300 + turn])
