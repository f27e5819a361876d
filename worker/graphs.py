"""How the target's pass is run: eagerly, or on static buffers that a CUDA graph replays (and its CPU twin).

Owns static buffers, copy-in and copy-out. A captured pass sees nothing of a step but its buffers; padding names the
scratch slot. Steps with a chunk run eagerly, which is the same arithmetic, and are counted. `phases.py` calls `forward`
once a step; `capture.py` says what a capture is, `buckets.py` for which shapes there is one.
"""

from typing import Protocol

import attrs
import torch
from torch import Tensor

from ..models.target import Qwen3Target
from ..statemachine.errors import LocalError
from .attention import Masks, TargetAttention
from .batch import Batch
from .buckets import Bucket, bucket_of, buckets
from .capture import Capture, Replay
from .windows import Windows


class TargetRunner(Protocol):
    num_uncaptured: int  # passes that fit no captured graph where there are some

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits [sampled tokens, V] float32 and features [tokens, m*d] of the batch, until the next call."""


class EagerRunner:
    """Exact shapes, no padding: what a CPU wants."""

    def __init__(self, target: Qwen3Target, windows: Windows) -> None:
        self.target, self.windows, self.num_uncaptured = target, windows, 0
        shape = windows.shape
        self.masks = Masks(shape.capacity, shape.block_len + 1, device=target.device, dtype=target.dtype)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        attend = TargetAttention(batch, self.windows, self.masks)
        hidden, features = self.target.forward(batch.token_ids, batch.positions, attend)
        sampled = _sampled_tokens(batch)
        if sampled is None:
            return self.target.logits(hidden), features
        return self.target.logits(hidden[sampled]), features


def _sampled_tokens(batch: Batch) -> list[int] | None:
    """Which flat tokens are sampled: every token of a pass, the last of a last chunk. None: all of them."""
    if all(job.draft_len is not None or (job.samples and job.width == 1) for job in batch.jobs):
        return None
    tokens: list[int] = []
    for job, first in zip(batch.jobs, batch.firsts, strict=True):
        end = first + job.width
        if job.samples:
            tokens += range(first if job.draft_len is not None else end - 1, end)
    return tokens


@attrs.define
class Buffers:
    """All that a captured pass may read or write besides weights and windows; each bucket uses the beginning of it."""

    inputs: Tensor  # int64, the parts of `Bucket.sizes` one after another: a step comes in by one transfer
    logits: Tensor  # [tokens, V] float32 out
    features: Tensor  # [tokens, m*d] out

    @property
    def addresses(self) -> tuple[int, ...]:
        return self.inputs.data_ptr(), self.logits.data_ptr(), self.features.data_ptr()


class StaticRunner:
    """Steps of nothing but passes on static buffers, one capture for each bucket; steps with a chunk run eagerly."""

    def __init__(self, target: Qwen3Target, windows: Windows, *, capture: Capture, eager: EagerRunner) -> None:
        self.target, self.windows, self.capture, self.eager = target, windows, capture, eager
        self.replays: dict[Bucket, Replay] = {}
        self.num_replays = self.num_uncaptured = 0
        self.buffers = self._allocate()
        self.addresses = self.buffers.addresses

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if any(job.draft_len is None for job in batch.jobs):
            self.num_uncaptured += 1
            return self.eager.forward(batch)
        shape = self.windows.shape
        widths = [job.width for job in batch.jobs]
        bucket = bucket_of(widths, num_slots=shape.num_slots, verify_len=shape.block_len + 1)
        if self.buffers.addresses != self.addresses:
            raise LocalError(f"{bucket}: a static buffer was rebound after its capture")
        self._copy_in(batch, bucket)
        self.replays[bucket]()
        self.num_replays += 1
        tokens = sum(widths)
        return self.buffers.logits[:tokens], self.buffers.features[:tokens]

    def buckets(self) -> list[Bucket]:
        """Every bucket that a step can need, the widest first."""
        return buckets(self.windows.shape.num_slots, self.windows.shape.block_len + 1)

    def capture_all(self) -> None:
        """Capture a pass for each bucket. Raises what a capture raises."""
        for bucket in self.buckets():
            self._copy_in(None, bucket)
            self.replays[bucket] = self.capture(lambda bucket=bucket: self._pass(bucket))  # type: ignore[misc]

    def _allocate(self) -> Buffers:
        """Buffers of the widest bucket, which are those of all."""
        widest, config, device = self.buckets()[0], self.target.config, self.target.device
        width = len(self.target.taps) * config.hidden_size
        return Buffers(
            inputs=torch.zeros(sum(widest.sizes), dtype=torch.int64, device=device),
            logits=torch.zeros((widest.tokens, config.vocab_size), device=device),
            features=torch.zeros((widest.tokens, width), dtype=self.target.dtype, device=device),
        )

    def _pass(self, bucket: Bucket) -> None:
        """The captured pass. It may use the bucket, the buffers, weights and windows, and no value of the host."""
        store, sizes, shape = self.windows.target, bucket.sizes, (bucket.rows, bucket.width)
        inputs = self.buffers.inputs[: sum(sizes)].split_with_sizes(sizes)
        token_ids, positions, slots, cells, tokens_of_cells, row_slots = inputs
        index = store.index(slots, positions)
        seen = positions.index_select(0, tokens_of_cells).view(*shape, 1)
        mask = self.eager.masks.causal(seen, store.length)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """Tokens go to the cells of their rows, attend there, and come back."""
            store.write(layer, index, k, v)
            mixed = store.attend(
                row_slots,
                q.index_select(0, tokens_of_cells).view(*shape, *q.shape[1:]),
                store.keys[layer].index_select(0, row_slots),
                store.values[layer].index_select(0, row_slots),
                mask,
            )
            return mixed.view(bucket.rows * bucket.width, -1).index_select(0, cells)

        hidden, features = self.target.forward(token_ids, positions, attend)
        self.buffers.logits[: bucket.tokens].copy_(self.target.logits(hidden))
        self.buffers.features[: bucket.tokens].copy_(features)

    def _copy_in(self, batch: Batch | None, bucket: Bucket) -> None:
        """Lay the batch out in the bucket; None: nothing but padding.

        Padding tokens are written to the scratch slot alone. A row's spare cells repeat its first token, so that none
        sees more than its row does; what they and padding rows attend to comes back to no token.
        """
        scratch, jobs = self.windows.shape.scratch, [] if batch is None else batch.jobs
        token_ids, positions, slots, cells, tokens_of_cells = (
            list[int](),
            list[int](),
            list[int](),
            list[int](),
            list[int](),
        )
        for row, job in enumerate(jobs):
            first, cell = len(token_ids), row * bucket.width
            token_ids += job.token_ids
            positions += range(job.start, job.start + job.width)
            slots += [job.slot] * job.width
            cells += range(cell, cell + job.width)
            tokens_of_cells += [*range(first, first + job.width), *[first] * (bucket.width - job.width)]
        padding, empty = bucket.tokens - len(token_ids), bucket.rows - len(jobs)
        parts = [
            token_ids + [0] * padding,
            positions + [0] * padding,
            slots + [scratch] * padding,
            cells + [0] * padding,
            tokens_of_cells + [0] * (empty * bucket.width),
            [job.slot for job in jobs] + [scratch] * empty,
        ]
        flat = torch.tensor([number for part in parts for number in part])
        self.buffers.inputs[: flat.shape[0]].copy_(flat)
