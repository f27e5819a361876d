"""Clients and the engine: drains, stops, graces, resumes and refusals."""

from typing import Any

import pytest
from core_support import SECOND_MS, SETTINGS, bench_in, names
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import request, worker
from dsparkd.statemachine.errors import LocalError


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
