"""Log-probabilities of what was emitted, for who asked: of the target's logits before temperature, filters and masks.

Owns nothing that lasts. `phases.py` calls it once tokens are chosen.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .batch import Job


def fill_logprobs(jobs: Sequence[Job], widths: Sequence[int], logits: Tensor) -> None:
    """logits: [sampled tokens, V] float32, one job's `width` rows after another's. Of equals the lower id is better."""
    first = 0
    for job, width in zip(jobs, widths, strict=True):
        if job.params.logprobs and job.fault is None:
            own = logits[first : first + len(job.emitted)].log_softmax(-1)
            chosen = torch.tensor(job.emitted, device=logits.device).unsqueeze(1)
            job.logprobs = own.gather(1, chosen).squeeze(1).tolist()
            if job.params.top_logprobs:
                best, token_ids = own.sort(stable=True, dim=-1, descending=True)
                count = job.params.top_logprobs
                job.top_logprobs, job.top_token_ids = best[:, :count].tolist(), token_ids[:, :count].tolist()
        first += width
