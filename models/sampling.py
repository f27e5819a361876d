"""How a token is chosen, and how drafted tokens are accepted. The page to read first.

Owns filters, draws and both acceptance rules. Holds no state: everything is a function of logits, parameters and the
absolute position, so a row's token is the same in every batch shape and at every draft length. Called by the worker's
phases, the drafter's `pick` and the reference twin.

Coupled (the default): target and drafter both take argmax(log p + g) with the same noise g, which depends on the
position and not on the step. A drafted token stands iff it equals the target's. What is emitted is always the target's
own draw, so the output does not depend on the draft at all.

Rejection (classic): a token drawn from q stands with probability min(1, p/q); at the first rejection one is drawn from
max(p - q, 0) normalised. Draft, test and residual use streams of their own: shared noise would bias the output.
"""

from typing import Any

import torch
from torch import Tensor

from .filters import border, filtered_logits, kept_len, ranks, tempered
from .noise import ACCEPT, DRAFT, RESIDUAL, TARGET, draft_stream, gumbel, uniform32, unit
from .parameters import GREEDY_BELOW, Sampling, SamplingRow

__all__ = [
    "ACCEPT",
    "DRAFT",
    "GREEDY_BELOW",
    "RESIDUAL",
    "TARGET",
    "Sampling",
    "SamplingRow",
    "accept_coupled",
    "accept_probability",
    "accept_rejection",
    "draft_stream",
    "draw",
    "draw_with_probs",
    "filtered_logits",
    "margins",
    "noise_for",
    "probabilities",
    "residual_or_target",
    "residual_weight",
]
RESIDUAL_FLOOR = 1e-8


def draw(
    logits: Tensor, sampling: Sampling, positions: Tensor, stream: int = TARGET, *, noise: Tensor | None = None
) -> Tensor:
    """One token a row.

    logits: [rows, V] float32; positions: [rows] int64, absolute position of the token being drawn. Greedy rows take
    the argmax (lowest id on ties), others the argmax of log p + noise over the filtered logits. noise: what `noise_for`
    gave for the same sampling, positions and stream, to use it twice; None computes it. Returns [rows] int64.
    """
    if not sampling.any_sampled:
        return logits.argmax(-1)
    if noise is None and sampling.any_filtered and sampling.max_top_k:
        return _draw_candidates(logits, sampling, positions, stream)
    filtered = filtered_logits(logits, sampling)
    if noise is None:
        return _scores(filtered, sampling, positions, stream).argmax(-1)
    return (filtered + noise).argmax(-1)


def noise_for(sampling: Sampling, positions: Tensor, vocab_size: int, stream: int = TARGET) -> Tensor:
    """The noise of `draw` over the whole vocabulary: [rows, V] float32, 0 for greedy rows.

    In coupled mode a drafted position is drawn by the drafter and, a step later, by the target with the same noise.
    """
    token_ids = torch.arange(vocab_size, device=positions.device).unsqueeze(0)
    noise = gumbel(sampling.seed, sampling.sample_index, stream, positions, token_ids)
    return noise.masked_fill_(sampling.greedy, 0.0)


def draw_with_probs(
    logits: Tensor, sampling: Sampling, positions: Tensor, stream: int = DRAFT
) -> tuple[Tensor, Tensor]:
    """One token a row and the very distribution it was drawn from, for rejection mode.

    Arguments as for `draw`. Returns token ids [rows] int64 and probabilities [rows, V] float32 (greedy: one-hot).
    """
    probs = probabilities(logits, sampling)
    return _draw_from(probs, sampling, positions, stream), probs


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """softmax of the filtered logits; one-hot at the argmax for greedy rows. [rows, V] float32."""
    best = logits.argmax(-1, keepdim=True)
    one_hot = torch.zeros_like(logits).scatter_(1, best, 1.0)
    if not sampling.any_sampled:
        return one_hot
    return torch.where(sampling.greedy, one_hot, torch.softmax(filtered_logits(logits, sampling), -1))


def margins(logits: Tensor, sampling: Sampling, positions: Tensor, stream: int = TARGET) -> tuple[Tensor, Tensor]:
    """How near a draw was to another outcome: ([rows], [rows]) float32, arguments as for `draw`.

    First the difference of the two best scores after noise (of the two best logits for greedy rows). Second the
    distance to the kept set's border: the smallest change that moves it, in tempered logits for top-k and min-p, in
    probability for top-p; +inf where nothing is filtered.
    """
    scores = (
        logits if not sampling.any_sampled else _scores(filtered_logits(logits, sampling), sampling, positions, stream)
    )
    best = scores.topk(min(2, scores.shape[-1]), -1).values
    gap = best[:, 0] - best[:, -1]
    if not sampling.any_filtered:
        return gap, torch.full_like(gap, torch.inf)
    return gap, border(tempered(logits, sampling).sort(stable=True, dim=-1, descending=True).values, sampling)


