"""The policy `fixed:N`: every row wants N drafts, whatever happens. 0 is plain decoding with a drafter at rest."""

from collections.abc import Sequence

import attrs

from ..ledger import Ledger, Request


@attrs.frozen
class Fixed:
    max_len: int
    name: str = "fixed"
    version: int = 1

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int]:
        return [self.max_len] * len(rows)
