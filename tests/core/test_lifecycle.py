"""Single situations of a request's life, with the faults of similar engines under their numbers."""

from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.tables import Machine
from dsparkd.scheduler.testing import Bench, Faults
from dsparkd.statemachine import request, slot, worker
from dsparkd.statemachine.errors import LocalError

SECOND_MS = 1000


def names(outputs: list[results.Output]) -> list[str]:
    return [type(one).__name__ for one in outputs]


def drive_until(bench: Bench, state: request.State, request_id: int = 0) -> None:
    for _ in range(50):
        if bench.core.ledger.requests[request_id].state is state:
            return
        bench.tick()
        if bench.core.ledger.requests[request_id].state is state:
            return
        bench.answer()
    raise AssertionError(f"{state.name} was not reached")


SETTINGS: dict[request.State, dict[str, Any]] = {
    request.State.QUEUED: {},
    request.State.SEED_READY: {},
    request.State.SEEDING: {},
    request.State.DRAFT_READY: {},
    request.State.ANCHOR_READY: {"max_draft_len": 0},
    request.State.VERIFYING: {},
    request.State.STEPPING: {"max_draft_len": 0},
}


def bench_in(state: request.State) -> Bench:
    """An engine whose request 0 is in `state`; chunks of four tokens make SEED_READY observable."""
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64, max_step_tokens=8), vocab_size=50)
    bench.submit(0, range(1, 12), max_tokens=20, **SETTINGS[state])
    drive_until(bench, state)
    return bench


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


def test_a_worker_death_requeues_its_requests_and_charges_only_those_in_flight() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64, max_step_tokens=1), vocab_size=50, mean=3.0)
    for one in range(3):
        bench.submit(one, [one + 1], max_tokens=6)
    bench.tick()
    bench.answer()
    bench.tick()
    in_flight = [one.id for one in bench.core.ledger.requests.values() if one.state in request.IN_FLIGHT]
    assert len(in_flight) == 1
    bench.lose_worker()
    assert [one.id for one in bench.core.ledger.queue] == [0, 1, 2]
    assert [one.restarts for one in bench.core.ledger.queue] == [int(one in in_flight) for one in range(3)]
    bench.revive()
    bench.run()
    for one in range(3):
        assert bench.tokens[one] == bench.solo([one + 1], 6)


def test_a_poison_request_fails_after_its_restarts_and_its_neighbours_live() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64, max_restarts=2), vocab_size=50)
    bench.submit(0, [13], max_tokens=6)
    bench.submit(1, [2], max_tokens=6)
    deaths = 0
    while 0 in bench.core.ledger.requests:
        bench.tick()
        poisoned = any(isinstance(r, events.Seed) and r.token_ids == [13] for r in bench.commands[-1].rows)
        if bench.in_flight is not None and poisoned:
            deaths += 1
            bench.lose_worker("poisoned")
            if 0 in bench.core.ledger.requests:
                # What died together is charged together: let the neighbour finish alone first.
                bench.core.ledger.requests[1].restarts = 0
                bench.revive()
        else:
            bench.answer()
    assert deaths == 3
    assert (bench.ended[0][0].state, bench.ended[0][0].reason) == ("FAILED", "WORKER_LOST")
    bench.revive()
    bench.run()
    assert bench.tokens[1] == bench.solo([2], 6)


def test_a_whole_step_fault_is_planned_once_more_one_by_one() -> None:
    bench = Bench(limits=Limits(num_slots=3, max_model_len=64), vocab_size=50, faults=Faults(steps=frozenset({2})))
    for one in range(3):
        bench.submit(one, [one + 1], max_tokens=9)
    bench.run()
    assert [len(command.rows) for command in bench.commands[:6]] == [3, 3, 1, 1, 1, 3]
    for one in range(3):
        assert bench.tokens[one] == bench.solo([one + 1], 9)
        assert bench.ended[one][0].counts.num_restarts == 0


