"""The policy `confidence`: what it chooses, and that no draft's fate hangs on its own token."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from dsparkd.scheduler.core.policies.confidence import (
    best_budget,
    best_ranked,
    chance,
    early_stop,
    ranked,
    survival,
)
from hypothesis import given, settings
from hypothesis import strategies as st

CHANCES = st.lists(
    st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.5, 0.9, 1.0, 1.0]), min_size=0, max_size=4), min_size=1, max_size=4
)
SPEEDS = st.lists(st.integers(1, 20), min_size=21, max_size=21)


def products(chances: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[math.prod(line[: index + 1]) for index in range(len(line))] for line in chances]


@given(logit=st.floats(-60, 60))
def test_a_chance_is_the_sigmoid_of_its_logit(logit: float) -> None:
    assert chance(logit) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-14)


def test_a_survival_is_the_product_of_calibrated_chances() -> None:
    assert survival([1.0, 2.0], [2.0, 0.5]) == [chance(0.5), chance(0.5) * chance(4.0)]
    assert survival([1.0], ()) == [chance(1.0)]
    assert survival([1e4, -1e4, 5.0]) == [1.0, 0.0, 0.0]


def test_the_published_counterexample_early_stopping_tells_nothing_and_a_global_search_tells_the_token() -> None:
    """c1 = 0.8, steps a time 1, 0.5, 0.45: if x1 = A means c2 = 0.9, a search returns 2; B and c2 = 0: none."""
    speed = {1: 1.0, 2: 0.5, 3: 0.45}.__getitem__
    after_a, after_b = [[0.8, 0.8 * 0.9]], [[0.8, 0.0]]
    assert [early_stop(after_a, speed), early_stop(after_b, speed)] == [[0], [0]]
    searched = [best_ranked(one, best_budget(one, speed)) for one in (after_a, after_b)]  # the wrong rule
    assert searched == [[2], [0]]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(chances=CHANCES, speeds=SPEEDS, data=st.data())
def test_whether_a_draft_is_verified_depends_on_nothing_that_its_own_token_decides(
    chances: list[list[float]], speeds: list[int], data: Any
) -> None:
    """What draft n's token decides are the chances of its row from n + 1 on. Ties included, chances of 0 and 1 too."""
    row = data.draw(st.integers(0, len(chances) - 1), label="row")
    position = data.draw(st.integers(0, len(chances[row])), label="position")
    room = len(chances[row]) - position
    later = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=room, max_size=room), label="other chances")
    other = [*chances]
    other[row] = [*chances[row][:position], *later]
    budget = data.draw(st.integers(0, 12), label="budget")
    for rule in (
        lambda one: early_stop(one, lambda tokens: speeds[tokens]),
        lambda one: best_ranked(one, budget),
    ):
        lengths = [rule(products(one))[row] for one in (chances, other)]
        assert (lengths[0] >= position) == (lengths[1] >= position)


def test_a_search_over_current_chances_would_depend_on_them() -> None:
    """The property above is no truism: the wrong rule breaks it in the counterexample."""
    speed = {1: 1.0, 2: 0.5, 3: 0.45}.__getitem__
    found = [best_ranked(one, best_budget(one, speed))[0] >= 1 for one in ([[0.8, 0.72]], [[0.8, 0.0]])]
    assert found == [True, False]


def test_ties_go_by_position_and_then_by_request() -> None:
    sure = products([[1.0, 1.0, 1.0], [1.0, 1.0], [0.5, 1.0]])
    assert [(row, length) for _, row, length in ranked(sure)] == [
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
        (0, 3),
        (2, 1),
        (2, 2),
    ]
    assert best_ranked(sure, 3) == [2, 1, 0]
    worth_three = [0, 0, 0, 10, 10, 10, 10, *[1] * 10]
    assert early_stop(sure, lambda tokens: worth_three[tokens]) == [2, 1, 0]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(chances=CHANCES, step=st.integers(0, 40), token=st.integers(0, 40))
def test_with_costs_that_grow_evenly_early_stopping_finds_the_best_of_all_lengths(
    chances: list[list[float]], step: int, token: int
) -> None:
    """tau / (step + tokens * token) has one maximum along the path, so nothing is missed."""
    lines = products(chances)

    def worth(lengths: Sequence[int]) -> float:
        tokens = len(lines) + sum(lengths)
        expected = len(lines) + sum(sum(line[:length]) for line, length in zip(lines, lengths, strict=True))
        return expected / (1 + step + token * tokens)

    best = max(worth(lengths) for lengths in product(*[range(len(line) + 1) for line in lines]))
    found = early_stop(lines, lambda tokens: 1 / (1 + step + token * tokens))
    assert worth(found) == pytest.approx(best)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(chances=CHANCES, speeds=SPEEDS)
def test_a_budget_is_the_best_of_the_whole_path_dips_included(chances: list[list[float]], speeds: list[int]) -> None:
    lines = products(chances)
    values = [one for one, _, _ in ranked(lines)]
    worths = [(len(lines) + sum(values[:count])) * speeds[len(lines) + count] for count in range(len(values) + 1)]
    assert worths[best_budget(lines, lambda tokens: speeds[tokens])] == pytest.approx(max(worths))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(chances=CHANCES, budget=st.integers(0, 18))
def test_a_budget_is_spent_by_rank_alone(chances: list[list[float]], budget: int) -> None:
    lines = products(chances)
    order = sorted({value for line in lines for value in line if value > 0})
    by_rank = [[order.index(value) + 1.0 if value else 0.0 for value in line] for line in lines]
    lengths = best_ranked(lines, budget)
    assert lengths == best_ranked(by_rank, budget)
    assert sum(lengths) == min(budget, sum(value > 0 for line in lines for value in line))
