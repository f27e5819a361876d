"""Faults inside a step, through the real core and the real worker: each costs time, none costs or changes a token.

Every phase fails at each of its passages in turn, for every row; numbers that are not finite come out of the target and
out of the drafter, one row at a time; memory runs out. Afterwards no slot is missing and nothing is left to be read.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from dsparkd.scheduler.core import events
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.workerside import StepFailed
from dsparkd.statemachine import slot
from dsparkd.worker import faults
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.faults import Point, When, injected
from structlog.testing import capture_logs
from window_support import ToldToFail
from worker_support import Driver, backend, bench, phases_of, samples, seed

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


POINTS = [point for point in Point if point is not Point.SCRUB]  # without a fault nothing is scrubbed


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name.lower())
def test_a_raise_at_any_passage_of_any_phase_changes_no_token(point: Point) -> None:
    """On entry, and (where that can be) when all of the phase's work is done."""
    made = worker()
    num_passages = passages(point)
    assert num_passages >= 4
    for call in range(1, num_passages + 1):
        when = When.DONE if call % 2 and point is not Point.COMMIT else When.ENTRY
        with capture_logs(), injected(made.runner, point, ToldToFail, when=when, call=call) as found:
            one = served(made)
        assert found.raised
        check(one)
        failed = [report for report in one.reports if isinstance(report, events.StepFault)]
        after_commit = point in (Point.DRAFT, Point.PROPOSE, Point.REPORT)
        assert len(failed) == (0 if after_commit else 1)
        assert any("ToldToFail" in reason for reason in one.core.ledger.worker.lost) == after_commit


@pytest.mark.parametrize("point", [Point.FORWARD, Point.PROJECT, Point.SUCCESSOR, Point.PROPOSE, Point.REPORT])
def test_faults_again_and_again_leak_nothing(point: Point) -> None:
    """Every third passage fails, whatever is run again meanwhile; the scrubs fail now and then, too."""
    made = worker()
    with capture_logs(), every(made, point, 3), every(made, Point.SCRUB, 2):
        one = served(made, max_restarts=1000)
    check(one)
    assert sum(isinstance(report, events.StepFault) for report in one.reports) > 3 or one.core.ledger.worker.lost


@contextmanager
def every(made: TorchBackend, point: Point, number: int) -> Iterator[None]:
    """Let each `number`th passage of `point` fail on entry."""
    count = 0

    def error() -> BaseException | None:
        nonlocal count
        count += 1
        return ToldToFail() if count % number == 0 else None

    with injected(made.runner, point, error, call=None):
        yield


# ---- numbers that are not finite ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("watches", "runner"), [(True, "eager"), (False, "eager"), (False, "static")])
def test_logits_that_are_not_finite_cost_their_row_a_restart_and_its_neighbour_nothing(
    watches: bool, runner: str
) -> None:
    """Unwatched, nothing but the worker's own wiping keeps what is left in a slot from its next tenants."""
    made, num_hits = worker(watches, runner), 0
    for call in range(1, passages(Point.FORWARD) + 1):
        for row in range(2):
            value = (torch.nan, torch.inf, -torch.inf)[(call + row) % 3]
            with capture_logs(), spoiled(made, call=call, row=row, value=value) as hit:
                one = served(made)
            check(one, runner=runner)
            rows = [got for report in one.reports if isinstance(report, events.Report) for got in report.rows]
            faulted = [got for got in rows if isinstance(got, events.RowFault)]
            assert [got.slot for got in faulted] == hit
            assert all(got.code == "NON_FINITE" for got in faulted)
            assert not [report for report in one.reports if isinstance(report, events.StepFault)]
            num_hits += len(hit)
    assert num_hits > 6