def test_the_row_that_faults_alone_is_requeued_charged_and_its_slot_scrubbed() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64), vocab_size=50, faults=Faults(steps=frozenset({2, 3})))
    for one in range(2):
        bench.submit(one, [one + 1], max_tokens=9)
    bench.run()
    kinds = [[type(row).__name__ for row in command.rows] for command in bench.commands[:5]]
    assert kinds == [["Seed", "Seed"], ["Decode", "Decode"], ["Decode"], ["Scrub"], ["Decode"]]
    assert bench.ended[0][0].counts.num_restarts == 1
    for one in range(2):
        assert bench.tokens[one] == bench.solo([one + 1], 9)


def test_a_row_fault_costs_its_request_alone() -> None:
    faults = Faults(rows=frozenset({(2, 0)}))
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64, max_restarts=0), vocab_size=50, faults=faults)
    for one in range(2):
        bench.submit(one, [one + 1], max_tokens=9)
    bench.run()
    assert (bench.ended[0][0].state, bench.ended[0][0].reason) == ("FAILED", "ROW_FAULT")
    assert bench.tokens[1] == bench.solo([2], 9)
    assert bench.core.ledger.free == [0, 1]


def test_a_fault_in_a_retiring_slots_row_quarantines_the_slot() -> None:
    bench = Bench(vocab_size=50, faults=Faults(rows=frozenset({(2, 0)})))
    bench.submit(0, [1], max_tokens=9)
    bench.tick()
    bench.answer()
    bench.tick()
    bench.send(events.Cancel(0, 0))
    bench.answer()
    assert bench.core.ledger.slots[0].state is slot.State.QUARANTINED
    bench.tick()
    bench.answer()
    assert bench.core.ledger.slots[0].state is slot.State.FREE


def test_a_drafter_fault_costs_only_drafts_and_degrades_health() -> None:
    bench = Bench(vocab_size=50, faults=Faults(drafter=frozenset({2})))
    bench.submit(0, [1], max_tokens=30)
    bench.run()
    assert bench.tokens[0] == bench.solo([1], 30)
    ok, _, state, reasons = bench.core.health()
    assert (ok, state) == (False, "DEGRADED")
    assert any("drafter" in reason for reason in reasons)


def emitted(**change: Any) -> events.Emitted:
    return attrs.evolve(events.Emitted(0, 1, [1, 2], accepted_len=1, held_len=7), **change)


IMPOSSIBLE = {
    "no rows": [],
    "another slot": [emitted(slot=1)],
    "another epoch": [emitted(epoch=7)],
    "too many accepted": [emitted(accepted_len=8, token_ids=[1] * 9)],
    "tokens do not fit accepted": [emitted(token_ids=[1])],
    "holds what nobody asked for": [emitted(held_len=3)],
    "a negative token": [emitted(token_ids=[1, -1])],
    "a chunk for a pass": [events.Seeded(0, 1)],
    "a scrub for a pass": [events.Scrubbed(0)],
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_an_impossible_report_breaks_the_workers_contract_and_moves_nothing(kind: str) -> None:
    bench = Bench(vocab_size=50)
    bench.submit(0, [1], max_tokens=30)
    drive_until(bench, request.State.VERIFYING)
    before = list(bench.tokens[0])
    command = bench.in_flight
    assert command is not None
    bench.send(events.Report(command.session, command.step_id, IMPOSSIBLE[kind]))
    assert bench.core.ledger.worker.state is worker.State.DEAD
    assert bench.tokens[0] == before
    bench.revive()
    bench.run()
    assert bench.tokens[0] == bench.solo([1], 30)


def test_reports_of_another_session_or_an_old_step_are_dropped_and_a_future_one_breaks_the_contract() -> None:
    bench = Bench(vocab_size=50)
    bench.submit(0, [1], max_tokens=30)
    drive_until(bench, request.State.VERIFYING)
    command = bench.in_flight
    assert command is not None
    for session, step_id in ((9, command.step_id), (command.session, command.step_id - 1)):
        before = bench.core.ledger.fingerprint()
        assert bench.send(events.Report(session, step_id, [emitted()])) == []
        assert bench.core.ledger.fingerprint() == before
    bench.send(events.Report(command.session, command.step_id + 1, [emitted()]))
    assert bench.core.ledger.worker.state is worker.State.DEAD


def test_a_stalled_worker_is_killed_and_an_idle_one_that_answers_is_not() -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64), vocab_size=50)
    for _ in range(5):
        bench.tick(milliseconds=8 * SECOND_MS)
        bench.send(events.WorkerBeat(1, 0))
    assert bench.core.ledger.worker.state is worker.State.READY
    bench.submit(0, [1], max_tokens=30)
    bench.tick()
    bench.send(events.WorkerBeat(1, 0))  # alive is not progressing
    bench.tick(milliseconds=16 * SECOND_MS)
    assert any("overdue" in reason for reason in bench.core.health()[3])
    outputs = bench.tick(milliseconds=15 * SECOND_MS)
    assert "KillWorker" in names(outputs)
    bench.revive()
    bench.run()
    assert bench.tokens[0] == bench.solo([1], 30)


