"""The slots' memory: target keys and values, the drafter's context ring, features that wait, each window's counters.

Owns every tensor that outlives a step, and who may read what: a row is readable iff its position is below the window's
length, inside the ring, and not below `context_start`. Rows beyond are spare: a step writes there first and becomes
readable by the commit alone. A window stays as it is when its tenancy ends, until another opens. The last slot is the
scratch slot; padding and warm-up name it, nobody's window is there. `pending.py` keeps the features that wait,
`phases.py` reads and writes; `paranoid.py` has the same windows under watch.
"""

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor

from ..models.config import DrafterConfig, TargetConfig
from ..models.layers import grouped_attention
from ..statemachine.errors import refuse_all
from .pending import Pending
from .sizes import pending_rows


class Window:
    """Host-side counters of one slot. Invariant: length = context_len + pending_len once it has a drafter."""

    __slots__ = (
        "anchor",
        "confidence",
        "context_len",
        "context_start",
        "epoch",
        "free_pos",
        "held",
        "length",
        "noise",
        "params",
        "pending_len",
    )

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = epoch
        self.length = 0  # positions in the target's window
        self.context_len = 0  # positions in the drafter's context
        self.context_start = 0  # the first of them that is really there, where a ring has lost rows
        self.pending_len = 0  # positions whose tapped features are not projected yet
        self.anchor: int | None = None
        self.held: list[int] = []
        self.confidence: list[float] | None = None  # of the held draft
        self.noise: Tensor | None = None  # [B + 1, V]: what the draft was drawn with, for the verify pass
        self.params: Any = None
        self.free_pos = 0  # as in `Job`

    def head(self, keep_len: int, *, epoch: int | None, drafter_window: int) -> "Window":
        """The first `keep_len` positions as a window of their own, with neither anchor nor draft."""
        head = Window(epoch)
        head.length = keep_len
        head.context_len = min(self.context_len, keep_len)
        oldest = max(self.context_start, self.context_len - drafter_window)
        head.context_start = min(oldest, head.context_len)
        head.pending_len = keep_len - head.context_len
        return head


@attrs.frozen
class Tenancy:
    """A tenancy that begins in `slot`: the counters of `window` speak of content in `source`, or of none."""

    slot: int
    window: Window
    source: int | None


@attrs.frozen(kw_only=True)
class Shape:
    """Static sizes, in positions. `block_len` is B, 0 without a drafter."""

    num_slots: int
    max_model_len: int
    block_len: int
    drafter_window: int

    @property
    def capacity(self) -> int:
        """Positions of a target window, spare ones included."""
        return self.max_model_len + self.block_len + 1

    @property
    def ring_len(self) -> int:
        """B + 1 spare rows: what a step writes before its commit overwrites nothing readable."""
        return self.drafter_window + self.block_len + 1

    @property
    def scratch(self) -> int:
        return self.num_slots


