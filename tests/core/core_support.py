"""Benches in a chosen state, for tests of the core."""

from typing import Any

from dsparkd.scheduler.core import results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import request

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
