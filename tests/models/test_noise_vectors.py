"""The noise is what its page defines, recomputed here in plain integers."""

import math
import struct

import pytest
import torch
from dsparkd.models.noise import TEST_VECTORS, gumbel, mix64, uniform32
from hypothesis import given, settings
from hypothesis import strategies as st

WORD = (1 << 64) - 1
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def mix_reference(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def bits_reference(*fields: int) -> int:
    h = 0
    for field in fields:
        h = mix_reference(((h ^ (field & WORD)) + 0x9E3779B97F4A7C15) & WORD)
    return h >> 32


def gumbel_reference(*fields: int) -> float:
    value = -math.log(-math.log((bits_reference(*fields) + 0.5) * 2.0**-32))
    return float(struct.unpack("f", struct.pack("f", value))[0])


def row(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int64)


@pytest.mark.parametrize("vector", TEST_VECTORS)
def test_vectors_hold_in_plain_integers_and_in_tensors(vector: tuple[int, int, int, int, int, int, float]) -> None:
    seed, sample_index, stream, position, token_id, bits, noise = vector
    assert bits_reference(seed, sample_index, stream, position, token_id) == bits
    assert gumbel_reference(seed, sample_index, stream, position, token_id) == pytest.approx(noise, rel=2e-7)
    where = (row(seed), row(sample_index), stream, row(position), row(token_id).unsqueeze(0))
    assert int(uniform32(*where)) == bits
    assert float(gumbel(*where)) == pytest.approx(noise, rel=2e-7)


def test_there_are_vectors() -> None:
    assert len(TEST_VECTORS) >= 8


@settings(derandomize=True, max_examples=60, deadline=None)
@given(INT64, st.integers(0, 100), st.integers(0, 3), st.integers(0, 1 << 20), st.integers(0, 200_000))
def test_noise_equals_the_plain_definition(seed: int, sample: int, stream: int, position: int, token: int) -> None:
    found = uniform32(row(seed), row(sample), stream, row(position), row(token).unsqueeze(0))
    assert int(found) == bits_reference(seed, sample, stream, position, token)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(INT64)
def test_the_finaliser_shifts_logically(x: int) -> None:
    assert int(mix64(row(x))) & WORD == mix_reference(x & WORD)


def test_noise_is_finite_at_both_ends_of_its_range() -> None:
    ends = torch.tensor([0, (1 << 32) - 1], dtype=torch.float64)
    noise = -(-((ends + 0.5) * 2.0**-32).log()).log()
    assert noise.float().isfinite().all()


def test_noise_is_the_same_in_every_batch_and_for_any_subset_of_tokens() -> None:
    seeds, ones = torch.arange(5), torch.ones(5, dtype=torch.int64)
    whole = gumbel(seeds, ones, 2, 7 * ones, torch.arange(100).unsqueeze(0))
    part = gumbel(seeds[3:4], ones[:1], 2, 7 * ones[:1], torch.tensor([[99, 4, 50]]))
    assert part[0].equal(whole[3, [99, 4, 50]])


def test_streams_positions_and_samples_give_different_noise() -> None:
    ids = torch.arange(8).unsqueeze(0)
    draws = [gumbel(row(1), row(s), stream, row(p), ids) for s in (0, 1) for stream in (0, 1, 2, 3) for p in (0, 1)]
    assert len({tuple(draw[0].tolist()) for draw in draws}) == len(draws)


def test_noise_has_the_mean_and_variance_of_a_gumbel() -> None:
    noise = gumbel(torch.arange(400), torch.zeros(400).long(), 0, torch.arange(400), torch.arange(500).unsqueeze(0))
    assert float(noise.mean()) == pytest.approx(0.57722, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.04)  # five standard errors
