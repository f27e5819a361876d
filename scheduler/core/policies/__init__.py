"""Draft length policies: pure functions of ledger facts that say how many drafts each row should verify.

Owns the interface and the text form. A policy uses + - * / and comparisons on ledger facts only, never a clock, so that
a replay decides the same.
"""

from collections.abc import Sequence
from typing import Protocol

from ....statemachine.errors import Refused
from ..ledger import Ledger, Request
from .fixed import Fixed


class Policy(Protocol):
    """What plan asks. `name` and `version` go into traces; `max_len` is the longest draft it ever wants."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def max_len(self) -> int | None: ...

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int]:
        """Return the wanted draft length for each row: decode rows first, then last chunks.

        0 switches drafting off for the row: what it holds is still verified, nothing new is proposed.
        """


def parse_policy(text: str) -> Policy:
    """Make a policy of its text form, e.g. `fixed:3`. Raises `Refused` (BAD_CONFIG) naming what was expected."""
    name, _, argument = text.partition(":")
    if name != "fixed":
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected fixed:N")
    if not argument.isdecimal():
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected fixed:N with N a whole number, 0 or more")
    return Fixed(int(argument))
