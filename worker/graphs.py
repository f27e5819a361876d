"""How the target's pass is run: eagerly, or on static buffers that a CUDA graph replays (and its CPU twin).

Owns buckets, static buffers, copy-in and copy-out. A static runner sees nothing of a step but its buffers; padding
rows name the scratch slot. Chunks and odd shapes run eagerly, which is the same arithmetic. `phases.py` calls
`forward` once a step.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
import torch
from torch import Tensor

from ..models.target import Qwen3Target
from ..statemachine.errors import LocalError
from .attention import Masks, TargetAttention
from .batch import Batch
from .windows import Windows


class TargetRunner(Protocol):
    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits [sampled tokens, V] float32 and features [tokens, m*d] of the batch."""


class EagerRunner:
    """Exact shapes, no padding: what a CPU wants."""

    def __init__(self, target: Qwen3Target, windows: Windows) -> None:
        self.target, self.windows = target, windows
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


@attrs.frozen
class Bucket:
    rows: int
    width: int
    key_len: int


@attrs.define
class Buffers:
    """All that a captured pass may read or write besides weights and windows."""

    token_ids: Tensor  # [rows * width]
    positions: Tensor  # [rows * width]: what each token sees; its rotary position
    write_slots: Tensor  # [rows * width]: the scratch slot for padding
    write_positions: Tensor  # [rows * width]
    read_slots: Tensor  # [rows]
    logits: Tensor  # [rows * width, V] out
    features: Tensor  # [rows * width, m*d] out


Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]


def replay_on_cpu(run: Callable[[], None]) -> Replay:
    """The twin of a capture: the same function over the same buffers, run again at each replay."""
    run()
    return run


