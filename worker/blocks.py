"""How the drafter's block pass is run: eagerly over exact shapes, or on static buffers that a graph replays.

Owns what `graphs.py` owns for the target, for the block backbone alone. The chain after it stays eager: it picks tokens
with the sampling parameters of the step's rows, which are values of the host. `proposer.py` calls `hidden`.
"""

from typing import Protocol

import torch
from torch import Tensor

from ..models.drafter import DSparkDrafter
from ..statemachine.errors import LocalError
from .attention import BlockAttention, additive
from .buckets import fitting, steps
from .capture import Capture, Replay
from .windows import Store, Windows


class BlockRunner(Protocol):
    def hidden(self, slots: list[int], starts: list[int], inputs: Tensor) -> Tensor:
        """inputs: [2, rows] int64 on the device, anchors and starts. Returns [rows, B, d], until the next call."""


class EagerBlocks:
    """Exact shapes, views of the ring where its rows lie in order."""

    def __init__(self, drafter: DSparkDrafter, windows: Windows, context: Store) -> None:
        self.drafter, self.windows, self.context = drafter, windows, context

    def hidden(self, slots: list[int], starts: list[int], inputs: Tensor) -> Tensor:
        attend = BlockAttention(self.context, self.windows, slots=slots, starts=starts)
        return self.drafter.block(inputs[0], inputs[1], attend)


class StaticBlocks:
    """Any rows on static buffers, one capture for each number of rows; padding rows name the scratch slot."""

    def __init__(self, drafter: DSparkDrafter, windows: Windows, context: Store, *, capture: Capture) -> None:
        self.drafter, self.windows, self.context, self.capture = drafter, windows, context, capture
        self.replays: dict[int, Replay] = {}
        self.num_rows = windows.shape.num_slots
        config, device = drafter.config, drafter.device
        self.inputs = torch.zeros(3 * self.num_rows, dtype=torch.int64, device=device)  # anchors, starts, slots
        shape = (self.num_rows, drafter.block_size, config.hidden_size)
        self.outputs = torch.zeros(shape, dtype=drafter.dtype, device=device)
        self.addresses = self.inputs.data_ptr(), self.outputs.data_ptr()

    def hidden(self, slots: list[int], starts: list[int], inputs: Tensor) -> Tensor:
        rows = fitting(len(slots), steps(self.num_rows))
        if (self.inputs.data_ptr(), self.outputs.data_ptr()) != self.addresses:
            raise LocalError(f"a block of {rows} rows: a static buffer was rebound after its capture")
        self._copy_in(inputs, slots, rows)
        self.replays[rows]()
        return self.outputs[: len(slots)]

    def capture_all(self) -> None:
        """Capture a pass for each number of rows, the largest first. Raises what a capture raises."""
        for rows in reversed(steps(self.num_rows)):
            self._copy_in(self.inputs.new_zeros((2, 0)), [], rows)
            self.replays[rows] = self.capture(lambda rows=rows: self._pass(rows))  # type: ignore[misc]

    def _copy_in(self, inputs: Tensor, slots: list[int], rows: int) -> None:
        real = len(slots)
        own = self.inputs[: 3 * rows].view(3, rows)
        own[:2, :real] = inputs
        own[:2, real:] = 0
        own[2].copy_(torch.tensor(slots + [self.windows.shape.scratch] * (rows - real)))

    def _pass(self, rows: int) -> None:
        """The captured pass: it reads the whole ring, and says by position what each row sees of it."""
        shape, store = self.windows.shape, self.context
        anchors, starts, slots = self.inputs[: 3 * rows].view(3, rows).unbind(0)
        offsets = torch.arange(shape.block_len, device=self.inputs.device)
        positions = (starts.unsqueeze(1) + offsets) % store.length  # [rows, B]
        index = store.index(slots.unsqueeze(1).expand_as(positions).reshape(-1), positions.view(-1))
        newest = (starts + shape.block_len - 1).unsqueeze(1)
        # What a cell of the ring holds is the newest position that it can hold: [rows, ring], below 0 if it is empty.
        held = newest - (newest - torch.arange(store.length, device=self.inputs.device)) % store.length
        oldest = (starts - shape.drafter_window).clamp_min(0).unsqueeze(1)
        mask = additive(held >= oldest, store.rows.dtype).unsqueeze(1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            store.write(layer, index, k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:]))
            keys, values = (side[layer].index_select(0, slots) for side in (store.keys, store.values))
            return store.attend(slots, q, keys, values, mask)

        self.outputs[:rows].copy_(self.drafter.block(anchors, starts, attend))