def test_beyond_the_restart_budget_every_request_fails_once_and_new_ones_are_refused() -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64, restart_budget=1, max_restarts=9), vocab_size=50)
    bench.submit(0, [1], max_tokens=30)
    bench.submit(1, [1], max_tokens=30)
    bench.lose_worker()
    bench.revive()
    bench.tick()
    bench.lose_worker("second death")
    bench.tick()
    bench.tick(milliseconds=10 * SECOND_MS)
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert [bench.ended[one][0].reason for one in (0, 1)] == ["WORKER_LOST", "WORKER_LOST"]
    bench.submit(2, [1])
    assert bench.refused[2][0].code == "NO_WORKER"
    assert "second death" in bench.refused[2][0].message


def test_a_smaller_worker_after_a_restart_is_abandoned_with_both_numbers() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64), vocab_size=50)
    bench.lose_worker()
    while bench.core.ledger.worker.session == 1:
        bench.tick(milliseconds=100)
    bench.send(events.WorkerHello(2))
    bench.send(events.WorkerLoaded(2))
    bench.send(events.WorkerReady(2, 1, 64, 7))
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert "(1, 64, 7)" in bench.core.ledger.worker.reason
    assert "(2, 64, 7)" in bench.core.ledger.worker.reason


@pytest.mark.parametrize("word", ["hello", "loaded"], ids=["loading", "warming"])
def test_a_worker_that_refuses_what_it_was_told_is_the_last_one(word: str) -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64), vocab_size=50)
    bench.submit(0, [1], max_tokens=9)
    bench.lose_worker()
    while bench.core.ledger.worker.session == 1:
        bench.tick(milliseconds=100)
    bench.send(events.WorkerHello(2))
    if word == "loaded":
        bench.send(events.WorkerLoaded(2))
    bench.send(events.WorkerRefused(2, "the checkpoint is damaged"))
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert (bench.ended[0][0].reason, bench.ended[0][0].message) == ("WORKER_LOST", "the checkpoint is damaged")
    bench.send(events.WorkerDied(2, "it left"))
    bench.tick(milliseconds=60 * SECOND_MS)
    assert bench.core.ledger.worker.session == 2


def test_a_policy_that_wants_more_than_the_drafters_block_is_refused_at_ready() -> None:
    bench = Bench("fixed:9", limits=Limits(num_slots=1, max_model_len=64), vocab_size=50)
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert "wants 9 drafts" in bench.core.ledger.worker.reason
    assert "block has 7" in bench.core.ledger.worker.reason
    plain = Bench("fixed:9", limits=Limits(num_slots=1, max_model_len=64), vocab_size=50, block_len=0)
    assert plain.core.ledger.worker.state is worker.State.READY


def test_drain_finishes_what_is_live_refuses_what_is_new_and_comes_to_rest() -> None:
    bench = Bench(vocab_size=50)
    bench.submit(0, [1], max_tokens=10)
    bench.send(events.Drain())
    bench.submit(1, [1])
    assert bench.refused[1][0].code == "DRAINING"
    bench.run()
    assert bench.tokens[0] == bench.solo([1], 10)
    assert bench.core.ledger.worker.state is worker.State.DRAINING
    assert names(bench.send(events.WorkerDied(1, "said goodbye")))[-1] == "EngineStopped"


