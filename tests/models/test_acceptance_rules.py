"""Both acceptance rules: coupled as a prefix of equal tokens, rejection exactly in rationals and by frequency."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from dsparkd.models.sampling import (
    Sampling,
    SamplingRow,
    accept_coupled,
    accept_probability,
    accept_rejection,
    draw_with_probs,
    residual_or_target,
    residual_weight,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from model_support import CPU

VOCAB = range(4)
Rational = tuple[Fraction, ...]
Weights = Callable[[Any, Any], Any]


def table(*rows: tuple[int, ...]) -> list[Rational]:
    return [tuple(Fraction(value, sum(row)) for value in row) for row in rows]


# Target and draft distribution after: nothing, and each of the four first tokens. Both know zeros.
TARGET = table((3, 2, 4, 1), (1, 1, 1, 1), (5, 0, 3, 2), (1, 7, 1, 1), (2, 2, 2, 5))
DRAFTER = table((1, 4, 3, 2), (2, 1, 4, 1), (1, 3, 1, 3), (0, 1, 1, 0), (2, 2, 2, 5))


def after(prefix: tuple[int, ...]) -> int:
    return prefix[-1] + 1 if prefix else 0


def extra(p: Rational, q: Rational, weight_of: Weights) -> Rational:
    """The distribution of the token after the first rejection, by the engine's own arithmetic."""
    weights = [weight_of(p[token], q[token]) for token in VOCAB]
    mass = sum(weights)
    weights = [residual_or_target(weights[token], p[token], mass) for token in VOCAB]
    return tuple(Fraction(weight) / sum(weights) for weight in weights)


def emitted(weight_of: Weights) -> dict[tuple[int, int], Fraction]:
    """Probability of the first two emitted tokens, over every draft of two and every accept and residual outcome.

    Where a draft of two is cut after one token, the second comes from the target: the next step's plain draw.
    """
    out = {(a, b): Fraction(0) for a in VOCAB for b in VOCAB}
    p, q = TARGET[0], DRAFTER[0]
    for first in VOCAB:
        if not q[first]:
            continue
        chance = accept_probability(p[first], q[first])
        for token, residual in enumerate(extra(p, q, weight_of)):
            for then in VOCAB:
                out[token, then] += q[first] * (1 - chance) * residual * TARGET[after((token,))][then]
        p_next, q_next = TARGET[after((first,))], DRAFTER[after((first,))]
        for second in VOCAB:
            if not q_next[second]:
                continue
            stands = accept_probability(p_next[second], q_next[second])
            reached = q[first] * chance * q_next[second]
            out[first, second] += reached * stands
            for token, residual in enumerate(extra(p_next, q_next, weight_of)):
                out[first, token] += reached * (1 - stands) * residual
    return out


def target_pairs() -> dict[tuple[int, int], Fraction]:
    return {(a, b): TARGET[0][a] * TARGET[after((a,))][b] for a in VOCAB for b in VOCAB}


def test_rejection_emits_exactly_the_target_distribution() -> None:
    assert emitted(residual_weight) == target_pairs()


@pytest.mark.parametrize("wrong", [lambda p, q: p, lambda p, q: abs(p - q)], ids=["from the target", "absolute"])
def test_a_wrong_residual_is_seen(wrong: Weights) -> None:
    assert emitted(wrong) != target_pairs()


def test_a_vanished_residual_falls_back_to_the_target() -> None:
    p = TARGET[0]
    assert extra(p, p, residual_weight) == p


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=5))
def test_coupled_acceptance_counts_the_equal_prefix_within_draft_len(rows: list[tuple[bool, bool, bool, int]]) -> None:
    equal = torch.tensor([row[:3] for row in rows])
    target = torch.full((len(rows), 4), 7)
    drafts = torch.where(equal, 7, 8)
    draft_len = torch.tensor([row[3] for row in rows])
    expected = []
    for row in rows:
        length = 0
        while length < row[3] and row[length]:
            length += 1
        expected.append(length)
    assert accept_coupled(target, drafts, draft_len).tolist() == expected


def test_a_row_without_drafts_accepts_none() -> None:
    empty = torch.empty(2, 0, dtype=torch.int64)
    assert accept_coupled(torch.tensor([[3], [4]]), empty, torch.tensor([0, 0])).tolist() == [0, 0]


