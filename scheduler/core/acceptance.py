"""How often drafts stood: a running estimate per position, as an immutable fact of a request or of the whole engine.

Owns the update and the estimate, + - * / only. `effects.deliver` replaces the facts, for policies that learn
(`learns = True`); the policy `auto` reads them.
"""

from collections.abc import Sequence

import attrs

KEEP = 15 / 16  # of the evidence at a position when it is tested again: the last 16 tests count most
PRIOR_WEIGHT = 4.0  # tests that the prior is worth
FIRST_GUESS = 0.7  # of an engine that has seen nothing


@attrs.frozen(cache_hash=True)
class Acceptance:
    """`tested[j]`: how often draft j was reached (all before it stood), `stood[j]`: how often it stood; both fade."""

    tested: tuple[float, ...] = ()
    stood: tuple[float, ...] = ()
    rest_len: int = 0  # passes since the last one that verified a draft
    last_accepted_len: int = 0  # in that one

    def after(self, draft_len: int, accepted_len: int) -> "Acceptance":
        """The facts after a pass: a draft is tested if all before it stood."""
        if draft_len == 0:
            return attrs.evolve(self, rest_len=self.rest_len + 1)
        reached = min(accepted_len + 1, draft_len)
        room = max(reached, len(self.tested))
        tested = [*self.tested, *[0.0] * (room - len(self.tested))]
        stood = [*self.stood, *[0.0] * (room - len(self.stood))]
        for index in range(reached):
            tested[index] = tested[index] * KEEP + 1
            stood[index] = stood[index] * KEEP + (1 if index < accepted_len else 0)
        return Acceptance(tuple(tested), tuple(stood), 0, accepted_len)

    def chances(self, length: int, prior: Sequence[float]) -> list[float]:
        """For each of the first `length` drafts the chance that it stands when all before it do."""
        found = []
        for index in range(length):
            tested = self.tested[index] if index < len(self.tested) else 0.0
            stood = self.stood[index] if index < len(self.stood) else 0.0
            found.append((stood + PRIOR_WEIGHT * prior[index]) / (tested + PRIOR_WEIGHT))
        return found


NOTHING = Acceptance()
