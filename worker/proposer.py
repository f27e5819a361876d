"""The draft phase: one block pass over the rows that keep a draft, then the chain that picks tokens.

Owns how a block reads the context ring; never writes a readable row: the block's own keys and values go to the ring's
spare rows and are overwritten by the next context. `phases.py` calls it after the commit.
"""

import torch
from torch import Tensor

from ..models.drafter import DSparkDrafter
from ..models.layers import grouped_attention
from ..models.parameters import Sampling
from ..models.sampling import DRAFT, TARGET, draw, draw_with_probs
from .batch import Job, rows_of
from .windows import Flat, Windows, write


class BlockAttention:
    """`attend` of one block pass: rows see their context [start - window, start) and all rows of their block."""

    def __init__(self, windows: Windows, flat: Flat, *, slots: list[int], starts: list[int]) -> None:
        shape, device = windows.shape, windows.device
        block, ring = shape.block_len, shape.ring_len
        self.windows, self.slots = windows, slots
        positions = [(start + offset) % ring for start in starts for offset in range(block)]
        packed = torch.tensor([positions, [slot for slot in slots for _ in range(block)]], device=device)
        self.index = flat.index(packed[1], packed[0])
        self.gather: Tensor | None = None
        self.mask: Tensor | None = None
        self.key_len = max(starts) + block
        if self.key_len > ring:
            self._wrap(starts, device)
        elif min(starts) != max(starts):
            ends = torch.tensor(starts, device=device).view(-1, 1, 1) + block
            self.mask = _additive(torch.arange(self.key_len, device=device) < ends)

    def _wrap(self, starts: list[int], device: torch.device) -> None:
        """Somebody's window wraps around the ring's end: read by position, each row its own last ones."""
        shape = self.windows.shape
        ends = [start + shape.block_len for start in starts]
        firsts = [max(0, start - shape.drafter_window) for start in starts]
        self.key_len = max(end - first for end, first in zip(ends, firsts, strict=True))
        packed = torch.tensor([firsts, ends, self.slots], device=device).unsqueeze(-1)
        positions = packed[0] + torch.arange(self.key_len, device=device)  # [rows, key_len]
        self.mask = _additive(positions < packed[1]).unsqueeze(1)
        heads = self.windows.context_keys[0].shape[1]
        # [rows, G, key_len] flat rows of the store; columns beyond a row's end are masked and read row 0 of the ring.
        inside = torch.where(positions < packed[1], positions % shape.ring_len, 0)
        base = packed[2] * heads + torch.arange(heads, device=device)  # [rows, G]
        self.gather = base.unsqueeze(-1) * shape.ring_len + inside.unsqueeze(1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[rows, B, heads, D] -> [rows, B, H*D]."""
        keys, values = self.windows.context_keys[layer], self.windows.context_values[layer]
        write(keys, self.index, k.reshape(-1, *k.shape[2:]))
        write(values, self.index, v.reshape(-1, *v.shape[2:]))
        return grouped_attention(q, self._read(keys), self._read(values), self.mask)

    def _read(self, store: Tensor) -> Tensor:
        if self.gather is None:
            return rows_of(store, self.slots, self.key_len)
        return store.view(-1, store.shape[-1])[self.gather]


def _additive(readable: Tensor) -> Tensor:
    return torch.where(readable, 0.0, -torch.inf)


class Proposer:
    """Runs the drafter for some rows and leaves what they keep in their windows."""

    def __init__(self, drafter: DSparkDrafter, windows: Windows, *, rejection: bool) -> None:
        self.drafter, self.windows, self.rejection = drafter, windows, rejection
        self.flat = Flat(windows.context_keys[0])

    def propose(self, jobs: list[Job], sampling: Sampling) -> None:
        """Draft for `jobs`, in their order; `sampling` has one entry for each of them."""
        jobs = sorted(jobs, key=lambda job: job.slot) if not sampling.any_sampled else jobs
        table, device = self.windows.table, self.drafter.device
        slots = [job.slot for job in jobs]
        starts = [table[slot].length for slot in slots]
        anchors = torch.tensor([table[slot].anchor for slot in slots], device=device)
        start_pos = torch.tensor(starts, device=device)
        attend = BlockAttention(self.windows, self.flat, slots=slots, starts=starts)
        hidden = self.drafter.block(anchors, start_pos, attend)

        def pick(index: int, logits: Tensor) -> Tensor:
            if not sampling.any_sampled:
                return logits.argmax(-1)
            at = start_pos + (index + 1)
            if not self.rejection or self.windows.probs is None:
                return draw(logits, sampling, at, TARGET)
            token_ids, probs = draw_with_probs(logits, sampling, at, DRAFT)
            self.windows.probs[slots, index] = probs
            return token_ids

        proposal = self.drafter.propose(hidden, anchors, pick)
        drafts = proposal.token_ids.tolist()
        asked = proposal.confidence_logits is not None and any(job.params.passes for job in jobs)
        confidence = proposal.confidence_logits.tolist() if asked and proposal.confidence_logits is not None else None
        for index, job in enumerate(jobs):
            window = table[job.slot]
            window.held = drafts[index][: job.propose_len]
            window.confidence = None if confidence is None else confidence[index][: job.propose_len]
