"""Numbers that are not finite, out of the target or the drafter: one row's affair, and nothing of them stays."""

import pytest
import torch
from dsparkd.scheduler.core import events
from dsparkd.scheduler.wire import messages as wire
from dsparkd.worker.faults import Point
from fault_support import PROMPTS, SIZES, check, passages, served, spoiled, spoiled_block, worker
from structlog.testing import capture_logs
from worker_support import Driver, backend, phases_of, seed


@pytest.mark.parametrize(("watches", "runner"), [(True, "eager"), (False, "eager"), (False, "static")])
def test_logits_that_are_not_finite_cost_their_row_a_restart_and_its_neighbour_nothing(
    watches: bool, runner: str
) -> None:
    """Unwatched, nothing but the worker's own wiping keeps what is left in a slot from its next tenants."""
    made, num_hits = worker(watches, runner), 0
    for call in range(1, passages(Point.FORWARD) + 1, 1 + (runner == "static")):
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
    assert num_hits > 4


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
    """A chunk that samples nothing is not judged: what it leaves costs the next one, and then the slot is scrubbed."""
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
