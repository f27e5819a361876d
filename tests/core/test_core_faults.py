"""Faults of rows, steps and workers: who is charged, what is scrubbed, what breaks the worker's contract."""

from typing import Any

import attrs
import pytest
from core_support import SECOND_MS, drive_until, names
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.ledger import Timer
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench, Faults
from dsparkd.statemachine import request, slot, worker
from hypothesis import given
from hypothesis import strategies as st


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


@given(deaths=st.lists(st.booleans(), max_size=12), budget=st.integers(0, 3))
def test_deaths_count_against_the_restart_budget_only_in_a_row_without_a_token(deaths: list[bool], budget: int) -> None:
    bench = Bench(limits=Limits(num_slots=1, max_model_len=512, restart_budget=budget, max_restarts=99), vocab_size=50)
    bench.submit(0, [1], max_tokens=400)
    one, fruitless = bench.core.ledger.requests[0], 0
    for emits_first in deaths:
        if emits_first:
            fruitless, told = 0, len(one.output)
            while len(one.output) == told:
                bench.tick()
                bench.answer()
        bench.lose_worker()
        due_ns = bench.core.ledger.timers[Timer.RESPAWN, 0][0]
        assert due_ns == bench.core.limits.respawn_delay_ns * 2**fruitless
        bench.revive()
        gave_up = bench.core.ledger.worker.state is worker.State.ABANDONED
        assert gave_up == (fruitless == budget)
        if gave_up:
            return
        fruitless += 1
    bench.run()
    assert bench.tokens[0] == bench.solo([1], 400)


def test_a_smaller_worker_after_a_restart_is_abandoned_with_both_numbers() -> None:
    bench = Bench(limits=Limits(num_slots=2, max_model_len=64), vocab_size=50)
    bench.lose_worker()
    while bench.core.ledger.worker.session == 1:
        bench.tick(milliseconds=100)
    bench.send(events.WorkerHello(2))
    bench.send(events.WorkerLoaded(2))
    bench.send(events.WorkerReady(2, 1, 64, 7))
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert "= (1, 64, 7," in bench.core.ledger.worker.reason
    assert "below (2, 64, 7," in bench.core.ledger.worker.reason


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
