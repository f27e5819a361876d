"""A histogram that costs the loop little: counts by bucket, and the sum.

Owns the counting; no lock, since only the loop adds, and others read copies.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """`bounds` are the buckets' upper ends, in seconds; one bucket more takes what is above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> "Distribution":
        twin = Distribution(self.bounds)
        twin.counts, twin.total = self.counts.copy(), self.total
        return twin
