"""The slots' memory: target keys and values, the drafter's context ring, and each window's counters.

Owns every tensor that outlives a step, and who may read what: a row is readable iff its position is below the window's
length. Rows beyond it are spare: a step writes there first and becomes readable by the commit alone. The last slot is
the scratch slot; padding and warm-up name it, nobody's window is there. `phases.py` reads and writes.
"""

from typing import Any

import attrs
import torch
from torch import Tensor

from ..models.config import DrafterConfig, TargetConfig
from ..statemachine.errors import refuse_all


class Window:
    """Host-side counters of one slot. Invariant: length = context_len + pending_len once it has a drafter."""

    __slots__ = (
        "anchor",
        "confidence",
        "context_len",
        "epoch",
        "held",
        "length",
        "params",
        "pending",
        "pending_len",
    )

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = epoch
        self.length = 0  # positions in the target's window
        self.context_len = 0  # positions in the drafter's context
        self.pending: list[Tensor] = []  # tapped features of committed positions that are not projected yet
        self.pending_len = 0
        self.anchor: int | None = None
        self.held: list[int] = []
        self.confidence: list[float] | None = None  # of the held draft
        self.params: Any = None


@attrs.frozen(kw_only=True)
class Shape:
    """Static sizes, in positions. `block_len` is B, 0 without a drafter."""

    num_slots: int
    max_model_len: int
    block_len: int
    drafter_window: int

    @property
    def capacity(self) -> int:
        """Positions of a target window, spare ones included."""
        return self.max_model_len + self.block_len + 1

    @property
    def ring_len(self) -> int:
        """B + 1 spare rows: what a step writes before its commit overwrites nothing readable."""
        return self.drafter_window + self.block_len + 1

    @property
    def scratch(self) -> int:
        return self.num_slots


class Windows:
    """All slots' windows, allocated once. Raises `Refused` for sizes that cannot work."""

    def __init__(
        self,
        shape: Shape,
        target: TargetConfig,
        drafter: DrafterConfig | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
        keeps_probs: bool = False,
    ) -> None:
        problems = []
        if drafter is not None and shape.drafter_window < shape.block_len + 1:
            least = shape.block_len + 1
            problems.append(f"drafter_window = {shape.drafter_window}: expected {least} (block + 1) or more")
        refuse_all("windows", problems)
        self.shape = shape
        self.device = device
        self.table = [Window() for _ in range(shape.num_slots + 1)]
        slots = shape.num_slots + 1

        def stores(config: TargetConfig | DrafterConfig, length: int) -> list[Tensor]:
            size = (slots, config.num_kv_heads, length, config.head_dim)
            return [torch.zeros(size, dtype=dtype, device=device) for _ in range(config.num_layers)]

        self.keys, self.values = stores(target, shape.capacity), stores(target, shape.capacity)
        self.context_keys: list[Tensor] = [] if drafter is None else stores(drafter, shape.ring_len)
        self.context_values: list[Tensor] = [] if drafter is None else stores(drafter, shape.ring_len)
        self.probs = (  # the distributions that the held drafts were drawn from, for rejection
            torch.zeros((slots, shape.block_len, target.vocab_size), device=device)
            if keeps_probs and drafter is not None
            else None
        )

    @property
    def bytes_per_slot(self) -> int:
        tensors = [*self.keys, *self.values, *self.context_keys, *self.context_values]
        if self.probs is not None:
            tensors.append(self.probs)
        return sum(one[0].numel() * one.element_size() for one in tensors)

    def scrub(self, slot: int) -> None:
        """Make everything in the slot unreadable; the next Open starts from nothing."""
        self.table[slot] = Window()


class Flat:
    """Flat row numbers of (slot, head, position), to write a step's keys and values with one copy each."""

    def __init__(self, store: Tensor) -> None:
        _, groups, length, _ = store.shape
        self.groups, self.length = groups, length
        self.heads = torch.arange(groups, device=store.device) * length  # [G]

    def index(self, slots: Tensor, positions: Tensor) -> Tensor:
        """slots, positions: [tokens] int64 -> [tokens * G] rows of `store.view(-1, D)`."""
        base = torch.add(positions, slots, alpha=self.groups * self.length)
        return (base.unsqueeze(1) + self.heads).view(-1)


def write(store: Tensor, index: Tensor, rows: Tensor) -> None:
    """store: [slots, G, length, D]; rows: [tokens, G, D] to the flat rows `index` [tokens * G]."""
    store.view(-1, store.shape[-1]).index_copy_(0, index, rows.reshape(-1, store.shape[-1]))
