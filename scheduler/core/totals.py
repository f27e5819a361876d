"""The engine's numbers: sums of what was reported and cut, never derived from configuration.

Owns counting and its presentation; decides nothing, so it is left out of fingerprints.
"""

from collections.abc import Iterable
from typing import Any

from .ledger import Request
from .results import Counts
from .untold import told_len


class Totals:
    """Sums over ended requests, steps and refusals; live requests are added when somebody asks."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.steps = 0
        self.step_rows = 0
        self.step_faults = 0
        self.rows_discarded = 0
        self.tokens_discarded = 0
        self.reports_dropped = 0
        self.internal_errors = 0
        self.tokens_emitted = 0
        self.tokens_drafted = 0
        self.emitted_drafting = 0
        self.prefix_tokens_reused = 0
        self.drafts_short: dict[str, int] = {}  # decode rows whose draft was kept shorter than wanted, by what did it
        self.accepted_hist: list[int] = []
        self.verified_hist: list[int] = []

    def copy(self) -> "Totals":
        twin = object.__new__(Totals)
        for name, value in vars(self).items():
            setattr(twin, name, value.copy() if isinstance(value, list | dict) else value)
        return twin

    def count_end(self, one: Request) -> None:
        self.ended[one.state.name] = self.ended.get(one.state.name, 0) + 1
        self._add(one)

    def count_short(self, kept_by: str) -> None:
        self.drafts_short[kept_by] = self.drafts_short.get(kept_by, 0) + 1

    def counts_of(self, one: Request) -> Counts:
        """What one request's rows sum up to."""
        return Counts(
            num_passes=sum(one.verified_hist),
            num_zero_passes=sum(one.verified_hist[:1]),
            num_drafted=one.num_drafted,
            num_verified=_weighted(one.verified_hist),
            num_accepted=_weighted(one.accepted_hist),
            num_emitted_drafting=one.num_emitted_drafting,
            accepted_at=_at_least(one.accepted_hist),
            verified_at=_at_least(one.verified_hist),
            num_restarts=one.num_restarts,
            prefix_tokens_reused=one.num_reused,
        )

    def values(self, live: Iterable[Request]) -> dict[str, Any]:
        """Every number by its name, live requests included."""
        whole = self.copy()
        for one in live:
            whole._add(one)
        names = [name for name in vars(whole) if not name.endswith("_hist")]
        return {
            **{name: getattr(whole, name) for name in names},
            "passes": sum(whole.verified_hist),
            "zero_passes": sum(whole.verified_hist[:1]),
            "tokens_verified": _weighted(whole.verified_hist),
            "tokens_accepted": _weighted(whole.accepted_hist),
            "accepted_at": list(_at_least(whole.accepted_hist)),
            "verified_at": list(_at_least(whole.verified_hist)),
        }

    def _add(self, one: Request) -> None:
        self.tokens_emitted += told_len(one)
        self.tokens_drafted += one.num_drafted
        self.emitted_drafting += one.num_emitted_drafting
        self.prefix_tokens_reused += one.num_reused
        for mine, its in ((self.accepted_hist, one.accepted_hist), (self.verified_hist, one.verified_hist)):
            mine += [0] * (len(its) - len(mine))
            for index, count in enumerate(its):
                mine[index] += count


def _weighted(hist: list[int]) -> int:
    return sum(index * count for index, count in enumerate(hist))


def _at_least(hist: list[int]) -> tuple[int, ...]:
    """Per position k = 0, 1, ...: how many rows reached beyond it."""
    return tuple(sum(hist[position + 1 :]) for position in range(len(hist) - 1))
