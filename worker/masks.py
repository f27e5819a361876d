"""Tokens that a row may not draw yet: what would end its output, before it has `min_tokens`.

Owns the masking of logits, the target's and those of the drafter's chain alike, so a draft can stand there too. A row's
mask depends on the position of the token being drawn and never on the step. `phases.py` and `proposer.py` call it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .batch import Job

Span = tuple[int, int, int]  # first row of the logits, position of the token that is drawn there, how many rows


def free_pos(params: Any, *, text_len: int, output_len: int) -> int:
    """The position from which on a row may draw anything, 0 where nothing is masked.

    `text_len`: tokens of prompt and output when its seeding ends, of which the last `output_len` are output.
    """
    return text_len - output_len + params.min_tokens if params.masked_token_ids else 0


def masked(logits: Tensor, jobs: Sequence[Job], spans: Sequence[Span]) -> Tensor:
    """logits [rows, V], each job's masked ids at -inf in those of its rows that draw before its `free_pos`.

    A copy where anything is masked: others read what the model said.
    """
    if not any(job.free_pos for job in jobs):
        return logits
    rows: list[int] = []
    columns: list[int] = []
    for job, (first, position, count) in zip(jobs, spans, strict=True):
        ids = job.params.masked_token_ids if job.free_pos > position else ()
        for row in range(first, first + min(count, job.free_pos - position)):
            rows += [row] * len(ids)
            columns += ids
    if not rows:
        return logits
    index = torch.tensor([rows, columns], device=logits.device)
    return logits.index_put((index[0], index[1]), logits.new_tensor(-torch.inf))


def spans_of(jobs: Sequence[Job], widths: Sequence[int]) -> list[Span]:
    """Of sampling jobs whose last `width` tokens each have a row of logits, one job after another."""
    spans, first = list[Span](), 0
    for job, width in zip(jobs, widths, strict=True):
        spans.append((first, job.start + job.width - width + 1, width))
        first += width
    return spans
