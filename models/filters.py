"""Temperature, top-k, top-p and min-p, in that order.

Owns which tokens may be drawn. Draws nothing. Called by `sampling`. Each filter keeps a prefix of the descending
order, so a row's filters come down to one length.
"""

import torch
from torch import Tensor

from .parameters import Sampling


def filtered_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temperature, then top-k, top-p, min-p: [rows, V] -> [rows, V], what is excluded at -inf, greedy rows untouched.

    Top-p keeps the smallest set of what top-k left whose renormalised sum is >= top_p; min-p is relative to the
    maximum. Ties keep the lower id; one token always stays.
    """
    scaled = tempered(logits, sampling)
    if not sampling.any_filtered:
        return scaled
    ordered, token_ids = scaled.sort(stable=True, dim=-1, descending=True)
    kept = ranks(ordered) < kept_len(ordered, sampling)
    return torch.full_like(scaled, -torch.inf).scatter_(1, token_ids, ordered.masked_fill(~kept, -torch.inf))


def tempered(logits: Tensor, sampling: Sampling) -> Tensor:
    """logits [rows, V] over the temperature; greedy rows as they are."""
    return logits / torch.where(sampling.greedy, 1.0, sampling.temperature.unsqueeze(-1))


def ranks(ordered: Tensor) -> Tensor:
    """0..V-1 on the device of [rows, V]."""
    return torch.arange(ordered.shape[-1], device=ordered.device)


def kept_len(ordered: Tensor, sampling: Sampling) -> Tensor:
    """How many of the descending logits [rows, V] stay: each filter keeps a prefix. [rows, 1] int64."""
    top_k_len, before, ratio = _filter_parts(ordered, sampling)
    keeps = ranks(ordered) < top_k_len
    top_p, min_p = sampling.top_p.unsqueeze(-1), sampling.min_p.unsqueeze(-1)
    keeps &= (before < top_p) | (top_p >= 1)
    keeps &= ratio >= min_p
    kept_len = keeps.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(sampling.greedy, ordered.shape[-1], kept_len)


def _filter_parts(ordered: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
    """top_k as a length [rows, 1]; the mass before each rank after top-k and its ratio to the best, [rows, V]."""
    top_k = sampling.top_k.unsqueeze(-1)
    top_k_len = torch.where(top_k > 0, top_k, ordered.shape[-1])
    left = ordered.masked_fill(ranks(ordered) >= top_k_len, -torch.inf)
    # float64: over a large vocabulary a float32 running sum would decide the border by its rounding.
    mass = torch.softmax(left, -1, dtype=torch.float64)
    return top_k_len, mass.cumsum(-1) - mass, (ordered - ordered[:, :1]).exp()


def border(ordered: Tensor, sampling: Sampling) -> Tensor:
    """The smallest change that moves the kept set's border of descending logits [rows, V]: [rows], see `margins`."""
    top_k_len, before, _ = _filter_parts(ordered, sampling)
    top_p, min_p = sampling.top_p.unsqueeze(-1), sampling.min_p.unsqueeze(-1)
    last = (top_k_len - 1).clamp(max=ordered.shape[-1] - 1)
    following = top_k_len.clamp(max=ordered.shape[-1] - 1)
    by_rank = (ordered.gather(-1, last) - ordered.gather(-1, following)).squeeze(-1)
    by_rank = torch.where(top_k_len.squeeze(-1) < ordered.shape[-1], by_rank, torch.inf)
    # Rank 0 always stays, so the border cannot lie before it.
    by_mass = (before[:, 1:] - top_p).abs().amin(-1).float()
    by_ratio = (ordered[:, 1:] - ordered[:, :1] - min_p.log()).abs().amin(-1)
    by_mass = torch.where(sampling.top_p < 1, by_mass, torch.inf)
    by_ratio = torch.where(sampling.min_p > 0, by_ratio, torch.inf)
    nearest = torch.minimum(torch.minimum(by_rank, by_mass), by_ratio)
    return torch.where(sampling.greedy.squeeze(-1), torch.inf, nearest)