def capture_on_cuda(run: Callable[[], None]) -> Replay:
    """Capture `run` in a CUDA graph after the warm-up runs on a side stream that torch asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


class StaticRunner:
    """Pure decode steps on static buffers, one capture for each bucket; everything else goes to the eager runner."""

    def __init__(self, target: Qwen3Target, windows: Windows, *, capture: Capture, eager: EagerRunner) -> None:
        self.target, self.windows, self.capture, self.eager = target, windows, capture, eager
        self.captured: dict[Bucket, tuple[Buffers, Replay, tuple[int, ...]]] = {}
        self.num_replays = 0

    def bucket(self, batch: Batch) -> Bucket | None:
        """The smallest bucket that holds the batch, or None when it does not run on static buffers."""
        if any(job.draft_len is None for job in batch.jobs):
            return None
        widest = max(job.width for job in batch.jobs)
        longest = max(job.start + job.width for job in batch.jobs)
        return Bucket(
            rows=min(_power_of_two(len(batch.jobs)), self.windows.shape.num_slots),
            width=1 if widest == 1 else self.windows.shape.block_len + 1,
            key_len=min(_power_of_two(max(longest, 64)), self.windows.shape.capacity),
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        bucket = self.bucket(batch)
        if bucket is None:
            return self.eager.forward(batch)
        self.warm(bucket)
        buffers, replay, addresses = self.captured[bucket]
        self._copy_in(batch, bucket, buffers)
        if _addresses(buffers) != addresses:
            raise LocalError(f"{bucket}: a static buffer was rebound after its capture")
        replay()
        self.num_replays += 1
        return self._copy_out(batch, bucket, buffers)

    def buckets(self) -> list[Bucket]:
        """Every bucket that a step can need, widest first, so that warm-up sees the peak of memory."""
        shape = self.windows.shape
        rows = sorted({min(1 << n, shape.num_slots) for n in range(shape.num_slots.bit_length() + 1)}, reverse=True)
        widths = [shape.block_len + 1, 1] if shape.block_len else [1]
        lengths, length = {shape.capacity}, 64
        while length < shape.capacity:
            lengths.add(length)
            length *= 2
        return [Bucket(r, w, k) for k in sorted(lengths, reverse=True) for w in widths for r in rows]

    def warm(self, bucket: Bucket) -> None:
        if bucket not in self.captured:
            self.captured[bucket] = self._capture(bucket)

    def _capture(self, bucket: Bucket) -> tuple[Buffers, Replay, tuple[int, ...]]:
        tokens, device = bucket.rows * bucket.width, self.target.device

        def longs(count: int, value: int = 0) -> Tensor:
            return torch.full((count,), value, dtype=torch.int64, device=device)

        scratch = self.windows.shape.scratch
        width = len(self.target.taps) * self.target.config.hidden_size
        buffers = Buffers(
            token_ids=longs(tokens),
            positions=longs(tokens),
            write_slots=longs(tokens, scratch),
            write_positions=longs(tokens),
            read_slots=longs(bucket.rows, scratch),
            logits=torch.zeros((tokens, self.target.config.vocab_size), device=device),
            features=torch.zeros((tokens, width), dtype=self.target.dtype, device=device),
        )
        replay = self.capture(lambda: self._pass(bucket, buffers))
        return buffers, replay, _addresses(buffers)

    def _pass(self, bucket: Bucket, buffers: Buffers) -> None:
        """The captured pass. It may use the bucket, the buffers, weights and windows, and no value of the host."""
        shape = (bucket.rows, bucket.width)
        store = self.windows.target
        index = store.index(buffers.write_slots, buffers.write_positions)
        mask = self.eager.masks.causal(buffers.positions.view(*shape, 1), bucket.key_len)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            store.write(layer, index, k, v)
            mixed = store.attend(
                buffers.read_slots,
                q.view(*shape, *q.shape[1:]),
                store.keys[layer][:, :, : bucket.key_len].index_select(0, buffers.read_slots),
                store.values[layer][:, :, : bucket.key_len].index_select(0, buffers.read_slots),
                mask,
            )
            return mixed.view(bucket.rows * bucket.width, -1)

        hidden, features = self.target.forward(buffers.token_ids, buffers.positions, attend)
        buffers.logits.copy_(self.target.logits(hidden))
        buffers.features.copy_(features)

    def _copy_in(self, batch: Batch, bucket: Bucket, buffers: Buffers) -> None:
        """Pad rows to the bucket's width and the batch to its rows; padding writes to the scratch slot alone."""
        scratch = self.windows.shape.scratch
        token_ids: list[int] = []
        positions: list[int] = []
        write_slots: list[int] = []
        for job in batch.jobs:
            short = bucket.width - job.width
            token_ids += job.token_ids + [job.token_ids[0]] * short
            positions += [*range(job.start, job.start + job.width), *[job.start] * short]
            write_slots += [job.slot] * job.width + [scratch] * short
        empty = (bucket.rows - len(batch.jobs)) * bucket.width
        packed = [
            token_ids + [0] * empty,
            positions + [0] * empty,
            write_slots + [scratch] * empty,
        ]
        tensors = torch.tensor(packed)
        buffers.token_ids.copy_(tensors[0])
        buffers.positions.copy_(tensors[1])
        buffers.write_slots.copy_(tensors[2])
        # Padding of different rows may meet in the scratch slot at the same position: nothing reads it.
        buffers.write_positions.copy_(tensors[1])
        rows = [job.slot for job in batch.jobs]
        buffers.read_slots.copy_(torch.tensor(rows + [scratch] * (bucket.rows - len(rows))))

    def _copy_out(self, batch: Batch, bucket: Bucket, buffers: Buffers) -> tuple[Tensor, Tensor]:
        """Take the real tokens out, by the sums of actual widths; the buffers belong to the next step."""
        tokens = [row * bucket.width + offset for row, job in enumerate(batch.jobs) for offset in range(job.width)]
        chosen = torch.tensor(tokens, device=self.target.device)
        return buffers.logits.index_select(0, chosen), buffers.features.index_select(0, chosen)


def _addresses(buffers: Buffers) -> tuple[int, ...]:
    return tuple(value.data_ptr() for value in attrs.asdict(buffers, recurse=False).values())


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
