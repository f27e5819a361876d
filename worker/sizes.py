"""How many positions' features may wait in a slot: known without torch, as `inspect` tells it and windows allocate it.

Owns one number; `pending.py` keeps the features.
"""

from ..models.config import DrafterConfig

PENDING_BYTES = 1 << 20  # of a slot


def pending_rows(drafter: DrafterConfig, itemsize: int, *, drafter_window: int) -> int:
    """Positions whose features, numbers of `itemsize` bytes, may wait in a slot: a bounded memory, and no more than the
    drafter would read."""
    return min(drafter_window, max(1, PENDING_BYTES // (drafter.feature_len * itemsize)))