def test_a_row_that_is_not_finite_commits_nothing_and_its_neighbours_do() -> None:
    made = backend("vanilla", **SIZES)
    driver, twin = Driver(made), Driver(backend("vanilla", **SIZES))
    for one in (driver, twin):
        one.step(*[seed(number, 1, PROMPTS[number], propose_len=4) for number in range(2)])
    before = driver.window(0)
    with capture_logs(), spoiled(made, call=1, row=0, value=torch.nan):
        report = driver.step(wire.Decode(0, 1, 4, 4), wire.Decode(1, 1, 4, 4))
    assert isinstance(report.rows[0], wire.RowFault)
    assert "not finite" in report.rows[0].message
    assert driver.window(0) is before
    assert report.rows[1] == twin.step(wire.Decode(0, 1, 4, 4), wire.Decode(1, 1, 4, 4)).rows[1]
    assert driver.window(1).held == twin.window(1).held
    # It moved nothing, so the row can even be run again.
    assert driver.one(wire.Decode(0, 1, 4, 4)).token_ids
    assert driver.window(0).held == twin.window(0).held


LONG, SHORT = (PROMPTS[0] * 9)[:40], PROMPTS[1][:4]


def beside(runner: str) -> tuple[Driver, Driver]:
    """Two unwatched workers with a long tenant in slot 1, so that a mask hides much of slot 0 from a short one."""
    made = [Driver(backend("vanilla", paranoid=False, runner=runner, num_slots=2, max_model_len=64)) for _ in range(2)]
    for one in made:
        one.one(seed(1, 1, LONG, propose_len=4))
    return made[0], made[1]


def same_beside(driver: Driver, twin: Driver, *, epoch: int) -> None:
    """A short tenant of slot 0 beside the long one: steps of different widths, blocks of both."""
    for draft_len in (4, 0, 2, 3):
        rows = [wire.Decode(0, epoch, min(draft_len, len(twin.window(0).held)), 4), wire.Decode(1, 1, 0, 4)]
        assert driver.step(*rows).rows == twin.step(*rows).rows
        assert [driver.window(number).held for number in range(2)] == [twin.window(number).held for number in range(2)]


@pytest.mark.parametrize("runner", ["eager", "static"])
@pytest.mark.parametrize("follows", ["the row again", "the next tenant"])
def test_what_a_faulted_row_wrote_is_gone_though_a_mask_would_not_hide_it(runner: str, follows: str) -> None:
    """-inf added to NaN is NaN: a hidden row must be finite, whoever left it."""
    driver, twin = beside(runner)
    for one in (driver, twin):
        one.one(seed(0, 1, LONG[:20] if follows == "the next tenant" else SHORT, propose_len=4))
    with capture_logs(), spoiled(driver.backend, call=1, row=0, value=torch.nan) as hit:
        assert isinstance(driver.one(wire.Decode(0, 1, 4, 4)), wire.RowFault)
    assert hit == [0]
    if follows == "the next tenant":
        for one in (driver, twin):
            one.one(seed(0, 2, SHORT, propose_len=4))
    same_beside(driver, twin, epoch=2 if follows == "the next tenant" else 1)


@pytest.mark.parametrize("runner", ["eager", "static"])
def test_a_scrubbed_slot_has_nothing_left_of_what_it_had_committed(runner: str) -> None:
    """A chunk that samples nothing is not judged: what it leaves costs the next chunk, and then the slot is scrubbed."""
    driver, twin = beside(runner)
    driver.one(seed(0, 1, LONG[:30], last=False))
    windows = phases_of(driver.backend).windows
    assert windows.context is not None
    for store in (windows.target, windows.context):
        store.rows[:, 0, :, 10:30] = torch.nan
    with capture_logs():
        assert isinstance(driver.one(seed(0, 1, [5], start_pos=30, opens=None)), wire.RowFault)
    driver.one(wire.Scrub(0))
    assert not any(store.rows[:, 0].any() for store in (windows.target, windows.context))
    for one in (driver, twin):
        one.one(seed(0, 2, SHORT, propose_len=4))
    same_beside(driver, twin, epoch=2)


