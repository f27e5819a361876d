"""The draft phase: one block pass over the rows that keep a draft, then the chain that picks tokens.

Owns the chain's draws and what a window holds afterwards; never writes a readable row: the block's own keys and values
go to the ring's spare rows and are overwritten by the next context. `phases.py` calls it after the commit.
"""

import torch
from torch import Tensor

from ..models.drafter import DSparkDrafter
from ..models.parameters import Sampling
from ..models.sampling import TARGET, draft_stream, draw, draw_with_probs, noise_for
from .batch import Job
from .blocks import BlockRunner
from .masks import masked
from .windows import Windows


class Proposer:
    """Runs the drafter for some rows and leaves what they keep in their windows."""

    def __init__(
        self,
        drafter: DSparkDrafter,
        windows: Windows,
        *,
        blocks: BlockRunner,
        rejection: bool,
        confidences: bool = False,
    ) -> None:
        self.drafter, self.windows, self.blocks, self.rejection = drafter, windows, blocks, rejection
        self.confidences = confidences  # of every draft, not only of those of requests that ask

    def propose(self, jobs: list[Job], sampling: Sampling) -> int:
        """Draft for `jobs`; `sampling` has one entry for each of them, in their order.

        Returns how many rows hold nothing, because what their drafter computed was not finite.
        """
        table, device = self.windows.table, self.drafter.device
        slots = [job.slot for job in jobs]
        starts = [table[slot].length for slot in slots]
        packed = torch.tensor([[table[slot].anchor for slot in slots], starts], device=device)
        anchors, start_pos = packed.unbind(0)
        hidden = self.blocks.hidden(slots, starts, packed)
        noise = self._noise(sampling, start_pos)
        sums: list[Tensor] = []  # finite iff what they add is
        masks = any(job.free_pos for job in jobs)

        def pick(index: int, logits: Tensor) -> Tensor:
            sums.append(logits.sum(-1))
            if masks:
                logits = masked(logits, jobs, [(row, start + index + 1, 1) for row, start in enumerate(starts)])
            if not sampling.any_sampled:
                return logits.argmax(-1)
            at = start_pos + (index + 1)
            if not self.rejection or self.windows.probs is None:
                return draw(logits, sampling, at, TARGET, noise=None if noise is None else noise[index])
            token_ids, probs = draw_with_probs(logits, sampling, at, draft_stream(index))
            self.windows.probs[slots, index] = probs
            return token_ids

        asked = self.confidences or any(job.params.passes for job in jobs)
        proposal = self.drafter.propose(hidden, anchors, pick, with_confidence=asked)
        logits = proposal.confidence_logits
        sums += [] if logits is None else [logits.sum(-1)]
        finite = torch.stack(sums, 1).isfinite().all(1, keepdim=True)
        drafts = torch.cat((proposal.token_ids, finite.long()), 1).tolist()  # one transfer for both
        confidence = None if logits is None else logits.tolist()
        num_lost = 0
        for index, job in enumerate(jobs):
            *draft, sound = drafts[index]
            if not sound:
                self.windows.wipe(job.slot)
                num_lost += 1
                continue
            window = table[job.slot]
            window.held = draft[: job.propose_len]
            window.confidence = None if confidence is None else confidence[index][: job.propose_len]
            window.noise = None if noise is None else noise[:, index]
        return num_lost

    def _noise(self, sampling: Sampling, start_pos: Tensor) -> Tensor | None:
        """The noise of the B + 1 positions after each anchor, [B + 1, rows, V]: the target draws with the same.

        None where none is shared: greedy rows, rejection, and top-k, which needs few tokens' noise only.
        """
        if not sampling.any_sampled or self.rejection or sampling.max_top_k:
            return None
        rows, depth = start_pos.shape[0], self.drafter.block_size + 1
        ahead = torch.arange(1, depth + 1, device=start_pos.device).view(-1, 1)
        each = sampling.at(torch.arange(rows, device=start_pos.device).repeat(depth))
        vocab_size = self.drafter.config.vocab_size
        return noise_for(each, (start_pos + ahead).view(-1), vocab_size, TARGET).view(depth, rows, vocab_size)
