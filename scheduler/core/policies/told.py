"""The policy that wants what it was told last: explorers, drawn tests and replays choose the draft lengths.

Owns one value that is set from outside between two inputs, so a service never uses it.
"""

from collections.abc import Sequence

from ..ledger import Ledger, Request


class Told:
    """Row n wants `wants[n]`, repeated when there are more rows."""

    name, version, max_len = "told", 1, None

    def __init__(self, wants: Sequence[int] = (0,)) -> None:
        self.wants = wants

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int]:
        return [self.wants[index % len(self.wants)] for index in range(len(rows))]
