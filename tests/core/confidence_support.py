"""A bench whose drafter has a confidence head, and what its steps cost."""

from typing import Any

from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench

COSTS = CostTable(
    fingerprint=(("drafter", "d1"), ("target", "t1")),
    context_len=64,
    rows=(1, 4),
    widths=(1, 8),
    target_ns=((100, 170), (200, 900)),
    draft_ns=(30, 60),
)
FORMS = ("confidence", "confidence:budget")


def head(num_true: int) -> list[float]:
    """Sure of drafts that stand, doubtful of the others: never right about all of them."""
    return [2.0 - 0.3 * index if index < num_true + 1 else -1.5 for index in range(7)]


def bench(policy: Any = "confidence", **options: Any) -> Bench:
    defaults = {"limits": Limits(num_slots=4, max_model_len=128), "vocab_size": 50, "mean": 3.3, "confidence": head}
    return Bench(policy, costs=COSTS, **{**defaults, **options})


def decodes(one: Bench) -> list[events.Decode]:
    return [row for command in one.commands for row in command.rows if isinstance(row, events.Decode)]
