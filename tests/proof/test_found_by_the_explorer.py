"""Faults that the proof found in the core, each with its whole kind."""

from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench, Faults
from dsparkd.statemachine import worker

SECOND_MS = 1000
WORDS = {
    "hello": lambda session: events.WorkerHello(session),
    "loaded": lambda session: events.WorkerLoaded(session),
    "ready": lambda session: events.WorkerReady(session, 2, 64, 7),
    "refused": lambda session: events.WorkerRefused(session, "a bad checkpoint"),
    "died": lambda session: events.WorkerDied(session, "its exit"),
    "broke": lambda session: events.WorkerBroke(session, "junk"),
    "beat": lambda session: events.WorkerBeat(session, 0),
    "report": lambda session: events.Report(session, 1, []),
    "fault": lambda session: events.StepFault(session, 1, "FAULT", "it raised"),
}


def limits(**change: Any) -> Limits:
    return Limits(**{"num_slots": 2, "max_model_len": 64, **change})


def at_an_end(how: str) -> Bench:
    """An engine whose worker is dead or gone, with the session that it had."""
    bench = Bench(limits=limits(restart_budget=0), vocab_size=50)
    if how == "stopped":
        bench.send(events.Stop())
        bench.send(events.WorkerDied(1, "left"))
    else:
        bench.lose_worker()
    if how == "abandoned":
        bench.tick()
        bench.tick(milliseconds=SECOND_MS)
        assert bench.core.ledger.worker.state is worker.State.ABANDONED
    return bench


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("how", ["dead", "abandoned", "stopped"])
def test_whatever_a_worker_that_is_over_still_says_changes_nothing(how: str, word: str) -> None:
    bench = at_an_end(how)
    before = bench.core.ledger.fingerprint()
    bench.send(WORDS[word](1))
    assert bench.core.ledger.fingerprint() == before


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_an_engine_that_stops_between_two_workers_stays_at_rest(how: str) -> None:
    """The timer of the next spawn used to run on, and its ring was illegal in STOPPED."""
    bench = Bench(limits=limits(), vocab_size=50)
    bench.lose_worker()
    bench.tick()
    bench.send(events.Drain() if how == "drain" else events.Stop())
    assert bench.core.at_rest
    assert bench.core.next_timer() is None
    bench.tick(milliseconds=60 * SECOND_MS)
    assert bench.core.ledger.worker.state is worker.State.STOPPED


def test_a_drafter_fault_in_the_last_report_of_a_leaving_worker_is_no_illegal_event() -> None:
    bench = Bench(vocab_size=50, faults=Faults(drafter=frozenset({2})))
    bench.submit(0, [1], max_tokens=30)
    bench.tick()
    bench.answer()
    bench.tick()
    bench.send(events.Stop())
    bench.answer()
    assert bench.core.ledger.worker.state is worker.State.DRAINING


@pytest.mark.parametrize("ended", ["cancelled", "finished"])
def test_an_id_that_is_used_again_does_not_inherit_the_old_deadline(ended: str) -> None:
    bench = Bench(vocab_size=50)
    bench.submit(0, [1], max_tokens=1 if ended == "finished" else 30, deadline_ns=5 * 10**9)
    if ended == "cancelled":
        bench.send(events.Cancel(0, 0))
    else:
        bench.run()
    bench.submit(0, [1, 2], max_tokens=30)
    bench.tick(milliseconds=6 * SECOND_MS)
    assert 0 in bench.core.ledger.requests


def test_the_deadline_of_a_request_that_is_over_wakes_nobody() -> None:
    bench = Bench(vocab_size=50)
    bench.tick()
    idle = bench.core.next_timer()
    bench.submit(0, [1], deadline_ns=2 * 10**6)
    assert bench.core.next_timer() == 2 * 10**6
    bench.send(events.Cancel(0, 0))
    assert bench.core.next_timer() == idle


def test_one_loss_is_listed_once_however_often_it_strikes() -> None:
    bench = Bench(vocab_size=50, faults=Faults(drafter=frozenset(range(1, 20))))
    bench.submit(0, [1], max_tokens=15)
    bench.run()
    assert bench.core.ledger.worker.lost == ["the drafter was told to fail"]
