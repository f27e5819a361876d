"""The parameters of a draw, one row each, as tensors.

Owns the records only. Never judges a value: whoever accepted the request has done so. Called by `filters`, `sampling`,
the reference twin and the worker.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import attrs
import torch
from torch import Tensor

GREEDY_BELOW = 1e-5


class SamplingFields(Protocol):
    """What `Sampling.of` reads from each row; any record with these names will do."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def sample_index(self) -> int: ...


@attrs.frozen(kw_only=True)
class SamplingRow:
    """One row's parameters as Python values. The defaults are greedy without filters."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sample_index: int = 0


@attrs.frozen(kw_only=True)
class Sampling:
    """Parameters of a batch, each a tensor [rows], and what the host knows about all rows together.

    temperature float32; is_greedy bool (below 1e-5, judged before any rounding, so alone and beside others alike);
    top_k int64 (0 = off); top_p float32 (1 = off); min_p float32 (0 = off); seed, sample_index int64. any_sampled: some
    row is not greedy. any_filtered: some sampled row filters. max_top_k: the largest top_k if every sampled row has
    one, else 0; noise is then computed for that many candidates only.
    """

    temperature: Tensor
    is_greedy: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sample_index: Tensor
    any_sampled: bool
    any_filtered: bool
    max_top_k: int

    @classmethod
    def of(cls, rows: Sequence[SamplingFields], device: torch.device) -> Self:
        """Tensors for `rows`. A seed may be any integer; it is taken modulo 2**64."""
        sampled = [row for row in rows if row.temperature >= GREEDY_BELOW]

        def column(values: list[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            temperature=column([row.temperature for row in rows], torch.float32),
            is_greedy=column([row.temperature < GREEDY_BELOW for row in rows], torch.bool),
            top_k=column([row.top_k for row in rows], torch.int64),
            top_p=column([row.top_p for row in rows], torch.float32),
            min_p=column([row.min_p for row in rows], torch.float32),
            seed=column([(row.seed + (1 << 63)) % (1 << 64) - (1 << 63) for row in rows], torch.int64),
            sample_index=column([row.sample_index for row in rows], torch.int64),
            any_sampled=bool(sampled),
            any_filtered=any(row.top_k > 0 or row.top_p < 1 or row.min_p > 0 for row in sampled),
            max_top_k=max((row.top_k for row in sampled), default=0) if all(row.top_k > 0 for row in sampled) else 0,
        )

    def at(self, rows: Tensor) -> Self:
        """The parameters of `rows` [n] int64, repeats allowed: one entry for each row of a flat verify pass."""
        names = ("temperature", "is_greedy", "top_k", "top_p", "min_p", "seed", "sample_index")
        return attrs.evolve(self, **{name: getattr(self, name).index_select(0, rows) for name in names})

    @property
    def greedy(self) -> Tensor:
        """Which rows are greedy: [rows, 1] bool."""
        return self.is_greedy.unsqueeze(-1)
