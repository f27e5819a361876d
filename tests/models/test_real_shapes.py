"""The released sizes: every name and shape of target and drafter, and what they add up to. Nothing is allocated."""

import math
from pathlib import Path

import attrs
import pytest
import torch
from checkpoint_support import RELEASED, write_released_configs
from dsparkd.models.config import DrafterConfig, TargetConfig, load_drafter_config, load_target_config
from dsparkd.models.drafter import DSparkDrafter
from dsparkd.models.shapes import SHAREABLE, Shapes, drafter_shapes, num_elements, target_shapes
from dsparkd.models.target import Qwen3Target
from dsparkd.worker.inspect import Dtype, slot_facts
from torch import Tensor

META = torch.device("meta")
VOCAB, RANK, KV = 151936, 256, 8 * 128
TOKENS = 11


@attrs.frozen
class Sizes:
    """Published figures, in millions of parameters, gigabytes and bytes."""

    layer: float
    fc: float
    shared: float
    own: int
    file_gb: float
    target_row: int
    without_embedding: float  # of the target, in billions, as its model card says


SIZES = {
    "4B": Sizes(100.9, 32.8, 777.9, 615, 2.79, 147_456, 3.6),
    "8B": Sizes(192.9, 83.9, 1244.7, 1126, 4.74, 147_456, 6.95),
    "14B": Sizes(330.3, 131.1, 1555.8, 1860, 6.83, 163_840, 13.2),
}
DRAFTER_ROW, MARKOV = 20_480, 77.8


def configs(folder: Path, name: str) -> tuple[TargetConfig, DrafterConfig]:
    target, drafter = write_released_configs(folder, name)
    config = load_target_config(target)
    return config, load_drafter_config(drafter, config)


def layer_table(d: int, inner: int, heads: int) -> Shapes:
    """One layer of either model, as the format has it."""
    return {
        "self_attn.q_proj.weight": (heads * 128, d),
        "self_attn.k_proj.weight": (KV, d),
        "self_attn.v_proj.weight": (KV, d),
        "self_attn.o_proj.weight": (d, heads * 128),
        "self_attn.q_norm.weight": (128,),
        "self_attn.k_norm.weight": (128,),
        "mlp.gate_proj.weight": (inner, d),
        "mlp.up_proj.weight": (inner, d),
        "mlp.down_proj.weight": (d, inner),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
    }


def target_table(name: str) -> Shapes:
    size = RELEASED[name]
    layer, d = layer_table(size.hidden, size.inner, size.heads), size.hidden
    layers = {f"model.layers.{n}.{key}": shape for n in range(size.layers) for key, shape in layer.items()}
    ends: Shapes = {"model.embed_tokens.weight": (VOCAB, d), "model.norm.weight": (d,), "lm_head.weight": (VOCAB, d)}
    return layers | ends


def drafter_table(name: str) -> Shapes:
    size = RELEASED[name]
    layer, d = layer_table(size.hidden, size.inner, size.heads), size.hidden
    layers = {f"layers.{n}.{key}": shape for n in range(5) for key, shape in layer.items()}
    return layers | {
        "embed_tokens.weight": (VOCAB, d),
        "norm.weight": (d,),
        "hidden_norm.weight": (d,),
        "fc.weight": (d, 5 * d),
        "lm_head.weight": (VOCAB, d),
        "markov_head.markov_w1.weight": (VOCAB, RANK),
        "markov_head.markov_w2.weight": (VOCAB, RANK),
        "confidence_head.proj.weight": (1, d + RANK),
        "confidence_head.proj.bias": (1,),
    }


def on_meta(shapes: Shapes) -> dict[str, Tensor]:
    return {name: torch.empty(shape, dtype=torch.bfloat16, device=META) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", RELEASED)
def test_every_tensor_of_a_released_pair_has_its_name_and_shape(tmp_path: Path, name: str) -> None:
    target, drafter = configs(tmp_path, name)
    assert target_shapes(target) == target_table(name)
    assert drafter_shapes(drafter) == drafter_table(name)
    assert target.tie_word_embeddings == (name == "4B")
    assert (drafter.target_layer_ids, drafter.block_size, drafter.mask_token_id) == (RELEASED[name].taps, 7, 151669)


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_pair_is_built_and_run_on_the_meta_device(tmp_path: Path, name: str) -> None:
    target_config, config = configs(tmp_path, name)
    width = target_config.hidden_size
    target = Qwen3Target(target_config, on_meta(target_table(name)), dtype=torch.bfloat16, device=META)
    tensors = on_meta(drafter_table(name))
    tensors["embed_tokens.weight"], tensors["lm_head.weight"] = target.embed_tokens, target.lm_head
    drafter = DSparkDrafter(config, tensors, dtype=torch.bfloat16, device=META, shares_target_embeddings=True)
    target.set_taps(config.target_layer_ids)
    target.prepare(64)
    drafter.prepare(64)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape[-2:] == (target_config.num_heads, 128)
        assert k.shape == v.shape == (*q.shape[:-2], 8, 128)
        return q.flatten(-2)

    positions = torch.arange(TOKENS, device=META)
    hidden, features = target.forward(positions, positions, attend)
    assert (hidden.shape, features.shape) == ((TOKENS, width), (TOKENS, 5 * width))
    assert features.dtype == torch.bfloat16
    assert target.logits(hidden[:2]).shape == (2, VOCAB)
    keys, values = drafter.context(features, positions)
    assert keys.shape == values.shape == (5, TOKENS, 8, 128)
    rows = torch.zeros(3, dtype=torch.int64, device=META)
    block = drafter.block(rows, rows, attend)
    assert block.shape == (3, 7, width)
    proposal = drafter.propose(block, rows, lambda _, logits: logits.argmax(-1))
    assert proposal.token_ids.shape == (3, 7)
    assert proposal.confidence_logits is not None
    assert proposal.confidence_logits.shape == (3, 7)


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_files_and_bytes_a_token_are_the_published_ones(tmp_path: Path, name: str) -> None:
    target, config = configs(tmp_path, name)
    sizes, shapes = SIZES[name], drafter_shapes(config)
    million = 1e6

    def part(start: str) -> float:
        return sum(math.prod(shape) for key, shape in shapes.items() if key.startswith(start)) / million

    own = num_elements(shapes, without=SHAREABLE)
    assert round(part("layers.0."), 1) == sizes.layer
    assert round(part("fc."), 1) == sizes.fc
    assert round(part("markov_head."), 1) == MARKOV
    assert round((num_elements(shapes) - own) / million, 1) == sizes.shared
    assert math.floor(own / million + 0.5) == sizes.own
    assert round(2 * num_elements(shapes) / 1e9, 2) == sizes.file_gb
    embedding = ("model.embed_tokens.weight", "lm_head.weight")
    billions = num_elements(target_shapes(target), without=embedding) / 1e9
    assert billions == pytest.approx(sizes.without_embedding, rel=0.01)
    facts = slot_facts(target, config, max_model_len=1000, dtype=Dtype.bfloat16)
    assert (facts["target_bytes_per_token"], facts["drafter_bytes_per_token"]) == (sizes.target_row, DRAFTER_ROW)
    waiting = (1 << 20) // (5 * 2 * target.hidden_size) * 5 * 2 * target.hidden_size  # a MiB of whole rows
    assert facts["bytes"] == 1008 * (sizes.target_row + DRAFTER_ROW) + waiting
