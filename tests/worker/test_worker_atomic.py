"""A step moves everything or nothing; warm-up, padding and foreign rows move nobody's window; faults are typed."""

from typing import Any

import pytest
import torch
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.workerside import StepFailed
from dsparkd.statemachine.errors import Refused
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.batch import Batch
from dsparkd.worker.windows import Windows
from worker_support import GOLDEN, Driver, backend, phases_of, samples, seed

PROMPTS = [sample["prompt_ids"] for sample in samples("block7")]


def contents(windows: Windows, slot: int) -> tuple[Any, ...]:
    """All that may be read of a slot: counters, and the rows below its lengths."""
    one = windows.table[slot]
    assert windows.context is not None
    target = [row.clone() for row in windows.target.span(slot, 0, one.length)]
    context = [row.clone() for row in windows.context.span(slot, 0, one.context_len)]
    counters = (one.epoch, one.length, one.context_len, one.pending_len, one.anchor, tuple(one.held))
    return counters, target, context


def same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    return before[0] == after[0] and all(
        torch.equal(one, other) for index in (1, 2) for one, other in zip(before[index], after[index], strict=True)
    )


class Failing:
    """Stands in a place of the step and raises there."""

    def __init__(self, inner: Any, *, after: bool) -> None:
        self.inner, self.after = inner, after

    def forward(self, batch: Batch) -> Any:
        if self.after:
            self.inner.forward(batch)
        raise MemoryError("told to fail")

    def context(self, features: Any, positions: Any) -> Any:
        if self.after:
            self.inner.context(features, positions)
        raise MemoryError("told to fail")

    def propose(self, *_: Any) -> Any:
        raise MemoryError("told to fail")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def started() -> Driver:
    """Two slots in mid-life, the second after a zero-draft step."""
    driver = Driver(backend("block7"))
    driver.step(*[seed(slot, 1, PROMPTS[slot], propose_len=7) for slot in range(2)])
    driver.step(wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 7, 0))
    return driver


@pytest.mark.parametrize("after", [False, True], ids=["on entry", "when done"])
@pytest.mark.parametrize("place", ["target", "context"])
def test_a_raise_before_the_commit_leaves_every_slot_as_it_was_and_the_step_can_be_run_again(
    place: str, after: bool
) -> None:
    driver, twin = started(), started()
    phases = phases_of(driver.backend)
    before = [contents(phases.windows, slot) for slot in range(5)]
    rows = [wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 0, 7), seed(2, 1, PROMPTS[2], propose_len=7)]
    runner, drafter = phases.runner, phases.drafter
    if place == "target":
        phases.runner = Failing(runner, after=after)
    else:
        phases.drafter = Failing(drafter, after=after)  # type: ignore[assignment]
    with pytest.raises(StepFailed, match="told to fail") as caught:
        driver.step(*rows)
    assert caught.value.code == "OUT_OF_MEMORY"
    phases.runner, phases.drafter = runner, drafter
    assert all(same(before[slot], contents(phases.windows, slot)) for slot in range(5))
    assert driver.step(*rows).rows == twin.step(*rows).rows


def test_a_raise_after_the_commit_costs_only_the_drafts() -> None:
    driver, twin = started(), started()
    phases = phases_of(driver.backend)
    proposer = phases.proposer
    phases.proposer = Failing(proposer, after=False)  # type: ignore[assignment]
    report = driver.step(wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 0, 7))
    phases.proposer = proposer
    expected = twin.step(wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 0, 7))
    assert report.lost is not None
    assert "told to fail" in report.lost
    assert [row.token_ids for row in report.rows] == [row.token_ids for row in expected.rows]  # type: ignore[union-attr]
    assert [row.held_len for row in report.rows] == [0, 0]  # type: ignore[union-attr]
    text = driver.one(wire.Decode(0, 1, 0, 7)).token_ids
    assert text == twin.one(wire.Decode(0, 1, 0, 7)).token_ids
    assert driver.window(0).held == twin.window(0).held


