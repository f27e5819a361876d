"""The draft phase: one block pass over the rows that keep a draft, then the chain that picks tokens.

Owns the chain's draws and what a window holds afterwards; never writes a readable row: the block's own keys and values
go to the ring's spare rows and are overwritten by the next context. `phases.py` calls it after the commit.
"""

import torch
from torch import Tensor

from ..models.drafter import DSparkDrafter
from ..models.parameters import Sampling
from ..models.sampling import DRAFT, TARGET, draw, draw_with_probs
from .attention import BlockAttention
from .batch import Job
from .windows import Store, Windows


class Proposer:
    """Runs the drafter for some rows and leaves what they keep in their windows."""

    def __init__(self, drafter: DSparkDrafter, windows: Windows, *, context: Store, rejection: bool) -> None:
        self.drafter, self.windows, self.context, self.rejection = drafter, windows, context, rejection

    def propose(self, jobs: list[Job], sampling: Sampling) -> None:
        """Draft for `jobs`, in their order; `sampling` has one entry for each of them."""
        jobs = sorted(jobs, key=lambda job: job.slot) if not sampling.any_sampled else jobs
        table, device = self.windows.table, self.drafter.device
        slots = [job.slot for job in jobs]
        starts = [table[slot].length for slot in slots]
        anchors = torch.tensor([table[slot].anchor for slot in slots], device=device)
        start_pos = torch.tensor(starts, device=device)
        attend = BlockAttention(self.context, self.windows, slots=slots, starts=starts)
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
