"""Tapped features of committed positions that the drafter's context does not have yet: they wait until somebody drafts.

Owns their rows and how many may wait; never decides when they are projected (`phases.py` does). A slot's row i is that
of position context_len + i of its window, readable iff i is below the window's `pending_len`: a step writes beyond it,
the commit moves it. A request that ends without drafting has cost its drafter nothing. `windows.py` keeps one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Pending:
    """rows: [slots, length, m*d]. `limit`: how many may wait, `length` unless somebody lowers it."""

    def __init__(self, slots: int, length: int, width: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros((slots, length, width), dtype=dtype, device=device)
        self.length = self.limit = length
        self._flat = self.rows.view(-1, width)

    def keep(self, features: Tensor, kept: Sequence[int], cells: Sequence[int]) -> None:
        """Write rows `kept` of `features`, [tokens, m*d], to flat `cells` (slot * length + row)."""
        packed = torch.tensor([kept, cells], device=features.device)
        self._flat.index_copy_(0, packed[1], features.index_select(0, packed[0]))

    def of(self, slot: int, pending_len: int) -> Tensor:
        """What waits in a slot: [pending_len, m*d], in the order of positions."""
        return self.rows[slot, :pending_len]