def run_rejection(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A draft of two from DRAFTER judged against TARGET, `count` times -> drafts, accepted_len, extra token."""
    p, q = (torch.tensor([[float(x) for x in row] for row in rows]) for rows in (TARGET, DRAFTER))
    sampling = Sampling.of([SamplingRow(temperature=1.0, seed=seed) for seed in range(count)], CPU)
    at = torch.full((count,), 20)
    first, q_first = draw_with_probs(q[0].log().expand(count, -1), sampling, at)
    second, q_second = draw_with_probs(q[first + 1].log(), sampling, at + 1)
    logits = torch.stack((p[0].expand(count, -1), p[first + 1], p[second + 1]), 1).log()
    drafts = torch.stack((first, second), 1)
    accepted_len, token = accept_rejection(
        logits, torch.stack((q_first, q_second), 1), drafts, torch.full((count,), 2), sampling=sampling, positions=at
    )
    return drafts, accepted_len, token


def test_rejection_frequencies_fit_the_target() -> None:
    count = 6000
    drafts, accepted_len, token = run_rejection(count)
    first = torch.where(accepted_len > 0, drafts[:, 0], token)
    expected = count * torch.tensor([float(x) for x in TARGET[0]])
    found = torch.bincount(first, minlength=4)
    assert float(((found - expected) ** 2 / expected).sum()) < 16.3  # 0.999 quantile, 3 degrees of freedom
    # The second token after a first draft that stood and was a 1: TARGET[2] gives token 1 no chance.
    chosen = (accepted_len > 0) & (first == 1)
    second = torch.where(accepted_len > 1, drafts[:, 1], token)[chosen]
    expected = int(chosen.sum()) * torch.tensor([float(x) for x in TARGET[2]])
    found = torch.bincount(second, minlength=4)
    assert found[1] == 0
    kept = expected > 0
    assert float(((found - expected)[kept] ** 2 / expected[kept]).sum()) < 13.8
    # The bonus token, after both stood and the second was a 3.
    bonus = token[(accepted_len == 2) & (drafts[:, 1] == 3)]
    expected = len(bonus) * torch.tensor([float(x) for x in TARGET[4]])
    assert float(((torch.bincount(bonus, minlength=4) - expected) ** 2 / expected).sum()) < 16.3


def test_greedy_rows_under_rejection_follow_the_argmax() -> None:
    logits = torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 4.0]]]).expand(3, -1, -1)
    sampling = Sampling.of([SamplingRow(), SamplingRow(), SamplingRow(temperature=1.0)], CPU)
    drafts = torch.tensor([[1, 0], [1, 2], [1, 0]])
    probs = torch.nn.functional.one_hot(drafts, 3).float()
    accepted_len, token = accept_rejection(
        logits, probs, drafts, torch.tensor([2, 2, 0]), sampling=sampling, positions=torch.tensor([4, 4, 4])
    )
    assert accepted_len.tolist() == [2, 1, 0]
    assert token[:2].tolist() == [2, 0]


def test_stale_columns_beyond_draft_len_change_nothing() -> None:
    torch.manual_seed(3)
    rows = 64
    logits, probs = torch.randn(rows, 3, 5), torch.randn(rows, 2, 5).softmax(-1)
    sampling = Sampling.of([SamplingRow(temperature=1.0, seed=seed) for seed in range(rows)], CPU)
    drafts, at, draft_len = torch.randint(0, 5, (rows, 2)), torch.arange(rows), torch.arange(rows) % 3
    one = accept_rejection(logits, probs, drafts, draft_len, sampling=sampling, positions=at)
    stale = torch.arange(2) >= draft_len.unsqueeze(-1)
    drafts = drafts.masked_fill(stale, 0)
    probs = torch.where(stale.unsqueeze(-1), torch.tensor([1.0, 0, 0, 0, 0]), probs)
    other = accept_rejection(logits, probs, drafts, draft_len, sampling=sampling, positions=at)
    assert one[0].equal(other[0])
    assert one[1].equal(other[1])
    assert (one[0] == draft_len).any() and (one[0] < draft_len).any()
