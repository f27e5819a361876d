"""A checkpoint that cannot be served is refused once, with everything that is wrong with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dsparkd.models.checkpoint import load_drafter, load_target, read_drafter, read_target
from dsparkd.models.config import load_drafter_config, load_target_config
from dsparkd.models.shipped import shipped_pair
from dsparkd.statemachine.errors import Refused
from model_support import CPU, GOLDEN
from safetensors.torch import load_file, save_file

SOURCE = GOLDEN / "vanilla"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A writable copy of a golden pair."""
    shutil.copytree(SOURCE / "target", tmp_path / "target")
    shutil.copytree(SOURCE / "draft", tmp_path / "draft")
    return tmp_path


def edit(path: Path, changes: dict[str, Any], *, without: tuple[str, ...] = ()) -> None:
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in without}))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.code == "BAD_CHECKPOINT"
    return str(caught.value)


ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, ["architectures", "LlamaForCausalLM", "Qwen3ForCausalLM"]),
        ({"model_type": "llama"}, ["model_type", "llama"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({"use_sliding_window": True}, ["use_sliding_window", "True"]),
        ({"layer_types": ["sliding_attention"] * 6}, ["layer_types", "full_attention"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"hidden_size": "64"}, ["hidden_size", "'64'", "positive integer"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers = 0"]),
        ({"intermediate_size": 10**4000}, ["intermediate_size", "positive integer up to"]),
        ({"num_attention_heads": 5}, ["num_attention_heads = 5", "num_key_value_heads"]),
        ({"head_dim": 15}, ["head_dim = 15", "even"]),
        ({"rope_scaling": {"rope_type": "dynamic"}}, ["rope_scaling", "rope_parameters says"]),
        ({"rope_theta": 5.0}, ["rope_theta = 5.0", "rope_parameters says"]),
        ({"torch_dtype": "float16"}, ["torch_dtype = 'float16'", "dtype says"]),
        ({"rms_norm_eps": 10**400}, ["rms_norm_eps", "positive number"]),
        ({"rms_norm_eps": None}, ["rms_norm_eps"]),
        ({"tie_word_embeddings": "no"}, ["tie_word_embeddings", "true or false"]),
        ({"dtype": "float8"}, ["dtype", "float8", "bfloat16"]),
        ({"eos_token_id": 256}, ["eos_token_id", "0..255"]),
        ({"eos_token_id": ["stop"]}, ["eos_token_id"]),
        ({"rope_parameters": {**ROPE, "rope_type": "longrope"}}, ["rope_parameters.rope_type", "longrope", "yarn"]),
        ({"rope_parameters": {**ROPE, "rope_type": "linear"}}, ["rope_parameters.factor"]),
        ({"rope_parameters": {**ROPE, "mscale": 1.0}}, ["rope_parameters.mscale", "no such key"]),
        ({"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0}}, ["original_max_position_embeddings"]),
        ({"rope_parameters": 3}, ["rope_parameters", "object"]),
    ],
)
def test_a_bad_target_configuration_names_key_value_and_expectation(
    folder: Path, changes: dict[str, Any], words: list[str]
) -> None:
    edit(folder / "target/config.json", changes)
    message = refusal(lambda: load_target_config(folder / "target"))
    assert all(word in message for word in words), message
    assert "1 problem(s)" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["DFlashDraftModel"]}, ["DFlashDraftModel", "own position"]),
        ({"dflash_config": {"mask_token_id": 3}}, ["dflash_config", "own position"]),
        ({"architectures": ["Gemma4DSparkModel"]}, ["Gemma4DSparkModel", "Gemma layers"]),
        ({"mask_token_id": 256}, ["mask_token_id = 256", "0..255"]),
        ({"mask_token_id": None}, ["mask_token_id"]),
        ({"target_layer_ids": [1, 3, 3]}, ["target_layer_ids", "strictly increasing"]),
        ({"target_layer_ids": [1, 5]}, ["target_layer_ids", "-1..4", "last layer"]),
        ({"target_layer_ids": [-2, 1]}, ["target_layer_ids", "-1..4"]),
        ({"target_layer_ids": []}, ["target_layer_ids", "non-empty"]),
        ({"num_target_layers": 7}, ["num_target_layers = 7", "expected 6"]),
        ({"vocab_size": 300}, ["vocab_size = 300", "expected 256"]),
        ({"hidden_size": 128}, ["hidden_size = 128", "expected 64"]),
        ({"block_size": 0}, ["block_size = 0"]),
        ({"markov_head_type": "lstm"}, ["markov_head_type", "lstm", "vanilla, gated, rnn"]),
        ({"markov_rank": -1}, ["markov_rank = -1"]),
        ({"markov_rank": 0}, ["confidence_head_with_markov", "markov_rank is 0"]),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, ["sliding_window = None"]),
        ({"use_sliding_window": True, "sliding_window": 64}, ["layer_types", "sliding_attention"]),
    ],
)
def test_a_bad_drafter_configuration_names_key_value_and_expectation(
    folder: Path, changes: dict[str, Any], words: list[str]
) -> None:
    edit(folder / "draft/config.json", changes)
    target = load_target_config(folder / "target")
    message = refusal(lambda: load_drafter_config(folder / "draft", target))
    assert all(word in message for word in words), message
    assert "1 problem(s)" in message


