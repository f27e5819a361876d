"""Filters, draws and margins against a naive implementation in plain Python."""

import math

import pytest
import torch
from dsparkd.models.sampling import Sampling, SamplingRow, draw, draw_with_probs, filtered_logits, margins, noise_for
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model_support import CPU
from test_noise_vectors import gumbel_reference

VOCAB = 7
# Quarters make ties likely and every tempered value exact.
LOGITS = st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB)
ROWS = st.builds(
    SamplingRow,
    temperature=st.sampled_from([0.0, 5e-6, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, VOCAB + 2),
    top_p=st.sampled_from([0.05, 0.33, 0.7, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.3, 1.0]),
    seed=st.integers(0, 1 << 63),
    sample_index=st.integers(0, 3),
)
BATCH = st.lists(st.tuples(LOGITS, ROWS), min_size=1, max_size=4)
checked = settings(derandomize=True, max_examples=120, deadline=None)


def kept_reference(logits: list[float], row: SamplingRow) -> list[int]:
    """Ids that stay, best first."""
    if row.temperature < 1e-5:
        return list(range(len(logits)))
    scaled = [value / row.temperature for value in logits]
    order = sorted(range(len(logits)), key=lambda token: (-scaled[token], token))
    order = order[: row.top_k] if row.top_k else order
    if row.top_p < 1:
        weights = [math.exp(scaled[token] - scaled[order[0]]) for token in order]
        total, running, size = sum(weights), 0.0, 0
        while running / total < row.top_p and size < len(order):
            # A sum this near the border may fall either way; the property is not about rounding.
            running += weights[size]
            size += 1
            assume(abs(running / total - row.top_p) > 1e-6)
        order = order[:size]
    best = scaled[order[0]]
    return [token for token in order if math.exp(scaled[token] - best) >= row.min_p - 1e-9]


def tensors(batch: list[tuple[list[float], SamplingRow]]) -> tuple[torch.Tensor, Sampling, torch.Tensor]:
    logits = torch.tensor([logits for logits, _ in batch])
    return logits, Sampling.of([row for _, row in batch], CPU), torch.arange(len(batch)) + 40


@checked
@given(BATCH)
def test_filters_keep_what_the_naive_filters_keep(batch: list[tuple[list[float], SamplingRow]]) -> None:
    logits, sampling, _ = tensors(batch)
    filtered = filtered_logits(logits, sampling)
    for index, (values, row) in enumerate(batch):
        kept = kept_reference(values, row)
        assert filtered[index].isfinite().nonzero().flatten().tolist() == sorted(kept)
        assert kept
        factor = row.temperature if row.temperature >= 1e-5 else 1.0
        for token in kept:
            assert float(filtered[index, token]) == pytest.approx(values[token] / factor)


@checked
@given(BATCH)
def test_a_draw_is_the_best_kept_logit_plus_noise(batch: list[tuple[list[float], SamplingRow]]) -> None:
    logits, sampling, positions = tensors(batch)
    tokens = draw(logits, sampling, positions)
    gaps, borders = margins(logits, sampling, positions)
    for index, (values, row) in enumerate(batch):
        greedy = row.temperature < 1e-5
        place = (row.seed, row.sample_index, 0, 40 + index)
        scores = {
            token: values[token] if greedy else values[token] / row.temperature + gumbel_reference(*place, token)
            for token in kept_reference(values, row)
        }
        best = sorted(scores, key=lambda token: (-scores[token], token))
        assert int(tokens[index]) == best[0]
        expected = scores[best[0]] - scores[best[1]] if len(best) > 1 else math.inf
        assert float(gaps[index]) == pytest.approx(expected, abs=1e-5)
        assert float(borders[index]) >= 0
        assert not greedy or borders[index] == math.inf


@checked
@given(BATCH)
def test_a_draw_depends_neither_on_its_batch_nor_on_when_its_noise_was_made(
    batch: list[tuple[list[float], SamplingRow]],
) -> None:
    logits, sampling, positions = tensors(batch)
    tokens = draw(logits, sampling, positions)
    for index, (_, row) in enumerate(batch):
        alone = draw(logits[index : index + 1], Sampling.of([row], CPU), positions[index : index + 1])
        assert int(alone) == int(tokens[index])
    assert draw(logits, sampling, positions, noise=noise_for(sampling, positions, VOCAB)).equal(tokens)


def test_greedy_takes_the_lowest_id_on_ties_whatever_its_neighbours_do() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0]] * 2)
    greedy, filtered = SamplingRow(), SamplingRow(temperature=1.0, top_k=3, seed=4)
    for rows in ([greedy, greedy], [greedy, filtered], [greedy, SamplingRow(temperature=1.0)]):
        assert int(draw(logits, Sampling.of(rows, CPU), torch.tensor([5, 5]))[0]) == 1


