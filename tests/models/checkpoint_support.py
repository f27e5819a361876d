"""Checkpoints of a few kilobytes, written whole, in parts or damaged, and the released sizes as configurations."""

import json
from pathlib import Path
from typing import Any

import attrs
import torch
from dsparkd.models.config import load_drafter_config, load_target_config
from dsparkd.models.shapes import Shapes, drafter_shapes, target_shapes
from safetensors.torch import save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

_SHARED: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "dtype": "float32",
}
TARGET = {**_SHARED, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4}
DRAFTER = {
    **_SHARED,
    "architectures": ["Qwen3DSparkModel"],
    "num_hidden_layers": 2,
    "num_target_layers": 4,
    "target_layer_ids": [0, 2],
    "block_size": 4,
    "mask_token_id": 63,
    "markov_rank": 6,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
# Names that the drafter copies from its target.
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}


@attrs.frozen
class Content:
    """A pair before it is written: configurations and tensors, all of them free to change."""

    target: dict[str, Any]
    drafter: dict[str, Any]
    target_tensors: dict[str, Tensor]
    drafter_tensors: dict[str, Tensor]


def random_tensors(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=make) * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0)
        for name, shape in shapes.items()
    }


def content(folder: Path, *, target: dict[str, Any] | None = None, drafter: dict[str, Any] | None = None) -> Content:
    """Random weights for the small pair with the given changes; a key changed to None is left out."""
    configs = [{**TARGET, **(target or {})}, {**DRAFTER, **(drafter or {})}]
    configs = [{key: value for key, value in config.items() if value is not None} for config in configs]
    for config, name in zip(configs, ("target", "drafter"), strict=True):
        (folder / name).mkdir(exist_ok=True, parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    first = load_target_config(folder / "target")
    second = load_drafter_config(folder / "drafter", first)
    tensors = random_tensors(target_shapes(first), 1)
    if first.tie_word_embeddings:
        del tensors["lm_head.weight"]
    own = random_tensors(drafter_shapes(second), 2)
    for name, source in COPIES.items():
        own[name] = tensors.get(source, tensors["model.embed_tokens.weight"]).clone()
    return Content(configs[0], configs[1], tensors, own)


def write(made: Content, folder: Path) -> tuple[Path, Path]:
    """Both checkpoints, each in one file -> the folders of target and drafter."""
    for name, config, tensors in (
        ("target", made.target, made.target_tensors),
        ("drafter", made.drafter, made.drafter_tensors),
    ):
        (folder / name).mkdir(exist_ok=True, parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / name / "model.safetensors")
    return folder / "target", folder / "drafter"


def write_pair(folder: Path, **changes: Any) -> tuple[Path, Path]:
    return write(content(folder, **changes), folder)


def shards_of(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The last layer in a shard of its own."""
    late = {name for name in tensors if name.startswith("model.layers.3.")}
    return {
        SHARDS[0]: {name: value for name, value in tensors.items() if name not in late},
        SHARDS[1]: {name: tensors[name] for name in sorted(late)},
    }


def write_shards(folder: Path, shards: dict[str, dict[str, Tensor]], weight_map: dict[str, Any]) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def weight_map_of(shards: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    return {key: name for name, tensors in shards.items() for key in tensors}


@attrs.frozen
class Released:
    """Sizes of a released pair; layers are the target's."""

    hidden: int
    inner: int
    heads: int
    layers: int
    taps: tuple[int, ...]
    tied: bool


RELEASED = {
    "4B": Released(2560, 9728, 32, 36, (1, 9, 17, 25, 33), tied=True),
    "8B": Released(4096, 12288, 32, 36, (1, 9, 17, 25, 33), tied=False),
    "14B": Released(5120, 17408, 40, 40, (1, 10, 19, 28, 37), tied=False),
}


def write_released_configs(folder: Path, name: str) -> tuple[Path, Path]:
    """config.json of a released target and of its drafter, as transformers 4 wrote them."""
    size = RELEASED[name]
    shared = {
        "model_type": "qwen3",
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_attention_heads": size.heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "attention_bias": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "sliding_window": None,
    }
    target = {
        **shared,
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": size.layers,
        "tie_word_embeddings": size.tied,
        "eos_token_id": 151645,
    }
    drafter = {
        **shared,
        "architectures": ["Qwen3DSparkModel"],
        "num_hidden_layers": 5,
        "num_target_layers": size.layers,
        "target_layer_ids": list(size.taps),
        "layer_types": ["full_attention"] * 5,
        "tie_word_embeddings": False,
        "block_size": 7,
        "mask_token_id": 151669,
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "num_anchors": 512,
    }
    for role, config in (("target", target), ("drafter", drafter)):
        (folder / role).mkdir(exist_ok=True, parents=True)
        (folder / role / "config.json").write_text(json.dumps(config))
    return folder / "target", folder / "drafter"
