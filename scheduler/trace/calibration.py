"""Sequential temperature scaling of the confidence head: recorded rounds in, one temperature for each position out.

Owns the arithmetic (algorithm: positions in order, each temperature the one of a grid with the
least expected calibration error of the product so far). `cli/calibrate.py` shows and writes what comes out.
"""

from collections.abc import Sequence

import attrs

from ...statemachine.errors import Refused
from ..core.policies.confidence import chance, survival
from .rounds import Round

NUM_BINS = 20
GRID = tuple(2 ** (step / 8) for step in sorted(range(-24, 33), key=abs))  # 1/8 to 16, nearest to 1 first


@attrs.frozen(kw_only=True)
class Position:
    """What was found for one position: rounds that verified it, and how often all drafts up to it stood.

    Errors are expected calibration errors with 20 bins, as shares of 1. `ece_held_out` judges each half of the rounds
    by temperatures that were fitted to the other half; None of too few rounds.
    """

    num_rounds: int
    share_stood: float
    temperature: float
    ece_before: float
    ece_after: float
    ece_held_out: float | None


@attrs.frozen
class Bin:
    """Predictions of one bin and what came of them, as means."""

    count: int
    predicted: float
    stood: float


def calibrated(recorded: Sequence[Round]) -> list[Position]:
    """Fit and judge. Raises `Refused` (BAD_CONFIG) when there is nothing to fit."""
    if not recorded:
        raise Refused("BAD_CONFIG", "no round with confidences: expected drafts of a drafter with a confidence head")
    temperatures = fit(recorded)
    half = len(recorded) // 2
    crossed = [(recorded[:half], fit(recorded[half:])), (recorded[half:], fit(recorded[:half]))]
    found = []
    for index, temperature in enumerate(temperatures):
        before, labels = predictions(recorded, index, ())
        after, _ = predictions(recorded, index, temperatures)
        held_out: list[float] = []
        held_labels: list[bool] = []
        for part, other in crossed:
            if len(other) > index:
                guesses, truths = predictions(part, index, other)
                held_out, held_labels = held_out + guesses, held_labels + truths
        found.append(
            Position(
                num_rounds=len(labels),
                share_stood=sum(labels) / len(labels),
                temperature=temperature,
                ece_before=ece(before, labels),
                ece_after=ece(after, labels),
                ece_held_out=ece(held_out, held_labels) if held_out else None,
            )
        )
    return found


def fit(recorded: Sequence[Round]) -> list[float]:
    """One temperature for each position that any round verified; the one nearest to 1 among equals."""
    temperatures: list[float] = []
    reached = [(one, 1.0) for one in recorded]  # each with the chance that all drafts before the position stand
    while reached := [pair for pair in reached if pair[0].draft_len > len(temperatures)]:
        index = len(temperatures)
        labels = [one.accepted_len > index for one, _ in reached]
        best = min(GRID, key=lambda temperature: ece(_scaled(reached, index, temperature), labels))
        temperatures.append(best)
        reached = [(one, now) for (one, _), now in zip(reached, _scaled(reached, index, best), strict=True)]
    return temperatures


def _scaled(reached: Sequence[tuple[Round, float]], index: int, temperature: float) -> list[float]:
    return [before * chance(one.confidence_logits[index] / temperature) for one, before in reached]


def predictions(recorded: Sequence[Round], index: int, temperatures: Sequence[float]) -> tuple[list[float], list[bool]]:
    """Of rounds that verified position `index`: the predicted chance that all up to it stand, and whether they did."""
    reached = [one for one in recorded if one.draft_len > index]
    guesses = [survival(one.confidence_logits[: index + 1], temperatures)[-1] for one in reached]
    return guesses, [one.accepted_len > index for one in reached]


def ece(guesses: Sequence[float], labels: Sequence[bool]) -> float:
    """Expected calibration error over 20 equal-width bins: the mean distance of prediction and outcome, by count."""
    if not guesses:
        return 0.0
    return sum(one.count * abs(one.predicted - one.stood) for one in bins(guesses, labels)) / len(guesses)


def bins(guesses: Sequence[float], labels: Sequence[bool]) -> list[Bin]:
    """The bins that hold anything, in order."""
    counts, sums, stood = [0] * NUM_BINS, [0.0] * NUM_BINS, [0] * NUM_BINS
    for guess, label in zip(guesses, labels, strict=True):
        index = min(int(guess * NUM_BINS), NUM_BINS - 1)
        counts[index] += 1
        sums[index] += guess
        stood[index] += label
    return [
        Bin(count, total / count, good / count) for count, total, good in zip(counts, sums, stood, strict=True) if count
    ]
