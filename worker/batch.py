"""The layout of a step: rows of different widths laid out as flat tokens, and which rows can attend together.

Owns prefix sums. A row's place is the sum of the actual widths before it, never `slot * width`; what a row is is said
by its job. Knows slots and positions, never memory or models. `phases.py` makes one batch a step.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import torch


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
    free_pos: int = 0  # before this position none of the masked tokens of `params` is drawn
    # results
    emitted: list[int] = attrs.field(factory=list)
    accepted_len: int = 0
    margins: list[float] | None = None
    logprobs: list[float] | None = None
    top_token_ids: list[list[int]] | None = None
    top_logprobs: list[list[float]] | None = None
    fault: str | None = None  # why this row alone is not committed

    @property
    def width(self) -> int:
        return len(self.token_ids)

    @property
    def kept_len(self) -> int:
        """Positions that the commit adds: a chunk whole, of a pass the anchor and what was accepted."""
        return len(self.token_ids) if self.draft_len is None else self.accepted_len + 1


@attrs.frozen
class Group:
    """Rows of one width that attend together: tokens first .. first + rows * width - 1 of the flat batch."""

    first: int
    width: int
    slots: list[int]
    starts: list[int]

    @property
    def key_len(self) -> int:
        """Positions that the longest row sees."""
        return max(self.starts) + self.width


class Batch:
    """Flat tokens of all jobs. `token_ids`, `positions`, `slots`: [tokens] int64 on the device."""

    def __init__(self, jobs: list[Job], device: torch.device) -> None:
        """Chunks stand first, decode rows after them, by width and slot: equal widths form one group of neighbours."""
        self.jobs = sorted(jobs, key=lambda job: (job.draft_len is not None, job.width, job.slot))
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
        self.token_ids, self.positions, self.slots = packed.unbind(0)

    def groups(self) -> Iterator[Group]:
        """Each chunk by itself, decode rows of equal width together."""
        begin = 0
        while begin < len(self.jobs):
            head, end = self.jobs[begin], begin + 1
            if head.draft_len is not None:
                while end < len(self.jobs) and self.jobs[end].width == head.width:
                    end += 1
            jobs = self.jobs[begin:end]
            yield Group(self.firsts[begin], head.width, [job.slot for job in jobs], [job.start for job in jobs])
            begin = end
