"""What windows and the widest step need of a device's memory, and the refusal of what does not fit.

Owns the sums; allocates nothing. Windows follow from shapes to the byte. A step's temporary memory is an estimate of
its largest tensors (on CUDA it is measured after warm-up, and judged again). `backend.py` asks before it allocates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import torch

from ..models.config import DrafterConfig, TargetConfig
from ..statemachine.errors import Refused
from .sizes import pending_rows
from .windows import Shape

MIB = 1 << 20
FLOAT32, FLOAT64 = 4, 8


@attrs.frozen(kw_only=True)
class Needs:
    """Of a pair in `dtype` with windows of `shape`, in steps of up to `max_step_tokens` tokens."""

    shape: Shape
    target: TargetConfig
    drafter: DrafterConfig | None
    dtype: torch.dtype
    max_step_tokens: int
    keeps_probs: bool = False  # rejection: the distributions of held drafts

    @property
    def slot_bytes(self) -> int:
        """One slot's window, exactly: target, context ring, features that wait, distributions."""
        window = _rows_bytes(self.target, self.shape.capacity, self.dtype)
        if self.drafter is None:
            return window
        ring = _rows_bytes(self.drafter, self.shape.ring_len, self.dtype)
        probs = self.shape.block_len * self.target.vocab_size * FLOAT32 if self.keeps_probs else 0
        waiting = pending_rows(self.drafter, self.dtype.itemsize, drafter_window=self.shape.drafter_window)
        return window + ring + waiting * self.drafter.feature_len * self.dtype.itemsize + probs

    def step_bytes(self, num_slots: int) -> int:
        """About what the widest step holds at once beside the windows: a chunk, all slots' passes or their blocks."""
        block, reach = self.shape.block_len, self.shape.capacity
        chunk = min(self.max_step_tokens, self.shape.max_model_len)
        verified = min(num_slots * (block + 1), max(self.max_step_tokens, num_slots))
        passes = [
            _pass_bytes(self.target, chunk, reach, self.dtype) + self._draw_bytes(1),
            _pass_bytes(self.target, verified, reach, self.dtype)
            + num_slots * _rows_bytes(self.target, reach, self.dtype) // self.target.num_layers  # gathered, by layer
            + self._draw_bytes(verified),
        ]
        if self.drafter is not None:
            drafted = num_slots * block
            passes.append(
                _pass_bytes(self.drafter, drafted, self.shape.ring_len, self.dtype)
                + num_slots * _rows_bytes(self.drafter, self.shape.ring_len, self.dtype) // self.drafter.num_layers
                + self._draw_bytes(drafted + num_slots)
            )
        return max(passes)

    def _draw_bytes(self, tokens: int) -> int:
        """Logits in the model's type and twice in float32, and their noise, which passes through 64 bits."""
        return tokens * self.target.vocab_size * (self.dtype.itemsize + 2 * FLOAT32 + 3 * FLOAT64)

    def whole(self, num_slots: int, step_bytes: int | None = None) -> int:
        """Windows of all slots and of the scratch slot, and a step. step_bytes: None takes the estimate."""
        step = self.step_bytes(num_slots) if step_bytes is None else step_bytes
        return (num_slots + 1) * self.slot_bytes + step

    def most_slots(self, limit: int) -> int:
        """The largest number of slots that fits, 0 when none does."""
        low, high = 0, self.shape.num_slots
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.whole(middle) <= limit else (low, middle - 1)
        return low

    def judge(self, limit: int | None, *, measured: int | None = None) -> None:
        """Raise `Refused` when it does not fit into `limit` bytes. measured: what a step took, else it is estimated."""
        if limit is not None and self.whole(self.shape.num_slots, measured) > limit:
            raise self.refusal(limit, measured=measured)

    def refusal(self, limit: int | None, *, measured: int | None = None, why: str = "") -> Refused:
        """The refusal, with the bytes of a slot and the number of slots that would fit."""
        shape = self.shape
        step = f"about {self.step_bytes(shape.num_slots)}" if measured is None else f"{measured} (measured)"
        least = shape.num_slots - 1 if why or measured is not None else shape.num_slots
        fits = least if limit is None else min(least, self.most_slots(limit))
        proposal = f"num_slots = {fits} or less" if fits else "a shorter max_model_len or smaller max_step_tokens"
        bound = "" if limit is None else f", of {limit} that there are"
        return Refused(
            "OUT_OF_MEMORY",
            f"num_slots = {shape.num_slots}, max_model_len = {shape.max_model_len}: {self.slot_bytes} bytes a slot "
            f"(and as much for scratch) and {step} for a step of {self.max_step_tokens} tokens are "
            f"{self.whole(shape.num_slots, measured)} bytes{bound}{why}; expected {proposal}",
        )


def limit_of(memory_limit_mb: int | None, device: torch.device) -> int | None:
    """Bytes for windows and steps: what the setting says, else what is free now. None where nobody can tell."""
    if memory_limit_mb is not None:
        return memory_limit_mb * MIB
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


@attrs.define
class Peak:
    """What a block allocated at most, beyond what was there before; None where the device does not count."""

    num_bytes: int | None = None


@contextmanager
def peak_of(device: torch.device) -> Iterator[Peak]:
    """Measure the block on CUDA."""
    peak = Peak()
    if device.type != "cuda":
        yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield peak
    peak.num_bytes = torch.cuda.max_memory_allocated(device) - before


def _rows_bytes(config: TargetConfig | DrafterConfig, length: int, dtype: torch.dtype) -> int:
    """Keys and values of `length` positions in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * length * config.head_dim * dtype.itemsize


def _pass_bytes(config: TargetConfig | DrafterConfig, tokens: int, reach: int, dtype: torch.dtype) -> int:
    """The largest tensors of one layer over `tokens` tokens that see `reach` positions."""
    attention = 2 * config.num_heads * reach + 2 * reach  # scores before and after softmax; the mask
    projections = 3 * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    mlp = 3 * config.intermediate_size + 4 * config.hidden_size
    return tokens * (attention + projections + mlp) * dtype.itemsize
