"""The real core over the real worker with something wrong inside a step, and what may be wrong afterwards: nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from dsparkd.scheduler.core import events
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import slot
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.faults import Point, injected
from worker_support import Driver, backend, bench, phases_of, samples

PROMPTS = [list(sample["prompt_ids"]) for sample in samples("vanilla")]
SIZES = {"num_slots": 2, "max_model_len": 48}


@cache
def worker(watches: bool = True, runner: str = "eager", acceptance: str = "coupled") -> TorchBackend:
    """One warm worker for many benches: each begins with nothing in its slots."""
    return backend("vanilla", paranoid=watches, runner=runner, acceptance=acceptance, **SIZES)


def served(made: TorchBackend, **limits: Any) -> Bench:
    """Two slots and three requests, greedy and sampled, one prompt in two chunks; run to the end."""
    windows = phases_of(made).windows
    for number in range(2):
        type(windows).scrub(windows, number)  # what is injected into the run does not meet this
    one = bench("fixed:4", made=made, limits={"max_step_tokens": 12, **limits})
    one.submit(1, (PROMPTS[0] * 4)[:17], max_tokens=9)
    one.submit(2, PROMPTS[1][:5], max_tokens=6, params=events.Params(temperature=0.7, seed=3))
    one.submit(3, (PROMPTS[0] * 4)[:9], max_tokens=5)
    one.run(max_steps=600)
    return one


def nothing_leaks(one: Bench) -> None:
    """All slots are free again, and what the worker would still read is what the scheduler knows of."""
    while any(held.state is not slot.State.FREE for held in one.core.ledger.slots):
        one.tick()  # scrubs what is quarantined
        assert one.in_flight is not None
        one.answer()
    windows = phases_of(one.worker.backend).windows  # type: ignore[attr-defined]
    for number, held in enumerate(one.core.ledger.slots):
        window = windows.table[number]
        assert held.owner is None
        assert window.epoch is None or window.length == len(held.content), "rows that nobody knows of can be read"


@cache
def expected(runner: str = "eager") -> dict[int, list[int]]:
    return served(worker(runner=runner)).tokens


def check(one: Bench, *, runner: str = "eager") -> None:
    assert one.tokens == expected(runner)
    assert {request: [end.state for end in ends] for request, ends in one.ended.items()} == {
        request: ["FINISHED"] for request in (1, 2, 3)
    }
    nothing_leaks(one)


@cache
def passages(point: Point) -> int:
    """How often an undisturbed run passes `point`."""
    made = worker()
    with injected(made.runner, point, lambda: None) as found:
        served(made)
    return found.num_calls


@contextmanager
def spoiled(made: TorchBackend, *, call: int, row: int, value: float) -> Iterator[list[int]]:
    """Let one row of the `call`th target pass come out as `value`, with all that it leaves in its window.

    Yields the slots that were hit.
    """
    runner, windows = phases_of(made).runner, phases_of(made).windows
    plain, count, hit = runner.forward, 0, list[int]()

    def forward(batch: Any) -> Any:
        nonlocal count
        logits, features = (part.clone() for part in plain(batch))
        count += 1
        if count == call and row < len(batch.jobs):
            job, first = batch.jobs[row], batch.firsts[row]
            before = sum((one.width if one.draft_len is not None else 1) for one in batch.jobs[:row] if one.samples)
            if job.samples:
                logits[before + (job.width - 1 if job.draft_len is not None else 0), 3] = value
                features[first : first + job.width] = value
                windows.target.rows[:, job.slot, :, job.start : job.start + job.width] = value
                hit.append(job.slot)
        return logits, features

    runner.forward = forward  # type: ignore[method-assign]
    try:
        yield hit
    finally:
        del runner.forward


@contextmanager
def spoiled_block(driver: Driver, *, slot: int) -> Iterator[None]:
    """Let the block of one row come out infinite, with what it leaves in the ring."""
    proposer, windows = phases_of(driver.backend).proposer, phases_of(driver.backend).windows
    assert proposer is not None
    plain = proposer.blocks.hidden

    def hidden(slots: list[int], starts: list[int], inputs: torch.Tensor) -> torch.Tensor:
        found, row = plain(slots, starts, inputs).clone(), slots.index(slot)
        found[row, 2] = torch.inf
        assert windows.context is not None
        windows.context.rows[:, slot, :, starts[row] : starts[row] + 4] = torch.inf
        return found

    proposer.blocks.hidden = hidden  # type: ignore[method-assign]
    try:
        yield
    finally:
        del proposer.blocks.hidden