def accept_coupled(target_token_ids: Tensor, draft_token_ids: Tensor, draft_len: Tensor) -> Tensor:
    """How many drafted tokens equal the target's own draws, as a prefix.

    target_token_ids: [rows, W], the target's draw after each verify row; draft_token_ids: [rows, W-1]; draft_len:
    [rows] int64, what lies beyond it never counts. Returns accepted_len [rows] int64; emitted are
    target_token_ids[:, :accepted_len + 1].
    """
    return _prefix_len(target_token_ids[:, :-1] == draft_token_ids, draft_len)


def accept_rejection(
    target_logits: Tensor,
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    draft_len: Tensor,
    *,
    sampling: Sampling,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """Classic speculative acceptance; only the distribution is that of the target.

    target_logits: [rows, W, V] float32; draft_probs: [rows, W-1, V], the tensors the drafts were drawn from;
    draft_token_ids: [rows, W-1]; draft_len: [rows]; positions: [rows], position of the first drafted token. Returns
    accepted_len [rows] and the extra token [rows], both int64.
    """
    rows, width, vocab = target_logits.shape
    each = sampling.at(torch.arange(rows, device=target_logits.device).repeat_interleave(width))
    target_probs = probabilities(target_logits.reshape(-1, vocab), each).view(rows, width, vocab)
    chosen = draft_token_ids.unsqueeze(-1)  # [rows, W-1, 1]
    chance = accept_probability(target_probs[:, :-1].gather(-1, chosen), draft_probs.gather(-1, chosen)).squeeze(-1)
    steps = torch.arange(width - 1, device=positions.device)
    at = (positions.unsqueeze(-1) + steps).view(-1)
    tests = sampling.at(torch.arange(rows, device=at.device).repeat_interleave(width - 1))
    zero = torch.zeros(1, 1, dtype=torch.int64, device=at.device)
    drawn = unit(uniform32(tests.seed, tests.sample_index, ACCEPT, at, zero)).view(rows, width - 1)
    accepted_len = _prefix_len(drawn < chance, draft_len)
    # With every draft accepted there is nothing to subtract: q = 0 makes the residual the target itself.
    index = accepted_len.view(-1, 1, 1).expand(-1, 1, vocab)
    p = target_probs.gather(1, index).squeeze(1)  # [rows, V]
    padded = torch.cat((draft_probs, torch.zeros_like(target_probs[:, :1])), 1)
    q = padded.gather(1, index).squeeze(1) * (accepted_len < draft_len).unsqueeze(-1)
    weights = residual_weight(p, q)
    weights = residual_or_target(weights, p, weights.sum(-1, keepdim=True))
    return accepted_len, _draw_from(weights, sampling, positions + accepted_len, RESIDUAL)


# The arithmetic of rejection, elementwise and with operators only: these lines run on tensors and on exact rationals.


def accept_probability(p: Any, q: Any) -> Any:
    """min(1, p/q) for a token that was drawn from q, so q > 0."""
    ratio = p / q
    return ratio * (ratio < 1) + (ratio >= 1)


def residual_weight(p: Any, q: Any) -> Any:
    """max(p - q, 0), not yet normalised."""
    return (p - q) * (p > q)


def residual_or_target(weight: Any, p: Any, mass: Any) -> Any:
    """The weight to draw from: the residual, or p itself where the residual's mass has vanished."""
    return weight * (mass > RESIDUAL_FLOOR) + p * (mass <= RESIDUAL_FLOOR)


def _scores(filtered: Tensor, sampling: Sampling, positions: Tensor, stream: int) -> Tensor:
    """Filtered logits plus noise; the normaliser of log p is the same for all and left out. Greedy rows as is."""
    return filtered + noise_for(sampling, positions, filtered.shape[-1], stream)


def _draw_candidates(logits: Tensor, sampling: Sampling, positions: Tensor, stream: int) -> Tensor:
    """`draw` with noise for the max_top_k best tokens only; greedy rows keep their best among these."""
    ordered, token_ids = tempered(logits, sampling).sort(stable=True, dim=-1, descending=True)
    width = min(sampling.max_top_k, ordered.shape[-1])
    kept = ranks(ordered) < kept_len(ordered, sampling)
    ordered, token_ids = ordered.masked_fill(~kept, -torch.inf)[:, :width], token_ids[:, :width]
    noise = gumbel(sampling.seed, sampling.sample_index, stream, positions, token_ids)
    scores = ordered + noise.masked_fill(sampling.greedy, 0.0)
    best = scores == scores.amax(-1, keepdim=True)
    chosen: Tensor = token_ids.masked_fill(~best, logits.shape[-1]).amin(-1)
    return chosen


def _draw_from(weights: Tensor, sampling: Sampling, positions: Tensor, stream: int) -> Tensor:
    """A token in proportion to weights [rows, V]: the normaliser does not move an argmax."""
    return _scores(weights.log(), sampling, positions, stream).argmax(-1)


def _prefix_len(stands: Tensor, draft_len: Tensor) -> Tensor:
    """Length of the leading run of True in [rows, W-1], cut at draft_len [rows]."""
    counts = torch.arange(stands.shape[-1], device=stands.device) < draft_len.unsqueeze(-1)
    return (stands & counts).long().cumprod(-1).sum(-1)
