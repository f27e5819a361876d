"""Faults inside a step, through the real core and the real worker: each costs time, none costs or changes a token.

Every phase fails at each of its passages in turn, for every row; memory runs out. Afterwards no slot is missing and
nothing is left to be read. (Numbers that are not finite: `test_worker_not_finite.py`.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from dsparkd.scheduler.core import events
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.workerside import StepFailed
from dsparkd.worker import faults
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.faults import Point, When, injected
from fault_support import PROMPTS, SIZES, check, passages, served, worker
from structlog.testing import capture_logs
from window_support import ToldToFail
from worker_support import Driver, backend, phases_of, seed

POINTS = [point for point in Point if point is not Point.SCRUB]  # without a fault nothing is scrubbed


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name.lower())
def test_l094_a_raise_at_any_passage_of_any_phase_is_told_and_changes_no_token(point: Point) -> None:
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
    assert sum(isinstance(report, events.StepFault) for report in one.reports) >= 3 or one.core.ledger.worker.lost


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


@pytest.mark.parametrize(("watches", "method", "call"), [(True, "_content", 2), (False, "_readable", 4)])
def test_a_copy_that_runs_out_of_memory_leaves_what_was_kept_in_place_and_nothing_where_it_went(
    watches: bool, method: str, call: int
) -> None:
    """Counters of one slot have moved by then, rows of another are half there, and the next step goes on."""
    driver = Driver(backend("vanilla", paranoid=watches, num_slots=4, max_model_len=48))
    text = (PROMPTS[0] * 4)[:20]
    driver.step(*[seed(number, 1, text, propose_len=4) for number in range(2)])
    windows = phases_of(driver.backend).windows
    plain, calls = getattr(windows, method), 0

    def short(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError
        return plain(*arguments, **options)

    setattr(windows, method, short)
    opens = [wire.Open(9, 0, 1), wire.Open(12, 1, 1), wire.Open(15, 1, 1)]
    slots = (0, 2, 3)  # in place, and two copies
    rows = [
        seed(slot, 2, [7, 8], start_pos=kept.keep_len, opens=kept, propose_len=4)
        for slot, kept in zip(slots, opens, strict=True)
    ]
    with pytest.raises(StepFailed, match="MemoryError"):
        driver.step(*rows)
    assert [(window.epoch, window.length) for window in windows.table[:4]] == [(1, 9), (1, 20), (None, 0), (None, 0)]
    assert not windows.target.rows[:, 2:4].nan_to_num().any()  # the watch leaves poison, others zeros
    fresh = Driver(backend("vanilla", num_slots=4, max_model_len=48))
    for answer, kept in zip(driver.step(*rows).rows, opens, strict=True):
        assert isinstance(answer, wire.Emitted)
        whole = fresh.one(seed(answer.slot, 1, [*text[: kept.keep_len], 7, 8], propose_len=4))
        assert answer.token_ids == whole.token_ids
        assert driver.window(answer.slot).held == fresh.window(answer.slot).held


def test_an_allocation_that_torch_refuses_is_known_for_what_it_is() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert faults.is_out_of_memory(caught.value)
    assert not faults.is_out_of_memory(RuntimeError("shape mismatch"))


# ---- a step that cannot be brought to an end ------------------------------------------------------------------------


def test_a_worker_that_cannot_tell_what_it_committed_runs_no_further_step() -> None:
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
