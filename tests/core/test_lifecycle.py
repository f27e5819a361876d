"""Single situations of a request's life, with the faults of similar engines under their numbers."""

import pytest
from core_support import SECOND_MS, SETTINGS, bench_in, drive_until, names
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.tables import Machine
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import request, slot


@pytest.mark.parametrize("state", SETTINGS, ids=lambda state: state.name)
def test_l001_cancel_in_every_state_ends_once_and_gives_the_slot_back(state: request.State) -> None:
    bench = bench_in(state)
    outputs = bench.send(events.Cancel(0, 0))
    assert names(outputs) == ["CancelAck", "Ended"]
    assert (bench.ended[0][0].state, bench.ended[0][0].reason) == ("CANCELLED", "cancelled")
    emitted = list(bench.tokens.get(0, []))
    bench.answer()
    bench.tick()
    assert len(bench.ended[0]) == 1
    assert bench.tokens.get(0, []) == emitted
    assert bench.core.ledger.free == [0]
    again = bench.send(events.Cancel(0, 0))
    assert again == [results.CancelAck(0, 0, live=False)]


@pytest.mark.parametrize("state", SETTINGS, ids=lambda state: state.name)
def test_a_deadline_in_every_state_fails_the_request_at_once(state: request.State) -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64, max_step_tokens=8), vocab_size=50)
    bench.submit(0, range(1, 12), max_tokens=20, deadline_ns=5 * 10**9, **SETTINGS[state])
    drive_until(bench, state)
    bench.tick(milliseconds=6 * SECOND_MS)
    assert (bench.ended[0][0].state, bench.ended[0][0].reason) == ("FAILED", "DEADLINE")


@pytest.mark.parametrize("state", SETTINGS, ids=lambda state: state.name)
def test_an_internal_error_in_every_state_fails_that_request_and_quarantines_its_slot(state: request.State) -> None:
    bench = bench_in(state)
    # SEEDED outside SEEDING, ADMIT in it: an illegal event for the state, as only a bug of ours could send.
    wrong = request.Event.ADMIT if state is not request.State.QUEUED else request.Event.SEEDED
    bench.core.send(Machine.REQUEST, bench.core.ledger.requests[0], wrong)
    bench.send(events.ClientHello(0))
    assert (bench.ended[0][0].state, bench.ended[0][0].reason) == ("FAILED", "INTERNAL")
    expected = slot.State.FREE if state is request.State.QUEUED else slot.State.QUARANTINED
    assert bench.core.ledger.slots[0].state is expected
    assert not bench.core.health()[0]
    bench.answer()
    bench.tick()
    bench.answer()
    assert bench.core.ledger.free == [0]


def test_l028_a_late_result_never_reaches_the_slots_next_tenant() -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64), vocab_size=50, mean=4.0)
    bench.submit(0, [1, 2, 3], max_tokens=20)
    drive_until(bench, request.State.VERIFYING)
    command = bench.in_flight
    bench.send(events.Cancel(0, 0))
    bench.submit(1, [7, 8], max_tokens=10)
    bench.tick()
    assert bench.core.ledger.slots[0].state is slot.State.RETIRING
    assert bench.core.ledger.requests[1].state is request.State.QUEUED
    bench.answer()
    late = bench.reports[-1]
    bench.tick()
    assert bench.core.ledger.requests[1].state is request.State.SEEDING
    assert bench.core.ledger.slots[0].epoch == 2
    dropped = bench.core.totals.reports_dropped
    assert bench.send(late) == []
    assert bench.core.totals.reports_dropped == dropped + 1
    assert command is not None
    assert bench.core.totals.rows_discarded == 1
    bench.run()
    assert bench.tokens[1] == bench.solo([7, 8], 10)
    assert len(bench.ended[0]) == 1


@pytest.mark.parametrize("acceptance", [6, 0], ids=["all but one stand", "none stands"])
@pytest.mark.parametrize("draft_len", [7, 1])
def test_l023_a_rejection_commits_exactly_what_was_emitted(acceptance: int, draft_len: int) -> None:
    bench = Bench(f"fixed:{draft_len}", acceptance=[min(acceptance, draft_len - 1)], vocab_size=50)
    bench.submit(0, [5, 6, 7], max_tokens=30)
    while bench.core.ledger.requests:
        bench.tick()
        bench.answer()
        live = bench.core.ledger.requests.get(0)
        if live is not None and live.output:
            assert bench.worker.slots[0].window_len == len(live.prompt) + len(live.output) - 1
    assert bench.tokens[0] == bench.solo([5, 6, 7], 30)


