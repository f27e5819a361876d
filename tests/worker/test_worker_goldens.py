"""The worker's path repeats what another implementation recorded: tokens, lengths, drafts, context, logits."""

from typing import Any

import pytest
import torch
from dsparkd.scheduler.wire import messages as wire
from dsparkd.worker.batch import Batch
from dsparkd.worker.graphs import TargetRunner
from safetensors.torch import load_file
from torch import Tensor
from worker_support import GOLDEN, NAMES, TOLERANCE, Driver, backend, phases_of, samples, seed


class Recorder:
    """A runner that keeps what passes through it."""

    num_uncaptured = 0

    def __init__(self, inner: TargetRunner) -> None:
        self.inner = inner
        self.logits = self.features = torch.empty(0)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.logits, self.features = self.inner.forward(batch)
        return self.logits, self.features


def close(found: Any, expected: Any) -> bool:
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    return bool((found - expected.view(found.shape)).abs().max() <= TOLERANCE)


@pytest.mark.parametrize("runner", ["eager", "static"])
@pytest.mark.parametrize("name", NAMES)
def test_the_worker_repeats_every_golden_round(name: str, runner: str) -> None:
    driver = Driver(backend(name, runner=runner))
    phases = phases_of(driver.backend)
    recorder = phases.runner = Recorder(phases.runner)
    tensors = load_file(GOLDEN / name / "golden.safetensors")
    size = phases.windows.shape.block_len
    num_compared = 0
    for number, sample in enumerate(samples(name)):
        params = wire.Params(passes=True)
        first = driver.one(seed(0, number + 1, sample["prompt_ids"], propose_len=size, params=params))
        tokens = list(first.token_ids)
        pending = recorder.features
        for index, theirs in enumerate(sample["rounds"][:-1]):
            window, prefix = driver.window(0), f"p{number}.r{index}."
            assert (window.length, window.anchor) == (theirs["start"], theirs["anchor"])
            # The draft of this round stands in the slot already, over a context without a hole.
            assert (window.context_len, window.pending_len) == (theirs["draft_cache_after"], 0)
            assert window.context_len - theirs["draft_cache_before"] == len(theirs["context_positions"])
            assert window.held == theirs["draft_ids"]
            if prefix + "target_hidden" in tensors:
                assert close(pending[: theirs["context_rows"]], tensors[prefix + "target_hidden"])
            row = driver.one(wire.Decode(0, number + 1, size, size))
            assert row.draft_token_ids == theirs["draft_ids"]
            assert row.accepted_len == theirs["accepted"]
            assert row.token_ids[-1] == theirs["next_token"]
            if theirs.get("confidence_logits"):
                assert close(row.confidence_logits, theirs["confidence_logits"])
            else:
                assert row.confidence_logits is None
            if prefix + "verify_logits" in tensors:
                num_compared += 1
                assert close(recorder.logits, tensors[prefix + "verify_logits"])
            pending = recorder.features[: row.accepted_len + 1]
            tokens += row.token_ids
        assert tokens == sample["new_ids"][: len(tokens)]
    assert num_compared > 0, "the recorded tensors were never looked at"


@pytest.mark.parametrize("name", NAMES)
def test_plain_decoding_without_a_drafter_says_the_same(name: str) -> None:
    driver = Driver(backend(name, drafter=False))
    sample = samples(name)[0]
    tokens = list(driver.one(seed(0, 1, sample["prompt_ids"])).token_ids)
    while len(tokens) < len(sample["autoregressive_ids"]):
        tokens += driver.one(wire.Decode(0, 1, 0, 0)).token_ids
    assert tokens == sample["autoregressive_ids"]
