"""Weights on disk to models in memory: names and shapes as data, everything wrong in one list.

Owns the key names of a Qwen3 target and a DSpark drafter and the safetensors files (single or sharded). Never
computes with a weight. Called by the worker at start and by tests.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..statemachine.errors import refuse_all
from .config import BAD_CHECKPOINT, DrafterConfig, ModelConfig, TargetConfig, load_drafter_config, load_target_config
from .drafter import DSparkDrafter
from .fields import read_json
from .target import Qwen3Target

Shapes = dict[str, tuple[int, ...]]
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "BF16", "F16")


def load_target(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Qwen3Target:
    """A target ready for `prepare`. Raises Refused(BAD_CHECKPOINT) naming everything that is wrong."""
    config, tensors = read_target(folder)
    return Qwen3Target(config, tensors, dtype=dtype, device=device)


def load_drafter(folder: Path, target: Qwen3Target, *, dtype: torch.dtype, device: torch.device) -> DSparkDrafter:
    """A drafter for `target`, sharing its embedding and output matrix where the file's are equal or absent.

    Raises Refused(BAD_CHECKPOINT) naming everything that is wrong.
    """
    config, tensors = read_drafter(folder, target.config)
    shared = {"embed_tokens.weight": target.embed_tokens, "lm_head.weight": target.lm_head}
    shares = True
    for name, kept in shared.items():
        own = tensors.get(name)
        if own is None or torch.equal(own.to(kept), kept):
            tensors[name] = kept
        else:
            shares = False
    shares = shares and all(kept.dtype == dtype and kept.device == device for kept in shared.values())
    return DSparkDrafter(config, tensors, dtype=dtype, device=device, shares_target_embeddings=shares)


def read_target(folder: Path) -> tuple[TargetConfig, dict[str, Tensor]]:
    """Configuration and tensors by name, on the CPU in the file's dtype; `lm_head.weight` is always there."""
    config = load_target_config(folder)
    tied = config.tie_word_embeddings
    tensors = read_tensors(folder, target_shapes(config), optional=("lm_head.weight",) if tied else ())
    if tied:
        embedding = tensors["model.embed_tokens.weight"]
        if not torch.equal(tensors.setdefault("lm_head.weight", embedding), embedding):
            problem = "lm_head.weight: expected model.embed_tokens.weight, as tie_word_embeddings is true"
            refuse_all(f"tensors in {folder}", [problem], BAD_CHECKPOINT)
        tensors["lm_head.weight"] = embedding
    return config, tensors


def read_drafter(folder: Path, target: TargetConfig) -> tuple[DrafterConfig, dict[str, Tensor]]:
    """Configuration and tensors by name, on the CPU; `embed_tokens` and `lm_head` may be absent from the file."""
    config = load_drafter_config(folder, target)
    return config, read_tensors(folder, drafter_shapes(config), optional=("embed_tokens.weight", "lm_head.weight"))


def target_shapes(config: TargetConfig) -> Shapes:
    """Every tensor of a Qwen3ForCausalLM file and its shape. With tied embeddings `lm_head.weight` may be absent."""
    return {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        **_layer_shapes("model.layers", config),
        "model.norm.weight": (config.hidden_size,),
        "lm_head.weight": (config.vocab_size, config.hidden_size),
    }


def drafter_shapes(config: DrafterConfig) -> Shapes:
    """Every tensor of a Qwen3DSparkModel file and its shape; embedding and output matrix may be absent."""
    width, rank, vocab = config.hidden_size, config.markov_rank, config.vocab_size
    shapes: Shapes = {
        "embed_tokens.weight": (vocab, width),
        **_layer_shapes("layers", config),
        "norm.weight": (width,),
        "hidden_norm.weight": (width,),
        "fc.weight": (width, len(config.target_layer_ids) * width),
        "lm_head.weight": (vocab, width),
    }
    if rank:
        shapes |= {"markov_head.markov_w1.weight": (vocab, rank), "markov_head.markov_w2.weight": (vocab, rank)}
    if config.markov_head_type == "gated":
        shapes |= {"markov_head.gate_proj.weight": (rank, width + rank), "markov_head.gate_proj.bias": (rank,)}
    if config.markov_head_type == "rnn":
        shapes |= {"markov_head.joint_proj.weight": (3 * rank, 2 * rank + width)}
        shapes |= {"markov_head.joint_proj.bias": (3 * rank,)}
    if config.enable_confidence_head:
        read = width + rank if config.confidence_head_with_markov else width
        shapes |= {"confidence_head.proj.weight": (1, read), "confidence_head.proj.bias": (1,)}
    return shapes