def test_l024_a_zero_draft_is_absence_and_never_a_row_of_token_zero() -> None:
    bench = Bench(target=[0, 0, 1, 0], vocab_size=2)
    bench.submit(0, [1], max_tokens=12, max_draft_len=0)
    bench.run()
    rows = [row for command in bench.commands for row in command.rows if isinstance(row, events.Decode)]
    assert rows
    assert all(row.draft_len == 0 and row.propose_len == 0 for row in rows)
    counts = bench.ended[0][0].counts
    assert (counts.num_drafted, counts.num_verified, counts.num_zero_passes) == (0, 0, len(rows))
    assert bench.tokens[0] == bench.solo([1], 12)


def test_l050_nothing_is_drafted_or_emitted_before_the_last_chunk() -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64, max_step_tokens=8), vocab_size=50)
    bench.submit(0, range(20), max_tokens=5)
    chunks = []
    while not bench.tokens.get(0):
        bench.tick()
        (row,) = bench.commands[-1].rows
        assert isinstance(row, events.Seed)
        chunks.append(row)
        bench.answer()
    assert [len(row.token_ids) for row in chunks] == [8, 8, 4]
    assert [row.last for row in chunks] == [False, False, True]
    assert [row.propose_len > 0 for row in chunks] == [False, False, True]
    assert [row.opens is not None for row in chunks] == [True, False, False]


def test_l052_a_stop_inside_the_limit_wins_and_the_limit_before_the_stop_wins() -> None:
    block = [11, 12, 13, 14, 15, 16]  # 13 is the stop
    for max_tokens, expected, reason in ((5, [11, 12, 13], "stop"), (2, [11, 12], "length"), (3, [11, 12, 13], "stop")):
        # The prompt is one token long, so the target's token at position n is block[n - 1].
        bench = Bench(target=[99, *block], vocab_size=100, acceptance=[7])
        bench.submit(0, [1], max_tokens=max_tokens, stop_token_ids=frozenset({13}))
        bench.run()
        assert (bench.tokens[0], bench.ended[0][0].reason) == (expected, reason)


@pytest.mark.parametrize("position", range(12))
def test_l054_a_stop_at_any_position_of_a_block_ends_the_output_there(position: int) -> None:
    bench = Bench(acceptance=[7], vocab_size=5000)
    reference = bench.solo([3, 4], 12)
    stop = reference[position]
    bench.submit(0, [3, 4], max_tokens=12, stop_token_ids=frozenset({stop}))
    bench.submit(1, [3, 4], max_tokens=12)
    bench.run()
    assert bench.tokens[0] == reference[: reference.index(stop) + 1]
    assert bench.ended[0][0].reason == "stop"
    assert bench.tokens[1] == reference


def test_l056_a_drafted_stop_that_the_target_rejects_ends_nothing() -> None:
    stop = 49
    bench = Bench(target=[1, 2, 3], propose=lambda text, length: [stop] * length, vocab_size=50)
    bench.submit(0, [9, 9], max_tokens=15, stop_token_ids=frozenset({stop}))
    bench.run()
    assert bench.ended[0][0].reason == "length"
    assert len(bench.tokens[0]) == 15


def test_counts_are_sums_over_the_reported_rows_after_the_cut() -> None:
    bench = Bench("fixed:4", acceptance=[4, 0, 2], vocab_size=50)
    bench.submit(0, [1, 2], max_tokens=13)
    bench.run()
    rows = [row for command in bench.commands for row in command.rows if isinstance(row, events.Decode)]
    passes = [one for one in bench.outputs if isinstance(one, results.Tokens) and one.draft_len is not None]
    counts = bench.ended[0][0].counts
    assert counts.num_passes == len(rows)
    assert counts.num_verified == sum(row.draft_len for row in rows) == sum(counts.verified_at)
    assert counts.num_accepted == sum(one.accepted_len for one in passes) == sum(counts.accepted_at)
    assert counts.num_emitted_drafting == sum(len(one.token_ids) for one in passes if one.draft_len)
    stats = bench.core.stats()
    assert stats["tokens_emitted"] == 13
    assert stats["tokens_accepted"] == counts.num_accepted
