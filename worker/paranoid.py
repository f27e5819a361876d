"""Paranoid mode: the same windows and phases under watch, for tests and for whoever suspects the worker of a stale row.

Unwritten rows hold NaN; attention that may see one, an index outside of its slot, or a row that changed while nobody
was entitled to change it, is a `Violation`. After one the worker runs no further step. Every step is watched, those of
padding, warm-up and measuring too: they go through `Phases` like any other. The normal path pays nothing: `backend.py`
takes these classes instead of their bases when `Init.paranoid` says so.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor

from ..models.config import DrafterConfig, TargetConfig
from ..scheduler.wire.workerside import StepFailed
from .batch import Job
from .capture import capturing
from .phases import Phases
from .windows import Store, Tenancy, Window, Windows

BITS = {2: torch.int16, 4: torch.int32}  # by bytes of an element


class Violation(StepFailed):
    """The law of windows is broken: in `slot` of tenancy `epoch`, at `row`, a position (None: the whole window)."""

    def __init__(self, problem: str, *, slot: int, epoch: int | None, row: int | None) -> None:
        place = f"slot {slot}, epoch {epoch}" + ("" if row is None else f", row {row}")
        super().__init__("STALE_WINDOW", f"{place}: {problem}")
        self.slot, self.epoch, self.row = slot, epoch, row


class WatchedStore(Store):
    """A store whose unwritten rows are NaN and whose every index must lie within its slot."""

    def __init__(self, *arguments: Any, table: Sequence[Window], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table, self.scratch = table, len(table) - 1
        self.rows.fill_(torch.nan)
        layers, _, groups, _, size = self.rows.shape
        self.weights = _weights(layers, groups, 1, size, device=self.rows.device)

    def sums(self, slot: int, cells: slice | Tensor) -> Tensor:
        """One checksum, of all layers, for each of a slot's `cells`: [cells] int64."""
        weighted = _bits(self.rows[:, slot, :, cells]).long() * self.weights  # [2 * layers, G, cells, D]
        return weighted.flatten(0, 1).sum(0).sum(-1)

    def index(self, slots: Tensor, positions: Tensor) -> Tensor:
        self._check(slots, positions)
        return super().index(slots, positions)

    def span(self, slot: int, start: int, end: int) -> tuple[Tensor, ...]:
        self._check([slot], range(start, end))
        return super().span(slot, start, end)

    def views(self, slots: list[int], length: int) -> tuple[Tensor, ...] | None:
        self._check(slots, [length - 1])
        return super().views(slots, length)

    def gather(self, layer: int, slots: list[int], length: int) -> tuple[Tensor, Tensor]:
        self._check(slots, [length - 1])
        return super().gather(layer, slots, length)

    def cells(self, slots: Tensor, positions: Tensor) -> Tensor:
        self._check(slots, positions)
        return super().cells(slots, positions)

    def attend(self, slots: list[int] | Tensor, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """What no query of a row may see counts as zeros, for 0 * NaN is NaN; what one may see must have been written.

        The mask alone decides, as in the plain store: a mask that shows too much meets the poison.
        """
        if mask is not None:
            hidden = mask.isneginf().all(1)[:, None, :, None]  # [rows, 1, length, 1]
            keys, values = keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
        if not capturing(keys):
            self._check_written(slots, keys, values)
        return super().attend(slots, q, keys, values, mask)

    def _check_written(self, slots: list[int] | Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values: [rows, G, length, D]. Padding and warm-up may see the poison of the scratch slot."""
        if not (torch.isnan(keys.sum()) or torch.isnan(values.sum())):
            return
        unwritten = (keys.isnan() | values.isnan()).any(-1).any(1)  # [rows, length]
        for row, slot in enumerate(slots.tolist() if isinstance(slots, Tensor) else slots):
            if slot != self.scratch and unwritten[row].any():
                column = int(unwritten[row].nonzero()[0])
                problem = f"attention reads what was never written (key {column} of those it sees)"
                raise Violation(problem, slot=slot, epoch=self.table[slot].epoch, row=column)

    def _check(self, slots: Sequence[int] | Tensor, positions: Sequence[int] | Tensor) -> None:
        """Every slot one of ours, every position within a slot."""
        for name, values, end in (("slot", slots, len(self.table)), ("position", positions, self.length)):
            found = torch.as_tensor(values)
            if capturing(found) or not found.numel():
                continue
            low, high = (int(one) for one in found.aminmax())
            if low < 0 or high >= end:
                slot = int(torch.as_tensor(slots).flatten()[0])
                epoch = self.table[slot].epoch if 0 <= slot < len(self.table) else None
                problem = f"{name}s {low}..{high} are indexed: expected 0..{end - 1}"
                raise Violation(problem, slot=slot, epoch=epoch, row=high if name == "position" else None)


@attrs.frozen
class Record:
    """What was readable of a window at some time: counters and a checksum of each row from the first one on."""

    counters: tuple[int | None, ...]
    target: Tensor
    context_start: int
    context_first: int
    context: Tensor

    def problem(self, now: "Record", *, moved: bool) -> tuple[str, int | None] | None:
        """What may not have changed since and has. moved: a step committed; else rows may only be given up."""
        if moved and now.target.shape[0] < self.target.shape[0]:
            return "its length shrank", now.target.shape[0]
        if not moved and now.counters != self.counters:
            return f"counters were {self.counters} and are {now.counters}, without a commit", None
        if not moved and now.context_start < self.context_start:
            return f"context_start fell from {self.context_start} to {now.context_start}", now.context_start
        row = _first_difference(self.target, 0, now.target, 0)
        if row is not None:
            return "a row of the target's window changed", row
        row = _first_difference(self.context, self.context_first, now.context, now.context_first)
        return None if row is None else ("a row of the drafter's context changed", row)


class WatchedWindows(Windows):
    """Windows that remember what is readable, compare it around every step, and poison what is not."""

    target: WatchedStore
    context: WatchedStore | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scratch = len(self.table) - 1  # the last one, whatever others take for it
        self.records: dict[int, Record] = {}
        self.moved: set[int] = set()  # whose record is from before a commit
        self.violation: Violation | None = None
        if self.pending is not None:
            self.pending_weights = _weights(*self.pending.rows.shape[1:], device=self.device)

    def _store(self, config: TargetConfig | DrafterConfig, *, length: int, dtype: torch.dtype) -> Store:
        slots = self.shape.num_slots + 1
        return WatchedStore(config, slots=slots, length=length, dtype=dtype, device=self.device, table=self.table)

    @contextmanager
    def watched(self, staged: Mapping[int, Window]) -> Iterator[None]:
        """Nothing may have changed since the last step, and within this one `staged` alone may move, by its commit.

        A step that commits is judged when its draft is over, or before the next one.
        """
        owned = {slot for slot in staged if slot != self.scratch}
        with self._remembers():
            self.compare()
            before = {
                slot: self.records[slot] if staged[slot] is self.table[slot] else self._record(slot, staged[slot])
                for slot in owned
            }
            windows, moved = {slot: self.table[slot] for slot in owned}, set[int]()
            try:
                yield
                moved = {slot for slot in owned if self.table[slot] is not windows[slot]}  # a row may fault alone
            finally:
                for slot in owned:
                    self._poison(slot, self.table[slot])
                self._poison(self.scratch, Window())
                if not moved:
                    self.compare()
            self.records |= {slot: before[slot] for slot in moved}
            self.moved |= moved

    @contextmanager
    def resting(self, slots: Iterable[int]) -> Iterator[None]:
        """No window may move; `slots` may use spare rows of their rings."""
        with self._remembers():
            try:
                yield
            finally:
                for slot in slots:
                    self._poison_context(slot, self.table[slot])
                self.compare()

    def open(self, tenancies: Iterable[Tenancy]) -> None:
        tenancies = list(tenancies)
        if not tenancies:
            return
        with self._remembers():
            self.compare()
            try:
                super().open(tenancies)
                for one in tenancies:
                    self._poison(one.slot, one.window)
            finally:  # counters have moved, whatever became of the copies
                for one in tenancies:
                    self._renew(one.slot)

    def scrub(self, slot: int) -> None:
        super().scrub(slot)
        self._renew(slot)

    def compare(self) -> None:
        """Hold every owned window against what was readable of it. Raises the first violation again for ever."""
        if self.violation is not None:
            raise self.violation
        for slot, window in enumerate(self.table[:-1]):
            if window.epoch is None:
                continue
            if slot not in self.records:
                raise Violation("nobody opened this tenancy", slot=slot, epoch=window.epoch, row=None)
            now = self._record(slot, window)
            found = self.records[slot].problem(now, moved=slot in self.moved)
            if found is not None:
                raise Violation(found[0], slot=slot, epoch=window.epoch, row=found[1])
            self.records[slot] = now
        self.moved.clear()

    @contextmanager
    def _remembers(self) -> Iterator[None]:
        try:
            yield
        except Violation as violation:
            self.violation = violation
            raise

    def _renew(self, slot: int) -> None:
        self.records.pop(slot, None)
        if self.table[slot].epoch is not None:
            self.records[slot] = self._record(slot, self.table[slot])

    def _record(self, slot: int, window: Window) -> Record:
        """Raises `Violation` when the counters contradict each other."""
        waiting = 0
        if self.pending is not None:
            bits = _bits(self.pending.of(slot, window.pending_len)).long()
            waiting = int((bits * self.pending_weights[: window.pending_len]).sum())
        counters = (window.epoch, window.length, window.context_len, window.pending_len, waiting, window.anchor)
        if window.length != window.context_len + window.pending_len:
            problem = f"{window.context_len} rows of context and {window.pending_len} pending are not {window.length}"
            raise Violation(problem, slot=slot, epoch=window.epoch, row=window.context_len)
        sums = [store.sums(slot, cells) for store, cells in self._readable(window)]  # type: ignore[attr-defined]
        return Record(
            counters=counters,
            target=sums[0],
            context_start=window.context_start,
            context_first=self.first_context(window),
            context=sums[-1] if self.context is not None else sums[0][:0],
        )

    def wipe(self, slot: int) -> None:
        self._poison(slot, self.table[slot])

    def _poison(self, slot: int, window: Window) -> None:
        """Poison all of the slot's rows that `window` does not count."""
        self._fill_unreadable(slot, window, torch.nan)

    def _poison_context(self, slot: int, window: Window) -> None:
        self._fill_unreadable_context(slot, window, torch.nan)


class WatchedPhases(Phases):
    """The phases of a step with the watch around each that touches windows."""

    windows: WatchedWindows

    def verify(self, jobs: list[Job], staged: dict[int, Window]) -> None:
        with self.windows.watched(staged):
            super().verify(jobs, staged)

    def draft(self, jobs: Sequence[Job]) -> int:
        with self.windows.resting([job.slot for job in jobs]):
            return super().draft(jobs)


def _bits(values: Tensor) -> Tensor:
    """The bits of each number as an integer: equal iff the numbers are the same to the bit, poison included."""
    return values.view(BITS[values.element_size()]).to(torch.int32)


def _weights(*shape: int, device: torch.device) -> Tensor:
    """Odd, and wider than elements: in 32 bits the weighted sign bits of an even number of elements add up to nothing,
    and a row with all its signs turned would pass."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(0, 1 << 62, shape, generator=generator) * 2 + 1).to(device)


def _first_difference(one: Tensor, first: int, other: Tensor, other_first: int) -> int | None:
    """The first position at which two runs of checksums, from their first positions on, both have one and differ."""
    start = max(first, other_first)
    end = min(first + one.shape[0], other_first + other.shape[0])
    if start >= end:
        return None
    differs = one[start - first : end - first] != other[start - other_first : end - other_first]
    return start + int(differs.nonzero()[0]) if bool(differs.any()) else None
