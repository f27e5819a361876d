"""The fast path equals the reference twin, however its work is cut into chunks and batches."""

import attrs
import pytest
import torch
from dsparkd.models.checkpoint import drafter_shapes, load_drafter, load_target, target_shapes
from dsparkd.models.drafter import DSparkDrafter
from dsparkd.models.layers import RotaryTable, grouped_attention
from dsparkd.models.reference import ReferenceDrafter, ReferenceTarget, attention
from dsparkd.models.shipped import shipped_pair
from dsparkd.models.target import Qwen3Target
from dsparkd.statemachine.errors import LocalError
from model_support import CPU, NAMES, TOLERANCE, Pair, TinyCache, assert_twins_agree, golden, shipped

PROMPT = [5, 80, 41, 3, 200, 17, 90, 90, 2, 131, 64, 7, 33]


def pairs() -> list[str]:
    return [*NAMES, "shipped"]


def pair_of(name: str) -> Pair:
    return shipped() if name == "shipped" else golden(name).pair


@pytest.mark.parametrize("name", pairs())
def test_fast_equals_reference(name: str) -> None:
    assert_twins_agree(pair_of(name), PROMPT)


def random_pair(scaling: dict[str, float | str] | None) -> Pair:
    """Small random weights with biases everywhere, which no golden folder has."""
    source = golden("gated").pair
    changes = {"attention_bias": True, "rope_scaling": scaling, "num_layers": 3}
    target_config = attrs.evolve(source.target.config, **changes)
    config = attrs.evolve(source.drafter.config, **changes | {"num_layers": 2, "target_layer_ids": (-1, 1)})
    make = torch.Generator().manual_seed(5)
    weights, own = (
        {name: torch.randn(shape, generator=make) * 0.2 for name, shape in shapes.items()}
        for shapes in (target_shapes(target_config), drafter_shapes(config))
    )
    target = Qwen3Target(target_config, weights, dtype=torch.float32, device=CPU)
    drafter = DSparkDrafter(config, own, dtype=torch.float32, device=CPU)
    target.set_taps(config.target_layer_ids)
    target.prepare(64)
    drafter.prepare(64)
    twin = ReferenceTarget(target_config, weights, taps=config.target_layer_ids)
    return Pair(twin, ReferenceDrafter(config, own), target, drafter)


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "linear", "factor": 2.0}, YARN, LLAMA3], ids=["plain", "linear", "yarn", "llama3"]
)
@torch.inference_mode()
def test_biases_and_scaled_rotary_embeddings_agree_in_both_forms(scaling: dict[str, float | str] | None) -> None:
    pair = random_pair(scaling)
    cache = TinyCache(pair)
    (logits,), (features,) = cache.run([PROMPT], [0])
    expected, expected_features = pair.reference_target.logits_and_features(PROMPT)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
    cache.write_context(0, features, 0)
    hidden, _ = cache.propose([9], [len(PROMPT)])
    draft = pair.reference_drafter.propose(expected_features, 9, len(PROMPT), lambda _, row: int(row.argmax()))
    torch.testing.assert_close(hidden[0], draft.hidden, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("cuts", [[1] * 13, [4, 9], [12, 1], [5, 5, 3]])
def test_a_prompt_in_chunks_equals_the_whole_prompt(cuts: list[int]) -> None:
    pair = golden("vanilla").pair
    whole, parts = TinyCache(pair), TinyCache(pair)
    (logits,), (features,) = whole.run([PROMPT], [0])
    whole.write_context(0, features, 0)
    start = 0
    for width in cuts:
        (last,), (piece,) = parts.run([PROMPT[start : start + width]], [start])
        parts.write_context(0, piece, start)
        start += width
    torch.testing.assert_close(last[-1], logits[-1], atol=TOLERANCE, rtol=0)
    for one, other in zip(whole.propose([9], [13]), parts.propose([9], [13]), strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)
        else:
            assert one.token_ids.equal(other.token_ids)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_different_lengths_in_one_batch_equal_each_row_alone(name: str) -> None:
    pair = golden(name).pair
    prompts = [PROMPT, PROMPT[:4], PROMPT[6:]]
    batch = TinyCache(pair, rows=3)
    logits, features = batch.run(prompts, [0, 0, 0])
    for row, piece in enumerate(features):
        batch.write_context(row, piece, 0)
    hidden, proposal = batch.propose([9, 8, 7], [len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        alone = TinyCache(pair)
        (own,), (piece,) = alone.run([prompt], [0])
        alone.write_context(0, piece, 0)
        torch.testing.assert_close(logits[row], own, atol=TOLERANCE, rtol=0)
        single, solo = alone.propose([9 - row], [len(prompt)])
        torch.testing.assert_close(hidden[row], single[0], atol=TOLERANCE, rtol=0)
        assert proposal.token_ids[row].equal(solo.token_ids[0])


@torch.inference_mode()
def test_a_windowed_context_equals_the_windowed_reference() -> None:
    pair = golden("gated").pair
    cache = TinyCache(pair)
    _, (features,) = cache.run([PROMPT], [0])
    cache.write_context(0, features, 0)
    cache.context_keys[:, 0, :, :8] = torch.nan  # out of the window: must never be read
    hidden, _ = cache.propose([9], [13], window=5)
    pair.reference_drafter.window = 5
    try:
        draft = pair.reference_drafter.propose(features, 9, 13, lambda _, row: int(row.argmax()))
    finally:
        pair.reference_drafter.window = None
    torch.testing.assert_close(hidden[0], draft.hidden, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["boolean", "additive", "none"])
def test_grouped_attention_equals_one_head_at_a_time(kind: str) -> None:
    torch.manual_seed(0)
    cache = torch.randn(3, 2, 20, 8)  # [rows, G, room, D], read in place
    q, length = torch.randn(3, 4, 6, 8), 11
    keys, values = cache[:, :, :length], cache.flip(2)[:, :, :length]
    allowed = torch.rand(3, 4, length) < 0.7
    allowed[..., 0] = True
    mask = {"boolean": allowed, "additive": torch.where(allowed, 0.0, -torch.inf), "none": None}[kind]
    found = grouped_attention(q, keys, values, mask)
    for row in range(3):
        seen = None if kind == "none" else allowed[row]
        expected = attention(q[row], keys[row].transpose(0, 1), values[row].transpose(0, 1), seen)
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)


def test_a_drafter_shares_its_targets_embedding_memory() -> None:
    pair = golden("block7").pair
    assert pair.drafter.shares_target_embeddings
    assert pair.drafter.embed_tokens.data_ptr() == pair.target.embed_tokens.data_ptr()
    assert pair.drafter.lm_head.data_ptr() == pair.target.lm_head.data_ptr()


@torch.inference_mode()
def test_bfloat16_runs_and_stays_near_float32() -> None:
    paths = shipped_pair()
    target = load_target(paths.target, dtype=torch.bfloat16, device=CPU)
    drafter = load_drafter(paths.drafter, target, dtype=torch.bfloat16, device=CPU)
    target.set_taps(drafter.config.target_layer_ids)
    target.prepare(64)
    drafter.prepare(64)
    wide = shipped()
    caches = [TinyCache(wide), TinyCache(Pair(wide.reference_target, wide.reference_drafter, target, drafter))]
    for name in ("keys", "values", "context_keys", "context_values"):
        setattr(caches[1], name, getattr(caches[1], name).bfloat16())
    (exact,), (near,) = (cache.run([PROMPT], [0])[0] for cache in caches)
    assert near.dtype == torch.float32
    assert (exact.softmax(-1) - near.softmax(-1)).abs().max() < 0.05
    caches[1].write_context(0, caches[1].run([PROMPT], [0])[1][0], 0)
    assert caches[1].propose([9], [len(PROMPT)])[1].token_ids.shape == (1, 7)


def test_running_before_prepare_is_our_own_error() -> None:
    fast = golden("vanilla").pair.target
    fresh = Qwen3Target(fast.config, golden("vanilla").pair.reference_target.tensors, dtype=torch.float32, device=CPU)
    with pytest.raises(LocalError):
        fresh.forward(torch.tensor([1]), torch.tensor([0]), lambda *_: torch.empty(0))


def test_scaled_rotary_tables_follow_their_definitions() -> None:
    plain = golden("vanilla").pair.target.config
    linear = attrs.evolve(plain, rope_scaling={"rope_type": "linear", "factor": 4.0})
    one, four = (RotaryTable(config, 64, CPU, torch.float32).table for config in (plain, linear))
    torch.testing.assert_close(four[40], one[10])
    scaling = {**YARN, "attention_factor": 1.0}
    yarn = RotaryTable(attrs.evolve(plain, rope_scaling=scaling), 64, CPU, torch.float32).table
    # The slowest pair is interpolated; with 32 trained positions no pair turns 32 times, so none is left as it was.
    torch.testing.assert_close(yarn[40, 0, 0, 7], one[10, 0, 0, 7])
