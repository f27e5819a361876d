"""Rejection accepts by the very distribution that a draft was drawn from: one-hot where the drafter takes its best."""

import torch
from dsparkd.models.sampling import Sampling, SamplingRow, accept_rejection, draw_with_probs
from model_support import CPU

VOCAB, ROWS = 6, 20_000
CRITICAL = 20.52  # chi-square of 5 degrees of freedom at 0.1 %


def statistic(token_ids: torch.Tensor, probabilities: torch.Tensor) -> float:
    mean = probabilities * len(token_ids)
    return float(((token_ids.bincount(minlength=VOCAB) - mean) ** 2 / mean).sum())


def test_l076_a_drafter_that_takes_its_best_leaves_the_distribution_the_targets_and_its_softmax_would_not() -> None:
    generator = torch.Generator().manual_seed(3)
    target, drafter = (torch.randn(VOCAB, generator=generator) for _ in range(2))
    sampled = Sampling.of([SamplingRow(temperature=1.0, seed=seed) for seed in range(ROWS)], CPU)
    positions = torch.full((ROWS,), 9)
    softmax = drafter.softmax(-1).expand(ROWS, 1, VOCAB)
    logits = drafter.expand(ROWS, VOCAB)
    # Said in both ways in which a request can be greedy to its drafter.
    for row in (SamplingRow(), SamplingRow(temperature=1.0, top_k=1, seed=4)):
        drafts, probs = draw_with_probs(logits, Sampling.of([row] * ROWS, CPU), positions)
        assert probs.tolist() == torch.nn.functional.one_hot(drafts, VOCAB).tolist()
        assert set(drafts.tolist()) == {int(drafter.argmax())}
        first = {}
        for name, q in (("one-hot", probs.unsqueeze(1)), ("softmax", softmax)):
            accepted, extra = accept_rejection(
                target.expand(ROWS, 2, VOCAB),
                q,
                drafts.unsqueeze(1),
                torch.ones(ROWS, dtype=torch.int64),
                sampling=sampled,
                positions=positions,
            )
            first[name] = torch.where(accepted == 1, drafts, extra)
        assert statistic(first["one-hot"], target.softmax(-1)) < CRITICAL
        assert statistic(first["softmax"], target.softmax(-1)) > 4 * CRITICAL, "else this test would see no bias"
