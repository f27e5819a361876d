"""Rejection sampling through the worker: the distribution of what comes out is the target's, at any draft length."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dsparkd.models.checkpoint import drafter_shapes, read_target, target_shapes
from dsparkd.models.config import load_drafter_config, load_target_config
from dsparkd.models.reference import ReferenceTarget
from dsparkd.scheduler.core import events
from dsparkd.scheduler.wire import messages as wire
from dsparkd.worker.backend import TorchBackend
from safetensors.torch import save_file
from worker_support import bench

VOCAB = 5
PROMPT = [1, 3, 2]
FIRST_SEED = 3000
NUM_REQUESTS = 3000
SIZES = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
DRAFT = {
    "architectures": ["Qwen3DSparkModel"],
    "num_hidden_layers": 1,
    "num_target_layers": 3,
    "block_size": 3,
    "mask_token_id": 4,
    "target_layer_ids": [0, 1],
    "markov_rank": 4,
    "markov_head_type": "vanilla",
    "enable_confidence_head": False,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random pair of five tokens whose drafter is nothing like its target: half of the drafts fall."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    (target / "config.json").write_text(json.dumps({**SIZES, "architectures": ["Qwen3ForCausalLM"]}))
    (draft / "config.json").write_text(json.dumps({**SIZES, **DRAFT}))
    torch.manual_seed(7)
    config = load_target_config(target)

    def noise(shapes: Any) -> dict[str, torch.Tensor]:
        return {
            name: torch.randn(shape) * (0.7 if len(shape) > 1 else 0.1) + (len(shape) == 1)
            for name, shape in shapes.items()
        }

    tensors = noise(target_shapes(config))
    save_file(tensors, target / "model.safetensors")
    shared = {"embed_tokens.weight": tensors["model.embed_tokens.weight"], "lm_head.weight": tensors["lm_head.weight"]}
    save_file({**noise(drafter_shapes(load_drafter_config(draft, config))), **shared}, draft / "model.safetensors")
    return target, draft


def expected(target: Path, temperature: float, top_k: int) -> torch.Tensor:
    """The exact joint distribution of the first three tokens: [V, V, V]."""
    twin = ReferenceTarget(*read_target(target))

    def step(text: list[int]) -> torch.Tensor:
        logits = twin.logits_and_features(text)[0][-1]
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
        return torch.softmax(logits / temperature, -1)

    first = step(PROMPT)
    joint = torch.zeros(VOCAB, VOCAB, VOCAB)
    for one in range(VOCAB):
        second = step([*PROMPT, one])
        for two in range(VOCAB):
            joint[one, two] = first[one] * second[two] * step([*PROMPT, one, two])
    return joint


def observed(
    pair: tuple[Path, Path], acceptance: str, draft_len: int, *, temperature: float, top_k: int
) -> tuple[torch.Tensor, int]:
    made = TorchBackend()
    made.load(wire.Init(1, str(pair[0]), str(pair[1]), 64, 32, 512, acceptance=acceptance))
    made.warm()
    engine = bench(f"fixed:{draft_len}", made=made, limits={"max_step_tokens": 512, "max_queue": NUM_REQUESTS})
    for first in range(0, NUM_REQUESTS, 64):
        for request in range(first, min(first + 64, NUM_REQUESTS)):
            params = events.Params(temperature=temperature, top_k=top_k, seed=FIRST_SEED + request)
            # Four tokens, so that the third may still be drafted.
            engine.submit(request, PROMPT, max_tokens=4, params=params)
        engine.run()
    counts = torch.zeros(VOCAB, VOCAB, VOCAB)
    for request in range(NUM_REQUESTS):
        one, two, three, _ = engine.tokens[request]
        counts[one, two, three] += 1
    accepted = sum(engine.ended[request][0].counts.num_accepted for request in range(NUM_REQUESTS))
    return counts, accepted


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """The statistic over its critical value at 0.1 %, cells expected fewer than 5 times taken together."""
    mean = (probabilities * counts.sum()).flatten()
    seen = counts.flatten()
    rare = mean < 5
    mean = torch.cat((mean[~rare], mean[rare].sum().reshape(1)))
    seen = torch.cat((seen[~rare], seen[rare].sum().reshape(1)))
    if mean[-1] < 1:
        assert seen[-1] < 20, "tokens that the filters exclude came out"
        mean, seen = mean[:-1], seen[:-1]
    freedom = len(mean) - 1
    critical = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson and Hilferty
    return float(((seen - mean) ** 2 / mean).sum() / critical)


@pytest.mark.parametrize(
    ("acceptance", "draft_len"), [("rejection", 1), ("rejection", 2), ("rejection", 3), ("coupled", 0), ("coupled", 3)]
)
def test_what_comes_out_has_the_targets_distribution(pair: tuple[Path, Path], acceptance: str, draft_len: int) -> None:
    counts, accepted = observed(pair, acceptance, draft_len, temperature=1.0, top_k=0)
    assert chi_square(counts, expected(pair[0], 1.0, 0)) < 1
    assert (accepted > 300) == (draft_len > 0)


def test_filters_hold_in_rejection_too(pair: tuple[Path, Path]) -> None:
    counts, _ = observed(pair, "rejection", 3, temperature=0.7, top_k=3)
    exact = expected(pair[0], 0.7, 3)
    assert counts[exact == 0].sum() == 0
    assert chi_square(counts, exact) < 1


def test_the_check_itself_notices_a_wrong_distribution(pair: tuple[Path, Path]) -> None:
    counts, _ = observed(pair, "rejection", 3, temperature=1.0, top_k=0)
    assert chi_square(counts, expected(pair[0], 1.15, 0)) > 1


def test_a_greedy_row_is_exact_in_rejection_mode(pair: tuple[Path, Path]) -> None:
    outputs = []
    for draft_len in (0, 3):
        made = TorchBackend()
        made.load(wire.Init(1, str(pair[0]), str(pair[1]), 4, 32, 64, acceptance="rejection"))
        made.warm()
        engine = bench(f"fixed:{draft_len}", made=made)
        for request in range(4):  # greedy rows beside sampled ones
            params = events.Params(temperature=float(request % 2), seed=request)
            engine.submit(request, PROMPT, max_tokens=12, params=params)
        engine.run()
        outputs.append([engine.tokens[0], engine.tokens[2]])
    assert outputs[0] == outputs[1]