def _layer_shapes(prefix: str, config: ModelConfig) -> Shapes:
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_heads * head, config.num_kv_heads * head
    outputs = {"q": query, "k": kv, "v": kv, "o": width}
    layer: Shapes = {f"self_attn.{name}_proj.weight": (rows, width) for name, rows in outputs.items() if name != "o"}
    layer["self_attn.o_proj.weight"] = (width, query)
    if config.attention_bias:
        layer |= {f"self_attn.{name}_proj.bias": (rows,) for name, rows in outputs.items()}
    layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    layer |= {"mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width)}
    layer |= {"mlp.down_proj.weight": (width, inner)}
    layer |= {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,)}
    return {f"{prefix}.{index}.{name}": shape for index in range(config.num_layers) for name, shape in layer.items()}


def read_tensors(
    folder: Path, expected: Mapping[str, tuple[int, ...]], *, optional: Collection[str] = ()
) -> dict[str, Tensor]:
    """The tensors of `folder` by name, on the CPU, in the file's dtype.

    expected: name -> shape, optional ones included. Reads model.safetensors, or the shards that
    model.safetensors.index.json lists. Missing, unexpected, misshaped and quantised tensors and unreadable files are
    refused in one list, Refused(BAD_CHECKPOINT).
    """
    problems: list[str] = []
    tensors: dict[str, Tensor] = {}
    listed, missing_files = _files(folder, problems), False
    for name, keys in listed.items():
        try:
            with safe_open(str(folder / name), framework="pt") as opened:
                _read_file(opened, name, keys, expected, tensors, problems)
        except (SafetensorError, OSError) as error:
            missing_files = True
            problems.append(f"{name}: expected a readable safetensors file, found {error}")
    # With a file unreadable the absence of its tensors is no news.
    if listed and not missing_files:
        noted = {problem.split(":")[0] for problem in problems}
        absent = [key for key in expected if key not in tensors and key not in optional and key not in noted]
        problems += [f"{key}: expected {list(expected[key])}, found no such tensor" for key in absent]
    refuse_all(f"tensors in {folder}", problems, BAD_CHECKPOINT)
    return tensors


def _files(folder: Path, problems: list[str]) -> dict[str, set[str] | None]:
    """File name -> the keys it must hold, or None for "whatever is in it"."""
    if (folder / SINGLE).exists():
        return {SINGLE: None}
    if not (folder / INDEX).exists():
        problems.append(f"{SINGLE}: expected it or {INDEX} in {folder}, found neither")
        return {}
    weight_map = read_json(folder / INDEX, problems).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        problems.append(f"{INDEX}: expected a non-empty object weight_map")
        return {}
    files: dict[str, set[str] | None] = {}
    for key, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name:
            problems.append(f"{INDEX}: {key} = {name!r}: expected a file name in the same folder")
            continue
        keys = files.setdefault(name, set())
        if keys is not None:
            keys.add(key)
    return files


def _read_file(
    opened: Any,  # safetensors ships no types
    name: str,
    keys: set[str] | None,
    expected: Mapping[str, tuple[int, ...]],
    tensors: dict[str, Tensor],
    problems: list[str],
) -> None:
    found = set(opened.keys())
    for key in sorted((keys or set()) - found):
        problems.append(f"{key}: expected in {name} by {INDEX}, found no such tensor")
    for key in sorted(found):
        view = opened.get_slice(key)
        shape, kind = list(view.get_shape()), view.get_dtype()
        if key not in expected or (keys is not None and key not in keys):
            problems.append(f"{key}: unexpected tensor {shape} in {name}")
        elif shape != list(expected[key]):
            problems.append(f"{key}: expected {list(expected[key])}, found {shape} in {name}")
        elif kind not in FLOATS:
            problems.append(f"{key}: expected one of {', '.join(FLOATS)}, found {kind} in {name}")
        else:
            tensors[key] = opened.get_tensor(key)