FAULTS: dict[str, tuple[Any, str]] = {
    "another epoch": (wire.Decode(0, 2, 0, 0), "EPOCH"),
    "more drafts than held": (wire.Decode(1, 1, 1, 0), "HELD"),
    "a slot that never was opened": (wire.Decode(3, 1, 0, 0), "EPOCH"),
    "a chunk after the prompt": (seed(0, 1, [1], start_pos=9, opens=None), "POSITION"),
    "a chunk with a gap": (seed(3, 1, [1], start_pos=4), "POSITION"),
    "a chunk too long": (seed(3, 1, [1] * 201), "LIMIT"),
    "a token outside the vocabulary": (seed(3, 1, [5, 256]), "TOKEN"),
    "more proposed than a block has": (wire.Decode(0, 1, 0, 8), "LIMIT"),
    "content of another tenancy": (seed(3, 1, [1], start_pos=1, opens=wire.Open(1, 0, 2)), "OPEN"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_row_that_does_not_fit_is_a_typed_fault_and_its_neighbour_goes_on(kind: str) -> None:
    driver, twin = started(), started()
    row, code = FAULTS[kind]
    before = contents(phases_of(driver.backend).windows, row.slot)
    neighbour = wire.Decode(1 if row.slot != 1 else 0, 1, 0, 7)
    report = driver.step(row, neighbour)
    assert isinstance(report.rows[0], wire.RowFault)
    assert report.rows[0].code == code
    assert same(before, contents(phases_of(driver.backend).windows, row.slot))
    assert report.rows[1] == twin.one(neighbour)


@pytest.mark.parametrize("rows", [[wire.Decode(0, 1, 0, 0)] * 2, [wire.Decode(4, 1, 0, 0)], [wire.Scrub(-1)]])
def test_a_command_that_names_a_slot_twice_or_none_of_ours_fails_whole(rows: list[Any]) -> None:
    driver = started()
    with pytest.raises(StepFailed, match="names slots"):
        driver.step(*rows)


def test_a_scrub_makes_a_window_unreadable_and_a_new_tenancy_works() -> None:
    driver = started()
    assert driver.one(wire.Scrub(0)) == wire.Scrubbed(0)
    assert driver.one(wire.Decode(0, 1, 0, 0)).code == "EPOCH"
    fresh = Driver(backend("block7"))
    assert driver.one(seed(0, 2, PROMPTS[0])).token_ids == fresh.one(seed(0, 1, PROMPTS[0])).token_ids


def test_l009_a_reused_slot_knows_nothing_of_its_last_tenant() -> None:
    driver = Driver(backend("block7", num_slots=1))
    longest = max(PROMPTS, key=len)
    driver.one(seed(0, 1, longest, propose_len=7))
    driver.one(wire.Decode(0, 1, 7, 7))
    fresh = Driver(backend("block7", num_slots=1))
    short = [7, 8, 9, 10, 11]
    for one in (driver, fresh):
        one.one(seed(0, 5, short, propose_len=7))
    for _ in range(6):
        assert driver.window(0).held == fresh.window(0).held
        assert driver.one(wire.Decode(0, 5, 7, 7)) == fresh.one(wire.Decode(0, 5, 7, 7))


def test_l019_a_request_at_the_very_end_of_its_window_leaves_its_neighbour_alone() -> None:
    driver = Driver(backend("block7", max_model_len=64))
    driver.step(seed(0, 1, [3] * 56, propose_len=7), seed(1, 1, PROMPTS[0], propose_len=7))
    neighbour = contents(phases_of(driver.backend).windows, 1)
    while (room := 64 - driver.window(0).length) > 0:
        driver.one(wire.Decode(0, 1, min(len(driver.window(0).held), room - 1), 7 if room > 8 else 0))
    assert same(neighbour, contents(phases_of(driver.backend).windows, 1))
    assert driver.one(wire.Decode(0, 1, 0, 0)).code == "LIMIT"


@pytest.mark.parametrize("num_rows", [1, 3])
def test_l011_l017_padding_rows_of_a_static_step_touch_no_window_but_scratch(num_rows: int) -> None:
    driver = Driver(backend("block7", num_slots=4, runner="static"))
    slots = [3, 1, 0][:num_rows]
    driver.step(*[seed(slot, 1, PROMPTS[slot], propose_len=7) for slot in range(4)])
    idle = [slot for slot in range(4) if slot not in slots]
    windows = phases_of(driver.backend).windows
    before = {slot: contents(windows, slot) for slot in idle}
    for _ in range(5):
        for slot in slots:
            before[slot] = contents(windows, slot)
        lengths = {slot: windows.table[slot].length for slot in slots}
        driver.step(*[wire.Decode(slot, 1, slot, 7) for slot in slots])
        assert all(same(before[slot], contents(windows, slot)) for slot in idle)
        for slot in slots:  # what was readable before the step reads the same after it
            for now, old in zip(windows.target.span(slot, 0, lengths[slot]), before[slot][1], strict=True):
                assert torch.equal(now, old)


def init(**fields: Any) -> wire.Init:
    folders = (str(GOLDEN / "block7" / "target"), str(GOLDEN / "block7" / "draft"))
    return wire.Init(1, *folders, **{"num_slots": 2, "max_model_len": 64, "max_step_tokens": 64, **fields})


def test_everything_wrong_with_the_settings_is_said_at_once() -> None:
    with pytest.raises(Refused) as caught:
        TorchBackend().load(init(dtype="int4", acceptance="maybe", runner="fast", device="cuda:0"))
    message = str(caught.value)
    assert all(word in message for word in ("dtype = 'int4'", "acceptance = 'maybe'", "runner = 'fast'", "device"))
    with pytest.raises(Refused, match="max_model_len = 5000"):
        TorchBackend().load(init(max_model_len=5000))
    made = TorchBackend()
    made.load(init(drafter_window=4))
    with pytest.raises(Refused, match=r"drafter_window = 4: expected 8"):
        made.warm()
    made = TorchBackend()
    made.load(init(max_model_len=7))  # nobody spoke of a window
    with pytest.raises(Refused, match=r"max_model_len = 7: expected 8"):
        made.warm()