@pytest.mark.parametrize("state", SETTINGS, ids=lambda state: state.name)
def test_the_drain_deadline_and_a_stop_fail_the_rest_in_every_state(state: request.State) -> None:
    for how in ("drain", "stop"):
        bench = bench_in(state)
        bench.send(events.Drain() if how == "drain" else events.Stop())
        if how == "drain":
            bench.in_flight = None
            bench.tick()
            bench.tick(milliseconds=31 * SECOND_MS)
        expected = "DRAIN_DEADLINE" if how == "drain" else "ENGINE_STOPPED"
        assert bench.ended[0][0].state == "FAILED"
        assert bench.ended[0][0].reason in (expected, "WORKER_LOST")
        bench.send(events.WorkerDied(1, "left"))
        assert bench.core.at_rest


def test_a_client_that_leaves_cancels_its_requests_and_one_that_is_away_has_its_grace() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64), vocab_size=50)
    bench.submit(0, [1], client=1, max_tokens=30)
    bench.submit(1, [2], client=2, max_tokens=30)
    bench.send(events.ClientGoodbye(1))
    assert bench.ended[0][0].reason == "client_gone"
    bench.send(events.ClientUnreachable(2))
    bench.tick()
    bench.tick(milliseconds=9 * SECOND_MS)
    assert 1 not in bench.ended
    bench.send(events.ClientHello(2))
    bench.tick(milliseconds=5 * SECOND_MS)
    bench.send(events.ClientUnreachable(2))
    bench.tick()
    bench.tick(milliseconds=11 * SECOND_MS)
    assert bench.ended[1][0].reason == "client_gone"
    assert bench.core.ledger.clients == {}


def test_resume_sends_the_output_again_from_an_index_to_its_owner_only() -> None:
    bench = Bench("fixed:0", vocab_size=50)
    bench.submit(0, [1], max_tokens=9)
    for _ in range(4):
        bench.tick()
        bench.answer()
    tokens = list(bench.tokens[0])
    (again,) = bench.core.handle(events.Resume(0, 0, 1))
    assert isinstance(again, results.Tokens)
    assert (again.index, again.token_ids) == (1, tokens[1:])
    for client, from_index, code in ((5, 0, "UNKNOWN_REQUEST"), (0, 99, "BAD_INDEX")):
        (refusal,) = bench.core.handle(events.Resume(client, 0, from_index))
        assert isinstance(refusal, results.Refusal)
        assert refusal.code == code


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"prompt": []}, "EMPTY_PROMPT"),
    "prompt over max_prompt_len": ({"prompt": [1] * 9}, "PROMPT_TOO_LONG"),
    "no tokens wanted": ({"prompt": [1], "max_tokens": 0}, "BAD_OPTION"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_submit_that_does_not_fit_is_refused_with_its_code(kind: str) -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64, max_prompt_len=8, max_queue=2), vocab_size=50)
    arguments, code = REFUSALS[kind]
    bench.submit(0, **arguments)
    assert bench.refused[0][0].code == code
    assert bench.core.ledger.requests == {}


def test_a_full_queue_and_a_live_id_are_refused_and_disturb_nobody() -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=64, max_queue=2), vocab_size=50)
    bench.submit(0, [1], max_tokens=9)
    bench.submit(0, [2], max_tokens=9)
    bench.submit(1, [1], max_tokens=9)
    bench.submit(2, [1], max_tokens=9)
    assert bench.refused[0][0].code == "DUPLICATE_ID"
    assert bench.refused[2][0].code == "QUEUE_FULL"
    bench.run()
    assert bench.tokens[0] == bench.tokens[1] == bench.solo([1], 9)


def test_the_invariants_notice_a_broken_ledger() -> None:
    bench = Bench(vocab_size=50)
    bench.submit(0, [1], max_tokens=9)
    bench.tick()
    bench.core.ledger.free.append(0)
    with pytest.raises(LocalError, match="slot 0"):
        bench.send(events.ClientHello(0))