def test_the_border_is_the_distance_to_the_nearest_excluded_token() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.75, 0.0]])
    at = torch.tensor([0])
    for row, expected in (
        (SamplingRow(temperature=0.5, top_k=2), 0.5),
        (SamplingRow(temperature=1.0, min_p=math.exp(-1.2)), 0.05),
        (SamplingRow(temperature=1.0, top_p=0.61), abs(1 / (1 + math.exp(-1) + math.exp(-1.25) + math.exp(-3)) - 0.61)),
        (SamplingRow(temperature=1.0), math.inf),
    ):
        assert float(margins(logits, Sampling.of([row], CPU), at)[1]) == pytest.approx(expected, abs=1e-5)


def test_drawn_frequencies_fit_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    count = 4000
    sampling = Sampling.of([SamplingRow(temperature=1.0, seed=seed) for seed in range(count)], CPU)
    tokens = draw(probs.log().expand(count, -1), sampling, torch.full((count,), 9))
    found = torch.bincount(tokens, minlength=4)
    chi_square = float(((found - count * probs) ** 2 / (count * probs)).sum())
    assert chi_square < 16.3  # 0.999 quantile, 3 degrees of freedom


def test_the_returned_distribution_is_the_one_drawn_from() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(3000, -1)
    rows = [SamplingRow(temperature=0.7, top_k=3, seed=seed) for seed in range(3000)]
    tokens, probs = draw_with_probs(logits, Sampling.of(rows, CPU), torch.full((3000,), 3))
    assert probs[0, 3] == 0
    assert float(probs[0].sum()) == pytest.approx(1.0)
    found = torch.bincount(tokens, minlength=4)[:3]
    expected = 3000 * probs[0, :3]
    assert float(((found - expected) ** 2 / expected).sum()) < 13.8  # 0.999 quantile, 2 degrees of freedom


def test_a_seed_is_taken_modulo_two_to_the_64() -> None:
    rows = [SamplingRow(seed=-1), SamplingRow(seed=(1 << 64) - 1), SamplingRow(seed=1 << 63)]
    assert Sampling.of(rows, CPU).seed.tolist() == [-1, -1, -(1 << 63)]


@pytest.mark.parametrize("temperature", [0.0, 1e-6, math.nextafter(1e-5, 0), 1e-5, math.nextafter(1e-5, 1), 1e-4])
def test_a_row_is_greedy_alone_iff_it_is_beside_a_sampled_one(temperature: float) -> None:
    row, sampled = SamplingRow(temperature=temperature), SamplingRow(temperature=1.0)
    alone, both = Sampling.of([row], CPU), Sampling.of([row, sampled], CPU)
    assert both.greedy.squeeze(-1).tolist() == [temperature < 1e-5, False]
    assert alone.any_sampled == (temperature >= 1e-5)
    assert both.at(torch.tensor([1, 0, 0])).greedy.squeeze(-1).tolist() == [False, *[temperature < 1e-5] * 2]