class Store:
    """Keys and values of all layers in one tensor, so that a step's views of all layers are made at once.

    `rows`: [2 * layers, slots, G, length, D], a layer's keys before its values.
    """

    def __init__(
        self, config: TargetConfig | DrafterConfig, *, slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        groups, size = config.num_kv_heads, config.head_dim
        self.rows = torch.zeros((2 * config.num_layers, slots, groups, length, size), dtype=dtype, device=device)
        self.keys, self.values = self.rows[0::2].unbind(0), self.rows[1::2].unbind(0)
        self.groups, self.length, self.size = groups, length, size
        self._flat = self.rows.view(2 * config.num_layers, -1, size).unbind(0)  # [slots * G * length, D] each
        self._heads = torch.arange(groups, device=device) * length  # [G]

    def index(self, slots: Tensor, positions: Tensor) -> Tensor:
        """slots, positions: [tokens] int64 -> [tokens * G] flat rows."""
        base = torch.add(positions, slots, alpha=self.groups * self.length)
        return (base.unsqueeze(1) + self._heads).view(-1)

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values: [tokens, G, D] to the flat rows `index` of a layer."""
        self._flat[2 * layer].index_copy_(0, index, keys.reshape(-1, self.size))
        self._flat[2 * layer + 1].index_copy_(0, index, values.reshape(-1, self.size))

    def span(self, slot: int, start: int, end: int) -> tuple[Tensor, ...]:
        """Positions start..end-1 of one slot for every layer: [G, end - start, D] each, keys and values in turn."""
        return self.rows[:, slot, :, start:end].unbind(0)

    def views(self, slots: list[int], length: int) -> tuple[Tensor, ...] | None:
        """The first `length` positions of `slots` for every layer, keys and values in turn: [rows, G, length, D] each.

        None unless the slots are neighbours in order; `gather` copies them then, layer by layer, after their writes.
        Rows that all name one slot (the scratch slot may be named often) see it as it is.
        """
        head, end = slots[0], slots[0] + len(slots)
        if len(slots) > 1 and slots[-1] == head and slots.count(head) == len(slots):
            return self.rows[:, head : head + 1, :, :length].expand(-1, len(slots), -1, -1, -1).unbind(0)
        if slots != list(range(head, end)):
            return None
        return self.rows[:, head:end, :, :length].unbind(0)

    def gather(self, layer: int, slots: list[int], length: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of any slots: [rows, G, length, D] each, copied."""
        index = torch.tensor(slots, device=self.rows.device)
        return (
            self.keys[layer][:, :, :length].index_select(0, index),
            self.values[layer][:, :, :length].index_select(0, index),
        )

    def attend(self, slots: list[int] | Tensor, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """`grouped_attention` over keys and values that were read from `slots`: the one way in which rows are used."""
        return grouped_attention(q, keys, values, mask)

    def cells(self, slots: Tensor, positions: Tensor) -> Tensor:
        """slots: [rows, 1], positions: [rows, n] -> flat rows [rows, G, n] for `read`."""
        base = slots * (self.groups * self.length) + self._heads  # [rows, G]
        return base.unsqueeze(-1) + positions.unsqueeze(1)

    def read(self, layer: int, cells: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values at `cells`: [rows, G, n, D] each, copied."""
        return self._flat[2 * layer][cells], self._flat[2 * layer + 1][cells]


class Windows:
    """All slots' windows, allocated once. Raises `Refused` for sizes that cannot work."""

    def __init__(
        self,
        shape: Shape,
        target: TargetConfig,
        drafter: DrafterConfig | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
        keeps_probs: bool = False,
    ) -> None:
        problems = []
        if drafter is not None and shape.drafter_window < shape.block_len + 1:
            # Without a window of its own, or with a wider one, a drafter sees all of the longest text.
            key = "max_model_len" if shape.drafter_window == shape.max_model_len else "drafter_window"
            problems.append(f"{key} = {shape.drafter_window}: expected {shape.block_len + 1} (block + 1) or more")
        refuse_all("windows", problems)
        self.shape = shape
        self.device = device
        self.table = [Window() for _ in range(shape.num_slots + 1)]
        slots = shape.num_slots + 1

        self.target = self._store(target, length=shape.capacity, dtype=dtype)
        self.context = None if drafter is None else self._store(drafter, length=shape.ring_len, dtype=dtype)
        self.pending = None if drafter is None else self._pending(drafter, dtype)
        self.probs = (  # the distributions that the held drafts were drawn from, for rejection
            torch.zeros((slots, shape.block_len, target.vocab_size), device=device)
            if keeps_probs and drafter is not None
            else None
        )

    def _store(self, config: TargetConfig | DrafterConfig, *, length: int, dtype: torch.dtype) -> Store:
        return Store(config, slots=self.shape.num_slots + 1, length=length, dtype=dtype, device=self.device)

    def _pending(self, drafter: DrafterConfig, dtype: torch.dtype) -> Pending:
        rows = pending_rows(drafter, dtype.itemsize, drafter_window=self.shape.drafter_window)
        return Pending(self.shape.num_slots + 1, rows, drafter.feature_len, dtype=dtype, device=self.device)

    @property
    def bytes_per_slot(self) -> int:
        stores = [one.rows for one in (self.target, self.context, self.pending) if one is not None]
        slots = self.shape.num_slots + 1
        whole = sum(one.numel() * one.element_size() for one in (*stores, self.probs) if one is not None)
        return whole // slots

    def open(self, tenancies: Iterable[Tenancy]) -> None:
        """Bring each tenancy's content to its slot. Counters move first, so that a raise leaves nothing stale.

        Until the commit a slot that is copied into is nobody's and empty, and one that is taken over in place keeps
        its old epoch and what is kept. Content is what it was before the step, whoever else opens in it.
        """
        tenancies = list(tenancies)
        for one in tenancies:
            old = self.table[one.slot]
            in_place = one.source == one.slot
            self.table[one.slot] = self.head(old, one.window.length, epoch=old.epoch) if in_place else Window()
        try:
            self._copy([(one.slot, one.source, one.window) for one in tenancies if one.source not in (None, one.slot)])
        except BaseException:
            for one in tenancies:
                self.wipe(one.slot)
            raise

    def _copy(self, moves: list[tuple[int, int, Window]]) -> None:
        """(slot, source, what is counted of it) -> the rows in `slot`."""
        written = {slot for slot, _, _ in moves}
        contents = [self._content(source, window, parked=source in written) for _, source, window in moves]
        for (slot, _, window), content in zip(moves, contents, strict=True):
            *rows, waiting = content
            for (store, cells), cached in zip(self._readable(window), rows, strict=True):
                store.rows[:, slot, :, cells] = cached
            if self.pending is not None:
                self.pending.rows[slot, : window.pending_len] = waiting

    def _content(self, source: int, window: Window, *, parked: bool) -> list[Tensor]:
        """What lies in `source` of what `window` counts; parked: copied, as the slot itself is about to be written."""
        content = [store.rows[:, source, :, cells] for store, cells in self._readable(window)]
        content.append(content[0][:0] if self.pending is None else self.pending.of(source, window.pending_len))
        return [rows.clone() for rows in content] if parked else content

    def _readable(self, window: Window) -> list[tuple[Store, slice | Tensor]]:
        """The stores, each with the cells that hold the window's rows."""
        target = (self.target, slice(0, window.length))
        if self.context is None:
            return [target]
        wraps = self.first_context(window) > 0
        return [target, (self.context, self.context_cells(window) if wraps else slice(0, window.context_len))]

    def head(self, window: Window, keep_len: int, *, epoch: int | None) -> Window:
        """`Window.head` with this worker's ring."""
        return window.head(keep_len, epoch=epoch, drafter_window=self.shape.drafter_window)

    def overwrite(self, slot: int, end: int) -> None:
        """Give up what the ring holds where context rows up to `end` are about to go, should their step fail after it.

        Only writes longer than the spare rows (chunks, features pending for long) reach readable ones.
        """
        window = self.table[slot]
        window.context_start = max(window.context_start, min(end - self.shape.ring_len, window.context_len))

    def context_cells(self, window: Window) -> Tensor:
        """Where the ring holds the readable context of `window`, in the order of its positions."""
        return torch.arange(self.first_context(window), window.context_len, device=self.device) % self.shape.ring_len

    def first_context(self, window: Window) -> int:
        """The first position of the readable context."""
        return max(window.context_start, window.context_len - self.shape.drafter_window)

    def scrub(self, slot: int) -> None:
        """Make everything in the slot unreadable and leave nothing of it; the next Open starts from nothing."""
        self.table[slot] = Window()
        self.wipe(slot)

    def wipe(self, slot: int) -> None:
        """Clear what nobody may read: a mask hides numbers, but not infinities and NaN that a failed step left."""
        self._fill_unreadable(slot, self.table[slot], 0.0)

    def _fill_unreadable(self, slot: int, window: Window, value: float) -> None:
        """Give all of the slot's rows that `window` does not count the same value."""
        self.target.rows[:, slot, :, window.length :] = value
        if self.pending is not None:
            self.pending.rows[slot, window.pending_len :] = value
        self._fill_unreadable_context(slot, window, value)

    def _fill_unreadable_context(self, slot: int, window: Window, value: float) -> None:
        if self.context is None:
            return
        first, end, ring = self.first_context(window), window.context_len, self.context.length
        # What is not readable comes after it, up to where the ring begins to repeat.
        start, stop = end % ring, (first - 1) % ring + 1 if first < end else end % ring
        spans = [(start, stop)] if start < stop else [(start, ring), (0, stop)]
        for begin, until in spans:
            self.context.rows[:, slot, :, begin:until] = value