def test_all_problems_of_a_configuration_come_in_one_refusal(folder: Path) -> None:
    edit(folder / "draft/config.json", {"mask_token_id": 999, "block_size": -1, "num_target_layers": 2})
    target = load_target_config(folder / "target")
    message = refusal(lambda: load_drafter_config(folder / "draft", target))
    assert "3 problem(s)" in message
    for word in ("mask_token_id = 999", "block_size = -1", "num_target_layers = 2"):
        assert word in message


@pytest.mark.parametrize("content", [None, "{", "[1]"], ids=["absent", "broken", "a list"])
def test_an_unreadable_configuration_is_refused(folder: Path, content: str | None) -> None:
    path = folder / "target/config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert "config.json: expected" in refusal(lambda: load_target_config(folder / "target"))


def test_old_and_new_spellings_mean_the_same(folder: Path) -> None:
    new = load_target_config(folder / "target")
    old = {"rope_theta": 1000000.0, "torch_dtype": "float32", "rope_scaling": None}
    edit(folder / "target/config.json", old, without=("rope_parameters", "dtype"))
    assert load_target_config(folder / "target") == new


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_is_read_under_both_names(folder: Path, key: str) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    edit(
        folder / "target/config.json",
        {key: yarn, "rope_theta": 5000.0},
        without=("rope_parameters",) if key == "rope_scaling" else (),
    )
    config = load_target_config(folder / "target")
    assert config.rope_theta == 5000.0
    assert config.rope_scaling == {**yarn, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}


@pytest.mark.parametrize(
    ("generation", "own", "expected"),
    [(7, 9, (7,)), ([7, 8], 9, (7, 8)), (None, 9, (9,)), (None, None, ())],
)
def test_stop_ids_come_from_the_generation_configuration_first(
    folder: Path, generation: object, own: object, expected: tuple[int, ...]
) -> None:
    edit(folder / "target/generation_config.json", {"eos_token_id": generation})
    edit(folder / "target/config.json", {"eos_token_id": own})
    assert load_target_config(folder / "target").eos_token_ids == expected


