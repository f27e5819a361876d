"""Grouped-query attention reads each key and value head where it lies: nothing repeats it for its query heads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import torch
from dsparkd.models.layers import grouped_attention
from dsparkd.worker.attention import BlockAttention, Masks, TargetAttention
from dsparkd.worker.batch import Batch, Job
from dsparkd.worker.windows import Shape, Windows
from model_support import CPU, golden
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HEADS, GROUPS, SIZE, LENGTH, BLOCK = 16, 2, 64, 300, 4
SHARE = HEADS // GROUPS


class Allocations(TorchDispatchMode):
    """The elements of every tensor that is made in memory of its own, operation by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_place(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _place(leaf) not in given:
                self.made.append((str(func), leaf.untyped_storage().nbytes() // leaf.element_size()))
        return result

    @property
    def largest(self) -> int:
        return max(elements for _, elements in self.made)

    @property
    def whole(self) -> int:
        return sum(elements for _, elements in self.made)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def allocations() -> Iterator[Allocations]:
    with torch.inference_mode(), Allocations() as seen:
        yield seen


def windows() -> Windows:
    pair = golden("vanilla").pair
    sizes = {"num_heads": HEADS, "num_kv_heads": GROUPS, "head_dim": SIZE}
    target = attrs.evolve(pair.target.config, **sizes)
    drafter = attrs.evolve(pair.drafter.config, **sizes)
    shape = Shape(num_slots=4, max_model_len=LENGTH + 20, block_len=BLOCK, drafter_window=LENGTH + 20)
    return Windows(shape, target, drafter, dtype=torch.float32, device=CPU)


def repeated(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """What must not be done: every query head gets keys and values of its own."""
    many = [part.repeat_interleave(SHARE, 1) for part in (keys, values)]
    scores = q.transpose(1, 2) @ many[0].mT / SIZE**0.5
    return (torch.softmax(scores, -1) @ many[1]).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("width", [1, BLOCK + 1])
def test_attention_over_a_window_in_place_makes_nothing_as_large_as_its_keys(width: int) -> None:
    cache = torch.randn(3, GROUPS, LENGTH + 50, SIZE)
    keys, values = cache[:, :, :LENGTH], cache.flip(2)[:, :, :LENGTH]
    q = torch.randn(3, width, HEADS, SIZE)
    with allocations() as seen:
        found = grouped_attention(q, keys, values)
    assert seen.largest < keys.numel(), seen.made
    with allocations() as wasteful:
        expected = repeated(q, keys, values)
    assert wasteful.largest == SHARE * keys.numel()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def verify(slots: list[int]) -> Batch:
    rows = [
        Job(
            slot=slot,
            row=None,
            start=LENGTH,
            token_ids=[1] * (BLOCK + 1),
            samples=True,
            draft_len=BLOCK,
            propose_len=0,
            params=None,
        )
        for slot in slots
    ]
    return Batch(rows, CPU)


def drawn(tokens: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(*tokens, heads, SIZE) for heads in (HEADS, GROUPS, GROUPS))
    return q, k, v


@pytest.mark.parametrize(("slots", "copies"), [([0, 1, 2], 0), ([0, 2], 2)], ids=["neighbours", "apart"])
def test_a_verify_pass_copies_a_window_at_most_once_and_neighbours_not_at_all(slots: list[int], copies: int) -> None:
    store = windows()
    attend = TargetAttention(
        verify(slots), store, Masks(store.shape.capacity, BLOCK + 1, device=CPU, dtype=torch.float32)
    )
    keys = len(slots) * GROUPS * (LENGTH + BLOCK + 1) * SIZE
    with allocations() as seen:
        attend(0, *drawn((len(slots) * (BLOCK + 1),)))
    assert seen.largest <= (keys if copies else keys - 1), seen.made
    # Scores and masked rows are the rest; a repetition would be share times as much.
    assert seen.whole < (copies + SHARE / 2) * keys, seen.made


@pytest.mark.parametrize(("slots", "copies"), [([0, 1, 2], 0), ([0, 2], 2)], ids=["neighbours", "apart"])
def test_a_block_pass_copies_a_context_at_most_once_and_neighbours_not_at_all(slots: list[int], copies: int) -> None:
    store = windows()
    assert store.context is not None
    attend = BlockAttention(store.context, store, slots=slots, starts=[LENGTH] * len(slots))
    keys = len(slots) * GROUPS * (LENGTH + BLOCK) * SIZE
    with allocations() as seen:
        attend(0, *drawn((len(slots), BLOCK)))
    assert seen.largest <= (keys if copies else keys - 1), seen.made
    assert seen.whole < (copies + SHARE / 2) * keys, seen.made
