"""What steps really take, over what the cost table says: running ratios, as an immutable fact of the engine.

Owns the three kinds of steps, the update and the estimate, + - * / only. The table is measured on neighbouring slots
and rows of one width; steps of a live engine have slots here and there and rows of several widths, and a machine is not
always as quick as it was at start. `settle` replaces the facts; the policy `auto` reads them.
"""

from collections.abc import Sequence
from enum import IntEnum

import attrs

from .costs import CostTable

KEEP = 31 / 32  # of the evidence when another step of the kind comes
SURPRISE = 4.0  # times what its kind takes is the most that one step counts for: a stall must not decide for hours
PRIOR = 1.0  # steps of a kind, as all kinds together went, that are assumed before the first one


class Kind(IntEnum):
    REST = 0  # nobody verifies or drafts
    WHOLE = 1  # everybody verifies the same number of drafts
    PART = 2  # rows of several widths


def kind_of(lens: Sequence[int]) -> Kind:
    """lens: how many drafts each row verifies."""
    first = lens[0]
    if any(length != first for length in lens):
        return Kind.PART
    return Kind.WHOLE if first > 0 else Kind.REST


@attrs.frozen(cache_hash=True)
class StepCosts:
    """By kind the faded number of steps, the sum of their times over the table's, and how many steps ago the last one
    was."""

    counts: tuple[float, ...] = (0.0, 0.0, 0.0)
    ratios: tuple[float, ...] = (0.0, 0.0, 0.0)
    since: tuple[int, ...] = (0, 0, 0)

    def after(self, table: CostTable, lens: Sequence[int], num_drafting: int, cost_ns: int) -> "StepCosts":
        """The facts after a step of decode rows that verified `lens` drafts; `num_drafting` rows were drafted for."""
        kind = kind_of(lens)
        since = [steps + 1 for steps in self.since]
        if kind is Kind.REST and num_drafting > 0:
            return attrs.evolve(self, since=tuple(since))  # rare, and of no kind
        expected = table.target(len(lens), len(lens) + sum(lens)) + table.draft(num_drafting)
        counts, ratios = list(self.counts), list(self.ratios)
        counts[kind] = counts[kind] * KEEP + 1
        ratios[kind] = ratios[kind] * KEEP + min(cost_ns / expected, SURPRISE * self.factors()[kind])
        since[kind] = 0
        return StepCosts(tuple(counts), tuple(ratios), tuple(since))

    def factors(self) -> tuple[float, ...]:
        """By kind: what the table's time is to be multiplied with."""
        whole = (sum(self.ratios) + 1) / (sum(self.counts) + 1)
        return tuple(
            (ratio + PRIOR * whole) / (count + PRIOR) for ratio, count in zip(self.ratios, self.counts, strict=True)
        )


UNKNOWN = StepCosts()
