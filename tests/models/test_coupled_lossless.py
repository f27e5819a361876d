"""Coupled sampling says the same with any draft length, none included."""

import pytest
import torch
from dsparkd.models.reference import decode_plain, speculate
from dsparkd.models.sampling import SamplingRow
from model_support import golden


@pytest.mark.parametrize("name", ["vanilla", "rnn"])
@pytest.mark.parametrize(
    "params",
    [SamplingRow(temperature=0.8, seed=11), SamplingRow(temperature=0.8, seed=12, sample_index=1, top_k=20, top_p=0.9)],
    ids=["plain", "filtered"],
)
@torch.inference_mode()
def test_every_draft_length_gives_the_tokens_of_plain_decoding(name: str, params: SamplingRow) -> None:
    pair = golden(name).pair
    prompt = golden(name).samples[0]["prompt_ids"]
    plain = decode_plain(pair.reference_target, prompt, max_tokens=24, params=params)
    stood = 0
    for draft_len in range(pair.drafter.block_size + 1):
        tokens, rounds = speculate(
            pair.reference_target,
            pair.reference_drafter,
            prompt,
            max_tokens=24,
            draft_len=draft_len,
            params=params,
        )
        assert tokens == plain
        stood += sum(turn.accepted_len for turn in rounds)
    assert stood > 0  # drafts do stand, or the claim would be empty


@torch.inference_mode()
def test_seeds_and_sample_indices_give_different_texts() -> None:
    pair = golden("vanilla").pair
    texts = {
        tuple(decode_plain(pair.reference_target, [5, 80], max_tokens=16, params=params))
        for params in (SamplingRow(temperature=2.0, seed=s, sample_index=i) for s in (1, 2) for i in (0, 1))
    }
    assert len(texts) == 4
