"""How a step's rows read and write the windows: the `attend` callbacks of the target and of the drafter's block.

Owns masks and views for one step; writes only where the batch says: positions at or beyond a window's length, and the
ring's spare rows. `graphs.py` and `proposer.py` make one for each pass.
"""

import torch
from torch import Tensor

from .batch import Batch, Group
from .windows import Store, Windows


class Masks:
    """Causal masks, additive. Those of narrow rows are views of one precomputed band; wide chunks make their own."""

    def __init__(self, capacity: int, narrow: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity, self.narrow, self.dtype, self.device = capacity, narrow, dtype, device
        allowed = (
            torch.arange(2 * capacity, device=device) <= torch.arange(narrow, device=device).view(-1, 1) + capacity
        )
        self.band = additive(allowed, dtype)  # [narrow, 2 * capacity]

    def of(self, group: Group, positions: Tensor) -> Tensor | None:
        """[rows, width, key_len], or None where nothing is hidden. positions: the group's, [rows * width]."""
        start, width = group.starts[0], group.width
        if len(group.slots) > 1:
            return self.causal(positions.view(len(group.slots), width, 1), group.key_len)
        if width == 1:
            return None
        if width > self.narrow:
            return self.causal(positions.view(1, width, 1), group.key_len)
        first = self.capacity - start
        return self.band[:width, first : first + start + width].unsqueeze(0)

    def causal(self, positions: Tensor, key_len: int) -> Tensor:
        """positions: [rows, width, 1] -> [rows, width, key_len]: a key is read iff its position is not later."""
        return additive(torch.arange(key_len, device=self.device) <= positions, self.dtype)


def additive(readable: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(readable, 0.0, -torch.inf).to(dtype)


class TargetAttention:
    """`attend` of one target pass over exact shapes: stores a layer's keys and values, then attends group by group."""

    def __init__(self, batch: Batch, windows: Windows, masks: Masks) -> None:
        self.store = windows.target
        self.parts = []
        for group in batch.groups():
            tokens = slice(group.first, group.first + len(group.slots) * group.width)
            mask = masks.of(group, batch.positions[tokens])
            self.parts.append((tokens, group, self.store.views(group.slots, group.key_len), mask))
        self.own: tuple[Tensor, ...] | None = None
        self.index: Tensor | None = None
        if len(batch.jobs) == 1:  # one row: a plain copy is cheaper than an indexed one
            job = batch.jobs[0]
            self.own = self.store.span(job.slot, job.start, job.start + job.width)
        else:
            self.index = self.store.index(batch.slots, batch.positions)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[tokens, heads, D] -> [tokens, H*D]."""
        if self.own is not None:
            self.own[2 * layer].copy_(k.transpose(0, 1))
            self.own[2 * layer + 1].copy_(v.transpose(0, 1))
        elif self.index is not None:
            self.store.write(layer, self.index, k, v)
        mixed = [self._attend(layer, q[tokens], group, views, mask) for tokens, group, views, mask in self.parts]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend(
        self, layer: int, q: Tensor, group: Group, views: tuple[Tensor, ...] | None, mask: Tensor | None
    ) -> Tensor:
        if views is None:
            keys, values = self.store.gather(layer, group.slots, group.key_len)
        else:
            keys, values = views[2 * layer], views[2 * layer + 1]
        queries = q.view(len(group.slots), group.width, *q.shape[1:])
        return self.store.attend(group.slots, queries, keys, values, mask).view(q.shape[0], -1)


class BlockAttention:
    """`attend` of one block pass: rows see their context [start - window, start) and all rows of their block."""

    def __init__(self, store: Store, windows: Windows, *, slots: list[int], starts: list[int]) -> None:
        shape = windows.shape
        block, ring = shape.block_len, shape.ring_len
        self.store, self.slots, self.dtype, self.device = store, slots, store.rows.dtype, windows.device
        positions = [(start + offset) % ring for start in starts for offset in range(block)]
        packed = torch.tensor([positions, [slot for slot in slots for _ in range(block)]], device=self.device)
        self.index = store.index(packed[1], packed[0])
        self.cells: Tensor | None = None
        self.views: tuple[Tensor, ...] | None = None
        self.mask: Tensor | None = None
        self.key_len = max(starts) + block
        if max(starts) > shape.drafter_window:
            self._wrap(starts, block=block, window=shape.drafter_window)
            return
        self.views = store.views(slots, self.key_len)
        if min(starts) != max(starts):
            ends = torch.tensor(starts, device=self.device).view(-1, 1, 1) + block
            self.mask = additive(torch.arange(self.key_len, device=self.device) < ends, self.dtype)

    def _wrap(self, starts: list[int], *, block: int, window: int) -> None:
        """Somebody's context is longer than the window: read by position, each row its own last ones."""
        ends = [start + block for start in starts]
        firsts = [max(0, start - window) for start in starts]
        self.key_len = max(end - first for end, first in zip(ends, firsts, strict=True))
        packed = torch.tensor([firsts, ends, self.slots], device=self.device).unsqueeze(-1)
        positions = packed[0] + torch.arange(self.key_len, device=self.device)  # [rows, key_len]
        inside = positions < packed[1]
        self.mask = additive(inside, self.dtype).unsqueeze(1)
        # Columns beyond a row's end are masked; they read the ring's row 0 for want of one of their own.
        self.cells = self.store.cells(packed[2], torch.where(inside, positions % self.store.length, 0))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[rows, B, heads, D] -> [rows, B, H*D]."""
        self.store.write(layer, self.index, k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:]))
        if self.cells is not None:
            keys, values = self.store.read(layer, self.cells)
        elif self.views is not None:
            keys, values = self.views[2 * layer], self.views[2 * layer + 1]
        else:
            keys, values = self.store.gather(layer, self.slots, self.key_len)
        return self.store.attend(self.slots, q, keys, values, self.mask)
