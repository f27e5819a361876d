"""The layout of a step: rows of different widths laid out as flat tokens, grouped for attention.

Owns prefix sums and masks. A row's place is the sum of the actual widths before it, never `slot * width`; what a row is
is said by its job. Knows windows' shapes, never models. `phases.py` makes one batch a step.
"""

from typing import Any

import attrs
import torch
from torch import Tensor

from ..models.layers import grouped_attention
from .windows import Flat, Windows, write


@attrs.define
class Job:
    """One row of a command after its checks: `token_ids` go in at `start`; `draft_len` is None for a chunk."""

    slot: int
    row: Any  # the command's row, None for padding and warm-up
    start: int
    token_ids: list[int]
    samples: bool  # a Decode, or the last chunk
    draft_len: int | None
    propose_len: int
    params: Any
    # results
    emitted: list[int] = attrs.field(factory=list)
    accepted_len: int = 0
    margins: list[float] | None = None

    @property
    def width(self) -> int:
        return len(self.token_ids)

    @property
    def kept_len(self) -> int:
        """Positions that the commit adds: a chunk whole, of a pass the anchor and what was accepted."""
        return self.width if self.draft_len is None else self.accepted_len + 1


@attrs.frozen
class Group:
    """Rows of one width that attend together: tokens [first, first + rows * width) of the flat batch."""

    first: int
    rows: int
    width: int
    slots: list[int]
    key_len: int
    mask: Tensor | None  # [rows, width, key_len] additive


class Masks:
    """Causal masks. Those of narrow rows are views of one precomputed band; wide chunks make their own."""

    def __init__(self, capacity: int, narrow: int, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity, self.narrow, self.dtype, self.device = capacity, narrow, dtype, device
        columns = torch.arange(2 * capacity, device=device)
        allowed = columns <= torch.arange(narrow, device=device).unsqueeze(1) + capacity
        self.band = torch.where(allowed, 0.0, -torch.inf).to(dtype)  # [narrow, 2 * capacity]

    def one(self, start: int, width: int) -> Tensor | None:
        """For one row at `start`: [1, width, start + width], or None where nothing is hidden."""
        if width == 1:
            return None
        if width <= self.narrow:
            first = self.capacity - start
            return self.band[:width, first : first + start + width].unsqueeze(0)
        return self.of(torch.arange(start, start + width, device=self.device).unsqueeze(0), start + width)

    def of(self, positions: Tensor, key_len: int) -> Tensor:
        """positions: [rows, width] -> [rows, width, key_len]: a key is read iff its position is not later."""
        keys = torch.arange(key_len, device=self.device)
        return torch.where(keys <= positions.unsqueeze(-1), 0.0, -torch.inf).to(self.dtype)


class Batch:
    """Flat tokens of all jobs and the groups that attend together; `attend` is the target's callback."""

    def __init__(self, jobs: list[Job], windows: Windows, *, masks: Masks, flat: Flat, device: torch.device) -> None:
        """Chunks stand first, decode rows after them, by width and slot: equal widths form one group of neighbours."""
        self.jobs = sorted(jobs, key=lambda job: (job.draft_len is not None, job.width, job.slot))
        self.windows = windows
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        self.firsts: list[int] = []  # where each job's tokens begin
        for job in self.jobs:
            self.firsts.append(len(token_ids))
            token_ids += job.token_ids
            positions += range(job.start, job.start + job.width)
            slots += [job.slot] * job.width
        packed = torch.tensor([token_ids, positions, slots], device=device)  # one transfer for all three
        self.token_ids, self.positions, slot_ids = packed.unbind(0)
        self.index = flat.index(slot_ids, self.positions)
        self.groups = list(self._group(masks))

    def _group(self, masks: Masks) -> list[Group]:
        groups: list[Group] = []
        begin = 0
        while begin < len(self.jobs):
            head = self.jobs[begin]
            end = begin + 1
            if head.draft_len is not None:
                while end < len(self.jobs) and self.jobs[end].width == head.width:
                    end += 1
            jobs, first, width = self.jobs[begin:end], self.firsts[begin], head.width
            key_len = max(job.start for job in jobs) + width
            if len(jobs) == 1:
                mask = masks.one(head.start, width)
            else:
                rows = self.positions[first : first + len(jobs) * width].view(len(jobs), width)
                mask = masks.of(rows, key_len)
            groups.append(Group(first, len(jobs), width, [job.slot for job in jobs], key_len, mask))
            begin = end
        return groups

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, then attend group by group. [tokens, heads, D] -> [tokens, H*D]."""
        keys, values = self.windows.keys[layer], self.windows.values[layer]
        write(keys, self.index, k)
        write(values, self.index, v)
        mixed = [self._attend_group(group, q, keys, values) for group in self.groups]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend_group(self, group: Group, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        tokens = group.rows * group.width
        queries = q[group.first : group.first + tokens].view(group.rows, group.width, *q.shape[1:])
        mixed = grouped_attention(
            queries,
            rows_of(keys, group.slots, group.key_len),
            rows_of(values, group.slots, group.key_len),
            group.mask,
        )
        return mixed.view(tokens, -1)


def rows_of(store: Tensor, slots: list[int], length: int) -> Tensor:
    """The first `length` positions of `slots`: [rows, G, length, D], a view where the slots are neighbours in order."""
    first = slots[0]
    if slots == list(range(first, first + len(slots))):
        return store[first : first + len(slots), :, :length]
    return store[:, :, :length].index_select(0, torch.tensor(slots, device=store.device))
