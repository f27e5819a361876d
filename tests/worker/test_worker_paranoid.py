"""Paranoid mode: what is wrong with a window is a typed fault that names slot, epoch and row, whoever did it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.wire.workerside import StepFailed
from dsparkd.worker import costs
from dsparkd.worker.graphs import StaticRunner
from dsparkd.worker.paranoid import Violation, WatchedStore, WatchedWindows
from dsparkd.worker.phases import Phases
from dsparkd.worker.warmup import scratch_restored, warm_up
from dsparkd.worker.windows import Window, Windows
from window_support import House, house
from worker_support import backend, phases_of, samples

PROMPT = samples("vanilla")[0]["prompt_ids"] * 3


def settled(**init: Any) -> House:
    """Three tenants: one that drafts, one with pending features, one whose prompt is not seeded to its end."""
    one = house("vanilla", **init)
    for slot in range(3):
        one.begin(slot, PROMPT[slot:])
    one.step(*[one.chunk(slot, 9 if slot == 2 else 99) for slot in range(3)])
    one.step(one.decode(0), one.decode(1, propose_len=0))
    return one


def watched(one: House) -> WatchedWindows:
    assert isinstance(one.windows, WatchedWindows)
    return one.windows


def test_unwritten_rows_hold_poison_and_readable_rows_none() -> None:
    one = settled()
    assert not one.step(one.decode(0), fault="context done")  # rows beyond the length, written in vain
    one.windows.scrub(1)
    one.contents.pop(1)
    windows = watched(one)
    assert windows.context is not None
    for slot in range(4):
        window = windows.table[slot]
        for store, cells in (
            (windows.target, torch.arange(window.length)),
            (windows.context, windows.context_cells(window)),
        ):
            readable = torch.zeros(store.length, dtype=torch.bool)
            readable[cells] = True
            rows = store.rows[:, slot]
            assert not rows[:, :, readable].isnan().any()
            assert rows[:, :, ~readable].isnan().all()


def test_what_an_open_does_not_keep_is_poison_before_the_step_runs() -> None:
    one = settled()
    one.begin(1, [*one.contents[0][:8], 5, 6, 7], source=0, keep_len=8)
    seen = []
    plain = phases_of(one.driver.backend).runner

    class Looking:
        num_uncaptured = 0

        def forward(self, batch: Any) -> Any:
            seen.append(one.windows.target.rows[:, 1].isnan().all(-1).all(0).all(0).tolist())
            return plain.forward(batch)

    phases_of(one.driver.backend).runner = Looking()
    one.step(one.chunk(1, 99))
    assert seen == [[False] * 8 + [True] * (one.windows.target.length - 8)]


SPOILERS: dict[str, tuple[Callable[[House], Any], int | None, str]] = {
    "a target row": (lambda one: one.windows.target.rows[3, 1, 0, 7].add_(1e-6), 7, "row of the target's window"),
    "a context row": (lambda one: one.windows.context.rows[1, 1, 0, 3].neg_(), 3, "row of the drafter's context"),  # type: ignore[union-attr]
    "two layers swapped": (
        lambda one: one.windows.target.rows[:, 1, :, 5].copy_(one.windows.target.rows[:, 1, :, 5].roll(2, 0)),
        5,
        "row of the target's window",
    ),
    "a length": (lambda one: setattr(one.windows.table[1], "length", 12), 14, "are not 12"),
    "features that wait": (lambda one: one.windows.pending.rows[1, 0].neg_(), None, "without a commit"),
    "an anchor": (lambda one: setattr(one.windows.table[1], "anchor", 5), None, "without a commit"),
    "an epoch": (lambda one: setattr(one.windows.table[1], "epoch", 5), None, "without a commit"),
    "lost context found again": (
        lambda one: setattr(one.windows.table[1], "context_start", -1),
        -1,
        "context_start fell",
    ),
}


@pytest.mark.parametrize("what", SPOILERS)
def test_what_changed_between_two_steps_is_named_by_the_next_and_by_every_later_one(what: str) -> None:
    spoil, row, words = SPOILERS[what]
    one = settled()
    with torch.inference_mode():
        spoil(one)
    for _ in range(2):  # also a step that does not name the slot
        with pytest.raises(Violation, match=words) as caught:
            one.step(one.decode(0))
        assert (caught.value.code, caught.value.slot, caught.value.row) == ("STALE_WINDOW", 1, row)
        assert caught.value.epoch == one.windows.table[1].epoch
        assert isinstance(caught.value, StepFailed)  # which the wire answers with its code


def test_a_tenancy_that_nobody_opened_is_named() -> None:
    one = settled()
    one.windows.table[2] = Window(77)
    one.windows.records.pop(2)  # type: ignore[attr-defined]
    with pytest.raises(Violation, match="slot 2, epoch 77: nobody opened this tenancy"):
        one.step(one.decode(0))


@pytest.mark.parametrize(("slot", "position"), [(-1, 0), (4, 0), (0, -1), (0, 69)])
def test_l017_no_index_leads_out_of_its_slot(slot: int, position: int) -> None:
    """69 positions a slot: the 70th would be the next head's first, and -1 the last slot's last."""
    store = settled().windows.target
    assert isinstance(store, WatchedStore)
    index = torch.tensor([slot]), torch.tensor([position])
    calls: list[Callable[[], Any]] = [
        lambda: store.index(*index),
        lambda: store.cells(index[0].unsqueeze(0), index[1].unsqueeze(0)),
        lambda: store.span(slot, position, position + 1),
        lambda: store.views([slot], position + 1),
        lambda: store.gather(0, [slot], position + 1),
    ]
    for call in calls:
        with pytest.raises(Violation, match=r"are indexed: expected 0\.\."):
            call()


def test_attention_that_sees_one_row_too_many_meets_the_poison_and_a_masked_one_does_not() -> None:
    one = settled()
    store, length = one.windows.target, one.windows.table[0].length
    q = torch.randn(1, 2, 4, 16)
    keys, values = (part[:, :, : length + 1] for part in (store.keys[0][:1], store.values[0][:1]))
    mask = torch.zeros(1, 2, length + 1)
    mask[:, :, length] = -torch.inf
    exact = store.attend([0], q, keys[:, :, :length], values[:, :, :length], None)
    assert torch.equal(store.attend([0], q, keys, values, mask), exact)
    mask[:, 1, length] = 0.0  # one query of the row may see it
    for shown in (mask, None):
        with pytest.raises(Violation, match="never written") as caught:
            store.attend([0], q, keys, values, shown)
        assert (caught.value.slot, caught.value.row) == (0, length)
    keys, values = (part[:, :, : length + 1] for part in (store.keys[0][3:], store.values[0][3:]))
    store.attend([3], q, keys, values, None)  # padding may see the scratch slot's poison: nothing reads its output


def measuring(one: House) -> None:
    with scratch_restored(one.windows) as scratch:
        costs.measure(phases_of(one.driver.backend), scratch, max_step_tokens=16)


def warming(one: House) -> None:
    warm_up(phases_of(one.driver.backend), max_step_tokens=16)


def padding(one: House) -> None:
    assert isinstance(phases_of(one.driver.backend).runner, StaticRunner)
    one.step(one.decode(0, 1), one.decode(1, 0), one.chunk(2, 3))
    one.step(one.decode(0, 3))  # a bucket of one row and five tokens, then one of two rows
    one.step(one.decode(0, 1), one.decode(1, 3))


@pytest.mark.parametrize("steps", [measuring, warming, padding])
def test_steps_of_nobody_leave_every_owned_window_as_it_was(steps: Callable[[House], None]) -> None:
    one = settled(runner="static")
    steps(one)
    one.check()


@pytest.mark.parametrize("steps", [measuring, warming, padding])
def test_l011_l102_the_same_steps_on_somebodys_slot_are_noticed(
    steps: Callable[[House], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation `scratch row aliasing slot 0`."""
    one = settled(runner="static")
    monkeypatch.setattr("dsparkd.worker.windows.Shape.scratch", 0)
    with pytest.raises(Violation) as caught:
        steps(one)
        one.step(one.decode(1, 0))
    assert caught.value.slot == 0


def test_it_is_off_unless_asked_for_and_then_nothing_is_watched() -> None:
    assert Settings(target="t").init(1).paranoid is False
    assert Settings(target="t", paranoid=True).init(1).paranoid is True
    plain = phases_of(backend("vanilla", paranoid=False))
    assert type(plain) is Phases
    assert type(plain.windows) is Windows
    assert not plain.windows.target.rows.isnan().any()


def test_watched_and_unwatched_workers_say_the_same_to_the_bit() -> None:
    houses = [house("vanilla", paranoid=paranoid, drafter_window=9) for paranoid in (True, False)]
    for one in houses:
        for slot in range(3):
            one.begin(slot, PROMPT[slot * 2 :])
            one.seed_all(slot)
        for turn in range(8):
            one.step(*[one.decode(slot, (turn + slot) % 5, 4 * ((turn + slot) % 3 > 0)) for slot in range(3)])
    first, second = houses
    assert first.contents == second.contents
    for slot in range(3):
        length = first.windows.table[slot].length
        assert torch.equal(
            first.windows.target.rows[:, slot, :, :length], second.windows.target.rows[:, slot, :, :length]
        )
        assert first.driver.window(slot).held == second.driver.window(slot).held
