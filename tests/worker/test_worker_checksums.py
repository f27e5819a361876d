"""What paranoid mode holds windows against: no kind of change to a row leaves its checksum as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dsparkd.worker.paranoid import WatchedWindows
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from window_support import House, house
from worker_support import samples

# Of one row: [..., numbers], in place. Each keeps something that a careless sum is made of: magnitudes, the set of
# numbers, their total, the bits.
CHANGES: dict[str, Callable[[Tensor, int], Any]] = {
    "all signs": lambda row, at: row.neg_(),
    "two signs": lambda row, at: row.copy_(row.index_fill(-1, torch.tensor([at, at - 1]), 0.0) * 2 - row),
    "order": lambda row, at: row.copy_(row.roll(1 + at % (row.shape[-1] - 1), -1)),
    "reversed": lambda row, at: row.copy_(row.flip(-1)),
    "one bit": lambda row, at: row.view(torch.int32)[..., at].bitwise_xor_(1 << (at % 32)),
    "zeros": lambda row, at: row.zero_(),
    "a little": lambda row, at: row.mul_(1 + 1e-6),
}


@pytest.fixture(scope="module")
def settled() -> House:
    one = house("vanilla")
    prompt = samples("vanilla")[0]["prompt_ids"] * 3
    one.begin(0, prompt)
    one.step(one.chunk(0, 99))
    one.step(one.decode(0, propose_len=0))
    return one


def record(one: House) -> Any:
    windows: Any = one.windows
    assert isinstance(windows, WatchedWindows)
    return windows._record(0, windows.table[0])


@pytest.mark.parametrize("where", ["target", "context", "pending"])
@given(change=st.sampled_from(sorted(CHANGES)), row=st.integers(0, 99), at=st.integers(0, 99), layer=st.integers(0, 99))
def test_no_kind_of_change_to_a_row_leaves_its_checksum_as_it_was(
    settled: House, where: str, change: str, row: int, at: int, layer: int
) -> None:
    windows: Any = settled.windows
    window = windows.table[0]
    if where == "pending":
        rows = windows.pending.rows[0, row % window.pending_len]
    else:
        store = windows.target if where == "target" else windows.context
        layers = store.rows.shape[0]
        length = window.length if where == "target" else window.context_len
        rows = store.rows[layer % layers, 0, layer % store.rows.shape[2], row % length]
    before, kept = record(settled), rows.clone()
    try:
        with torch.inference_mode():
            CHANGES[change](rows, at % rows.shape[-1])
        changed = not torch.equal(rows.view(torch.int32), kept.view(torch.int32))
        assert (before.problem(record(settled), moved=False) is not None) == changed
    finally:
        rows.copy_(kept)


def test_layers_that_change_places_change_the_checksum(settled: House) -> None:
    windows: Any = settled.windows
    rows = windows.target.rows[:, 0, :, 3]
    before, kept = record(settled), rows.clone()
    for shift in range(1, rows.shape[0]):
        rows.copy_(kept.roll(shift, 0))
        assert before.problem(record(settled), moved=False) is not None
    rows.copy_(kept)
