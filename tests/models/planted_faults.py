"""Faults of a pair on disk, one by one: how each is planted, and the line of the refusal that tells of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from checkpoint_support import INDEX, SHARDS, Content, shards_of, weight_map_of, write, write_shards
from torch import Tensor


@attrs.define
class Written:
    """A pair in the making: the target in two shards, with what is done to the files at the end."""

    content: Content
    shards: dict[str, dict[str, Tensor]]
    weight_map: dict[str, str]
    cut: list[str] = attrs.Factory(list)
    generation: str = "{}"


@attrs.frozen
class Fault:
    """A fault at a place (one fault a place), and the line that tells of it."""

    place: str
    plant: Callable[[Written], object]
    line: str


def key(role: str, name: str, value: Any, expectation: str) -> Fault:
    """A key of config.json with a bad value; None takes it out."""

    def plant(written: Written) -> None:
        config = getattr(written.content, role)
        config.pop(name, None)
        if value is not None:
            config[name] = value

    return Fault(
        f"{role}.{name}", plant, f"{role}: {name} = {'absent' if value is None else repr(value)}: {expectation}"
    )


def tensor(role: str, name: str, value: Tensor | None, line: str) -> Fault:
    def plant(written: Written) -> None:
        tensors = written.shards[SHARDS[0]] if role == "target" else written.content.drafter_tensors
        listed = written.weight_map if role == "target" else {}
        tensors.pop(name, None)
        listed.pop(name, None)
        if value is not None:
            tensors[name] = value
            listed[name] = SHARDS[0]

    return Fault(f"{role}.{name}", plant, f"{role}: {line}")


Q_NORM = "model.layers.0.self_attn.q_norm.weight"
TAPS = "expected ids in -1..2 (-1 the embedding; the last layer is refused)"
ASCENDING = "expected strictly increasing layer ids"
LIST = "expected a non-empty list of integers"
FAULTS = [
    key("target", "hidden_act", "gelu", "expected 'silu'"),
    key("target", "model_type", "llama", "expected 'qwen3'"),
    key("target", "rms_norm_eps", 0, "expected a positive number"),
    key("target", "intermediate_size", None, "expected a positive integer"),
    key("target", "max_position_embeddings", "256", "expected a positive integer"),
    key("target", "use_sliding_window", True, "expected false: a target with sliding-window layers is not supported"),
    key("target", "eos_token_id", [1, 64], "expected ids in 0..63"),
    key("target", "dtype", "float8_e4m3fn", "expected one of float32, bfloat16, float16"),
    key("target", "torch_dtype", "float16", "expected '"),
    key("target", "layer_types", ["sliding_attention"] * 4, "expected 4 x full_attention"),
    key("target", "quantization_config", {"bits": 4}, "expected none: quantised weights are not supported"),
    *(
        key("drafter", "mask_token_id", value, expectation)
        for value, expectation in (
            (None, "expected an integer"),
            ("63", "expected an integer"),
            (64, "expected an id in 0..63"),
            (-1, "expected an id in 0..63"),
        )
    ),
    *(
        key("drafter", "target_layer_ids", value, expectation)
        for value, expectation in (
            (None, LIST),
            ([], LIST),
            ([0, 1.5], LIST),
            ([2, 0], ASCENDING),
            ([1, 1], ASCENDING),
            ([0, 3], TAPS),
            ([0, 9], TAPS),
            ([-2, 0], TAPS),
        )
    ),
    *(
        key("drafter", "block_size", value, "expected 2 or more: a block is the anchor and at least one mask")
        for value in (1, 0, -4)
    ),
    key("drafter", "block_size", None, "expected an integer"),
    key("drafter", "markov_rank", -1, "expected 0 or more"),
    key("drafter", "markov_rank", "6", "expected an integer"),
    key("drafter", "markov_head_type", None, "expected one of vanilla, gated, rnn"),
    key("drafter", "markov_head_type", "lstm", "expected one of vanilla, gated, rnn"),
    key("drafter", "enable_confidence_head", "yes", "expected true or false"),
    key("drafter", "confidence_head_with_markov", 1, "expected true or false"),
    key("drafter", "num_target_layers", 5, "expected 4, as the target has"),
    key("drafter", "num_target_layers", None, "expected a positive integer"),
    key("drafter", "head_dim", None, "expected a positive integer"),
    key("drafter", "hidden_size", 32.0, "expected a positive integer"),
    key("drafter", "vocab_size", None, "expected a positive integer"),
    key(
        "drafter",
        "tie_word_embeddings",
        True,
        "expected false: a drafter's matrices are copies of its target's, one by one",
    ),
    tensor("target", "model.norm.weight", None, "model.norm.weight: expected [32], found no such tensor"),
    tensor("target", Q_NORM, torch.ones(9), f"{Q_NORM}: expected [8], found [9] in {SHARDS[0]}"),
    tensor("target", Q_NORM, torch.ones(8, 1), f"{Q_NORM}: expected [8], found [8, 1] in {SHARDS[0]}"),
    tensor(
        "target",
        "model.layers.1.input_layernorm.weight",
        torch.ones(32, dtype=torch.int8),
        f"model.layers.1.input_layernorm.weight: expected one of F32, BF16, F16, found I8 in {SHARDS[0]}",
    ),
    tensor(
        "target",
        "model.rotary_emb.inv_freq",
        torch.ones(4),
        f"model.rotary_emb.inv_freq: unexpected tensor [4] in {SHARDS[0]}",
    ),
    tensor("target", "mtp.0.norm.weight", torch.ones(4), "mtp.* (1 tensors): expected "),
    tensor("drafter", "norm.weight", None, "norm.weight: expected ["),
    tensor("drafter", "extra", torch.ones(2), "extra: unexpected tensor [2] in model.safetensors"),
    tensor("drafter", "d2t", torch.ones(2), "d2t: expected "),
    tensor(
        "drafter",
        "layers.1.self_attn.k_norm.weight",
        torch.ones(8, dtype=torch.float64),
        "layers.1.self_attn.k_norm.weight: expected one of F32, BF16, F16, found F64 in model.safetensors",
    ),
    Fault(
        "generation",
        lambda written: setattr(written, "generation", "{"),
        "target: generation_config.json: expected readable JSON, found ",
    ),
    Fault(
        "generation",
        lambda written: setattr(written, "generation", '{"eos_token_id": 64}'),
        "target: generation_config.eos_token_id = 64: expected ids in 0..63",
    ),
    Fault(
        "lost",
        lambda written: written.weight_map.update({"gone": SHARDS[0]}),
        f"target: gone: expected in {SHARDS[0]} by {INDEX}, found no such tensor",
    ),
    Fault(
        "stray",
        lambda written: written.shards[SHARDS[0]].update({"stray": torch.ones(3)}),
        f"target: stray: expected not in {SHARDS[0]} by {INDEX}, found [3]",
    ),
    Fault(
        "cut",
        lambda written: written.cut.append(SHARDS[1]),
        f"target: {SHARDS[1]}: expected a readable safetensors file, found ",
    ),
]


def damaged(sound: Content, faults: list[Fault], folder: Path) -> tuple[Path, Path]:
    made = Content(dict(sound.target), dict(sound.drafter), dict(sound.target_tensors), dict(sound.drafter_tensors))
    shards = shards_of(made.target_tensors)
    written = Written(made, shards, weight_map_of(shards))
    for fault in faults:
        fault.plant(written)
    target, drafter = write(made, folder)
    write_shards(target, written.shards, written.weight_map)
    (target / "generation_config.json").write_text(written.generation)
    for name in written.cut:
        path = target / name
        path.write_bytes(path.read_bytes()[:-1])
    return target, drafter
