"""Both twins agree with what another implementation of the drafter recorded, round for round."""

import pytest
import torch
from dsparkd.models.reference import decode_plain, speculate
from model_support import NAMES, TOLERANCE, TinyCache, golden


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected.view(found.shape)).abs().max() <= TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_the_reference_twin_repeats_every_golden_round(name: str) -> None:
    data = golden(name)
    pair = data.pair
    num_compared = 0
    for number, sample in enumerate(data.samples):
        size = pair.drafter.block_size
        tokens, rounds = speculate(
            pair.reference_target,
            pair.reference_drafter,
            sample["prompt_ids"],
            # The recorded loop goes on until the anchor itself lies past the limit.
            max_tokens=len(sample["new_ids"]) + 1,
            draft_len=size,
        )
        assert tokens[:-1] == sample["new_ids"] == sample["autoregressive_ids"]
        assert len(rounds) == len(sample["rounds"])
        for index, (ours, theirs) in enumerate(zip(rounds, sample["rounds"][:-1], strict=False)):
            assert (ours.start_pos, ours.anchor) == (theirs["start"], theirs["anchor"])
            assert ours.draft_token_ids == theirs["draft_ids"]
            assert ours.accepted_len == theirs["accepted"]
            assert ours.emitted[-1] == theirs["next_token"]
            if theirs.get("confidence_logits"):
                assert ours.draft.confidence_logits is not None
                assert close(ours.draft.confidence_logits, torch.tensor(theirs["confidence_logits"]))
            prefix = f"p{number}.r{index}."
            for key, found in (
                ("block_hidden", ours.draft.hidden),
                ("base_logits", ours.draft.base_logits),
                ("draft_logits", ours.draft.draft_logits),
                ("verify_logits", ours.verify_logits),
            ):
                if prefix + key in data.tensors:
                    num_compared += 1
                    assert close(found, data.tensors[prefix + key]), (number, index, key)
    assert num_compared > 0, "the recorded tensors were never looked at"


@pytest.mark.parametrize("name", NAMES)
def test_the_fast_path_repeats_every_golden_round(name: str) -> None:
    data = golden(name)
    for number, sample in enumerate(data.samples):
        cache = TinyCache(data.pair)
        (logits,), (pending,) = cache.run([sample["prompt_ids"]], [0])
        known, written = [*sample["prompt_ids"], int(logits[-1].argmax())], 0
        for index, theirs in enumerate(sample["rounds"][:-1]):
            start, prefix = len(known) - 1, f"p{number}.r{index}."
            assert list(range(written, start)) == theirs["context_positions"]
            cache.write_context(0, pending, written)
            if prefix + "target_hidden" in data.tensors:
                assert close(pending, data.tensors[prefix + "target_hidden"])
            hidden, proposal = cache.propose([known[-1]], [start])
            drafts = proposal.token_ids[0].tolist()
            assert drafts == theirs["draft_ids"]
            if theirs.get("confidence_logits"):
                assert proposal.confidence_logits is not None
                assert close(proposal.confidence_logits[0], torch.tensor(theirs["confidence_logits"]))
            (logits,), (features,) = cache.run([[known[-1], *drafts]], [start])
            if prefix + "block_hidden" in data.tensors:
                assert close(hidden, data.tensors[prefix + "block_hidden"])
                assert close(logits, data.tensors[prefix + "verify_logits"])
            argmax = logits.argmax(-1).tolist()
            assert argmax == theirs["target_argmax"]
            accepted = theirs["accepted"]
            assert argmax[:accepted] == drafts[:accepted]
            known += argmax[: accepted + 1]
            pending, written = features[: accepted + 1], start


@torch.inference_mode()
def test_plain_decoding_says_what_the_golden_data_says() -> None:
    data = golden("vanilla")
    sample = data.samples[0]
    expected = sample["autoregressive_ids"]
    assert decode_plain(data.pair.reference_target, sample["prompt_ids"], max_tokens=len(expected)) == expected
