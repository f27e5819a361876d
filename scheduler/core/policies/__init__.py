"""Draft length policies: pure functions of ledger facts that say how many drafts each row should verify.

Owns the interface, the text form, and the judgement of what a policy says. A policy uses + - * / and comparisons on
ledger facts only, never a clock, so that a replay decides the same. docs/policies.md shows how to add one.
"""

from collections.abc import Sequence
from typing import Protocol

from ....statemachine.errors import LocalError, Refused, refuse_all
from ..costs import CostTable
from ..ledger import Ledger, Request
from .auto import Auto
from .confidence import BUDGET, EARLY_STOP, Confidence, misfits
from .fixed import Fixed
from .schedule import MaxConcurrency, Schedule, schedule_of, schedule_pairs, schedule_problems
from .want import Want, lowered

__all__ = ["BUILT_IN", "FORMS", "Policy", "Want", "lowered", "parse_policy", "start_warnings", "unfit", "wanted_lens"]
BUILT_IN = ("fixed", "schedule", "max_concurrency", "confidence", "auto")
FORMS = "fixed:N, schedule:ROWS=N/ROWS=N, max_concurrency:ROWS, confidence, confidence:budget or auto"


class Policy(Protocol):
    """What plan asks. `name` and `version` go into traces; `max_len` is the longest draft it ever wants, None: any.

    Three more attributes may be there: `learns` (True: requests and ledger keep `acceptance`, running facts of what
    stood), `needs_costs` (True: a worker without a cost table is refused) and `needs_confidence` (True: requests keep
    `held_confidence` and `past_confidence`, logits; a worker whose drafter has no confidence head is refused).
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def max_len(self) -> int | None: ...

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int | Want]:
        """Return the wanted draft length for each row: decode rows first, then chunks (SEED_READY).

        0 switches drafting off for the row: what it holds is still verified, nothing new is proposed. A policy that
        looks at the draft itself says both with a `Want`.
        """


def parse_policy(text: str) -> Policy:
    """Make a policy of its text form, e.g. `fixed:3`. Raises `Refused` (BAD_CONFIG) naming what was expected."""
    name, _, argument = text.partition(":")
    if name == "schedule":
        problems = schedule_problems(schedule_pairs(argument))
        refuse_all(f"policy = {text!r}: expected schedule:1=7/4=3/8=1", problems)
        return schedule_of(schedule_pairs(argument))
    if name not in BUILT_IN:
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected {FORMS}")
    if text == "auto":
        return Auto()
    if text in ("confidence", f"confidence:{BUDGET}"):
        return Confidence(form=BUDGET if argument else EARLY_STOP)
    if name == "auto":
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected auto, it takes nothing")
    if name == "confidence":
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected confidence or confidence:{BUDGET}")
    if not (argument.isascii() and argument.isdecimal()):
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected {name}:N with N a whole number, 0 or more")
    if name == "fixed":
        return Fixed(int(argument))
    if int(argument) < 1:
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected max_concurrency:N with N a number of rows, 1 or more")
    return MaxConcurrency(int(argument))


def wanted_lens(policy: Policy, rows: Sequence[Request], ledger: Ledger) -> list[int | Want]:
    """Ask the policy. Raises `LocalError` that names it when it fails or answers what is no length for each row."""
    named = f"policy {policy.name} (version {policy.version})"
    try:
        decided = list(policy.decide(rows, ledger))
    except Exception as error:
        raise LocalError(f"{named}: decide raised {type(error).__name__}: {error}") from error
    if len(decided) != len(rows):
        raise LocalError(f"{named}: decide returned {len(decided)} lengths, expected {len(rows)}, one for each row")
    for index, length in enumerate(decided):
        verify = length.verify if type(length) is Want else length
        if type(verify) is not int or verify < 0:
            raise LocalError(f"{named}: decide returned {length!r} for row {index}: expected an int, 0 or more")
    return decided


def unfit(
    policy: Policy, block_len: int, *, max_draft_len: int | None, has_confidence: bool, costs: CostTable | None
) -> str:
    """Say why a drafter of this block cannot serve the policy, or nothing. Without a drafter (0) nobody drafts."""
    if block_len == 0:
        return ""
    reasons = []
    if max_draft_len is not None and max_draft_len > block_len:
        reasons.append(f"max_draft_len = {max_draft_len}: the drafter's block has {block_len}")
    if policy.max_len is not None and policy.max_len > block_len:
        reasons.append(f"the policy {policy.name} wants {policy.max_len} drafts, the drafter's block has {block_len}")
    elif isinstance(policy, Schedule) and max_draft_len is None and policy.max_len != block_len:
        reasons.append(
            f"the schedule has {policy.max_len} drafts at its smallest key {policy.bounds[0]}: "
            f"expected max_draft_len, which is the drafter's block ({block_len}) when it is not set"
        )
    if getattr(policy, "needs_confidence", False) and not has_confidence:
        reasons.append(
            f"the policy {policy.name} needs confidences: expected a drafter with enable_confidence_head = true in its "
            "config.json, this one has no confidence head"
        )
    if isinstance(policy, Confidence):
        reasons += misfits(policy, block_len, costs)
    if getattr(policy, "needs_costs", False) and costs is None:
        reasons.append(
            f"the policy {policy.name} needs a cost table: expected measure_costs = true, or cost_table = FILE"
        )
    return "; ".join(reasons)


def start_warnings(policy: Policy, num_slots: int) -> list[str]:
    """What is legal and surely not meant: keys that no number of rows can reach, a choice among nothing."""
    if isinstance(policy, Confidence) and policy.max_len == 1:
        return [f"{policy.name}: max_draft_len = 1 leaves nothing to choose, it behaves as fixed:1"]
    if not isinstance(policy, Schedule | MaxConcurrency):
        return []
    return [
        f"{policy.name}: key {bound} is beyond num_slots = {num_slots}, more rows never decode at once"
        for bound in policy.bounds
        if bound > num_slots
    ]