def test_a_drafter_with_its_own_sliding_window_says_so(folder: Path) -> None:
    changes = {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention"] * 2}
    edit(folder / "draft/config.json", changes)
    assert load_drafter_config(folder / "draft", load_target_config(folder / "target")).sliding_window == 64


def test_missing_unexpected_and_misshaped_tensors_come_in_one_refusal(folder: Path) -> None:
    path = folder / "target/model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(15)
    tensors["model.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["model.layers.1.input_layernorm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(tensors, path)
    message = refusal(lambda: read_target(folder / "target"))
    assert "4 problem(s)" in message
    assert "model.norm.weight: expected [64], found no such tensor" in message
    assert "model.layers.0.self_attn.q_norm.weight: expected [16], found [15]" in message
    assert "model.rotary_emb.inv_freq: unexpected tensor [8]" in message
    assert "model.layers.1.input_layernorm.weight: expected one of F32, BF16, F16, found I8" in message


@pytest.mark.parametrize("damage", ["cut", "junk", "absent"])
def test_an_unreadable_weights_file_is_refused(folder: Path, damage: str) -> None:
    path = folder / "target/model.safetensors"
    content = path.read_bytes()
    path.unlink()
    if damage != "absent":
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\xff" * 64)
    assert "model.safetensors: expected" in refusal(lambda: read_target(folder / "target"))


def shard(folder: Path) -> dict[str, str]:
    """Split the single file in two, with an index; returns the weight map."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({key: tensors[key] for key in part}, folder / f"model-{number}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{number}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_shards_load_what_the_single_file_loads(folder: Path) -> None:
    config, single = read_target(folder / "target")
    shard(folder / "target")
    again, sharded = read_target(folder / "target")
    assert again == config
    assert sharded.keys() == single.keys()
    assert all(sharded[key].equal(single[key]) for key in single)


def test_a_wrong_shard_index_is_refused_with_all_its_problems(folder: Path) -> None:
    weight_map = shard(folder / "target")
    swapped = weight_map["model.norm.weight"]
    other = next(name for name in weight_map.values() if name != swapped)
    weight_map |= {"model.norm.weight": other, "extra": "../elsewhere.safetensors"}
    (folder / "target/model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    message = refusal(lambda: read_target(folder / "target"))
    assert f"model.norm.weight: expected in {other}" in message
    assert "../elsewhere.safetensors" in message
    (folder / "target" / swapped).unlink()
    assert f"{swapped}: expected a readable" in refusal(lambda: read_target(folder / "target"))


def test_a_tied_target_may_repeat_its_embedding_and_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "tied_embedding_tap/target", tmp_path / "target")
    path = tmp_path / "target/model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    _, loaded = read_target(tmp_path / "target")
    assert loaded["lm_head.weight"].data_ptr() == loaded["model.embed_tokens.weight"].data_ptr()
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, path)
    assert "lm_head.weight: expected model.embed_tokens.weight" in refusal(lambda: read_target(tmp_path / "target"))


@pytest.mark.parametrize(("change", "shares"), [("absent", True), ("different", False), ("equal", True)])
def test_a_drafter_shares_the_targets_matrices_unless_its_own_differ(folder: Path, change: str, shares: bool) -> None:
    path = folder / "draft/model.safetensors"
    tensors = load_file(path)
    if change == "absent":
        del tensors["embed_tokens.weight"], tensors["lm_head.weight"]
    if change == "different":
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    save_file(tensors, path)
    target = load_target(folder / "target", dtype=torch.float32, device=CPU)
    drafter = load_drafter(folder / "draft", target, dtype=torch.float32, device=CPU)
    assert drafter.shares_target_embeddings is shares
    assert (drafter.lm_head.data_ptr() == target.lm_head.data_ptr()) is shares
    if change == "different":
        assert drafter.lm_head.equal(tensors["lm_head.weight"])


def test_the_shipped_pair_loads_whole() -> None:
    paths = shipped_pair()
    target, _ = read_target(paths.target)
    drafter, _ = read_drafter(paths.drafter, target)
    assert (target.num_layers, target.eos_token_ids, drafter.block_size) == (8, (0,), 7)
    prompts = [json.loads(line)["prompt"] for line in paths.prompts.read_text(encoding="utf-8").splitlines()]
    assert len(prompts) == 32


def test_json_of_any_depth_is_refused(folder: Path) -> None:
    (folder / "target" / "config.json").write_text("[" * 100_000)
    assert "config.json: expected readable JSON" in refusal(lambda: load_target_config(folder / "target"))