@pytest.mark.parametrize("runner", ["eager", "static"])
def test_what_a_block_that_is_not_finite_wrote_is_gone_for_the_next_tenant(runner: str) -> None:
    driver, twin = beside(runner)
    with spoiled_block(driver, slot=0):
        assert driver.step(seed(0, 1, LONG[:20], propose_len=4)).drafts_lost == 1
    for one in (driver, twin):
        one.one(seed(0, 2, SHORT, propose_len=4))
    same_beside(driver, twin, epoch=2)


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


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_a_block_that_is_not_finite_costs_the_draft_of_its_row_alone_and_is_counted(acceptance: str) -> None:
    params = wire.Params(temperature=0.9, seed=1)
    driver, twin = (Driver(backend("vanilla", acceptance=acceptance, paranoid=False, **SIZES)) for _ in range(2))
    for one in (driver, twin):
        one.step(*[seed(number, 1, PROMPTS[number], propose_len=4, params=params) for number in range(2)])
    rows = [wire.Decode(0, 1, 4, 4), wire.Decode(1, 1, 4, 4)]
    with spoiled_block(driver, slot=0):
        report = driver.step(*rows)
    whole = twin.step(*rows)
    assert (report.drafts_lost, report.lost, whole.drafts_lost) == (1, None, 0)
    assert [got.token_ids for got in report.rows] == [got.token_ids for got in whole.rows]  # type: ignore[union-attr]
    assert [got.held_len for got in report.rows] == [0, 4]  # type: ignore[union-attr]
    assert driver.window(0).noise is None
    rows = [wire.Decode(0, 1, 0, 4), wire.Decode(1, 1, 4, 4)]
    assert driver.step(*rows).rows == twin.step(*rows).rows
    assert [driver.window(number).held for number in range(2)] == [twin.window(number).held for number in range(2)]


def test_confidences_that_are_not_finite_cost_the_draft_and_are_not_told() -> None:
    """A scheduler that decides by them would take such a report for a broken contract."""
    driver = Driver(backend("vanilla", confidences=True, **SIZES))
    drafter = phases_of(driver.backend).drafter
    assert drafter is not None
    head = drafter.confidence
    assert head is not None
    plain = head.logits
    head.logits = lambda *arguments: plain(*arguments) / 0  # type: ignore[method-assign]
    report = driver.step(seed(0, 1, PROMPTS[0], propose_len=4))
    del head.logits
    assert report.drafts_lost == 1
    assert report.rows[0].held_len == 0  # type: ignore[union-attr]
    assert report.rows[0].held_confidence_logits is None  # type: ignore[union-attr]


# ---- memory ---------------------------------------------------------------------------------------------------------

SHORTAGES: dict[str, Callable[[], BaseException]] = {
    "host": MemoryError,
    "device": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
}


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_a_step_that_runs_out_of_memory_is_run_again_in_parts(shortage: str) -> None:
    """Each pass over more than one row runs out: rows are served one by one, and say what they always say."""
    made, runner = worker(), phases_of(worker()).runner
    plain = runner.forward

    def forward(batch: Any) -> Any:
        if len(batch.jobs) > 1:
            raise SHORTAGES[shortage]()
        return plain(batch)

    runner.forward = forward  # type: ignore[method-assign]
    with capture_logs():
        one = served(made)
    del runner.forward
    check(one)
    codes = {report.code for report in one.reports if isinstance(report, events.StepFault)}
    assert codes == {"OUT_OF_MEMORY"}


def test_an_allocation_that_torch_refuses_is_known_for_what_it_is() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert faults.is_out_of_memory(caught.value)
    assert not faults.is_out_of_memory(RuntimeError("shape mismatch"))


# ---- a step that cannot be brought to an end ------------------------------------------------------------------------


def test_l094_a_worker_that_cannot_tell_what_it_committed_runs_no_further_step() -> None:
    driver = Driver(backend("vanilla", **SIZES))
    driver.one(seed(0, 1, PROMPTS[0], propose_len=4))
    windows = phases_of(driver.backend).windows

    def fail(_: int) -> None:
        raise ToldToFail

    windows.wipe = fail  # type: ignore[method-assign]
    with capture_logs(), pytest.raises(ToldToFail), injected(driver.backend.runner, Point.PROPOSE, ToldToFail):
        driver.one(wire.Decode(0, 1, 4, 4))
    del windows.wipe
    with pytest.raises(StepFailed, match="could not be brought to an end"):
        driver.one(wire.Decode(0, 1, 0, 0))
