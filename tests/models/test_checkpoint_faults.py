"""Whatever set of faults a pair has, one refusal lists them all, each with key, value and what was expected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from checkpoint_support import (
    INDEX,
    SHARDS,
    Content,
    content,
    shards_of,
    weight_map_of,
    write,
    write_pair,
    write_shards,
)
from dsparkd.models.checkpoint import load_pair
from dsparkd.models.survey import survey_drafter, survey_target
from dsparkd.statemachine.errors import Refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_support import CPU
from torch import Tensor


@attrs.define
class Written:
    """A pair in the making: the target in two shards, with what is done to the files at the end."""

    content: Content
    shards: dict[str, dict[str, Tensor]]
    weight_map: dict[str, str]
    cut: list[str] = attrs.Factory(list)


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


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Content:
    return content(tmp_path_factory.mktemp("sound"))


def damaged(sound: Content, faults: list[Fault], folder: Path) -> tuple[Path, Path]:
    made = Content(dict(sound.target), dict(sound.drafter), dict(sound.target_tensors), dict(sound.drafter_tensors))
    shards = shards_of(made.target_tensors)
    written = Written(made, shards, weight_map_of(shards))
    for fault in faults:
        fault.plant(written)
    target, drafter = write(made, folder)
    write_shards(target, written.shards, written.weight_map)
    for name in written.cut:
        path = target / name
        path.write_bytes(path.read_bytes()[:-1])
    return target, drafter


@settings(derandomize=True, max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(FAULTS), unique_by=lambda fault: fault.place, max_size=12))
@example([])
@example([fault for n, fault in enumerate(FAULTS) if fault.place not in {one.place for one in FAULTS[:n]}])
def test_any_set_of_faults_is_reported_whole_and_nothing_else(
    sound: Content, tmp_path_factory: pytest.TempPathFactory, faults: list[Fault]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "planted"
    target, drafter = damaged(sound, faults, folder)
    if not faults:
        load_pair(target, drafter, dtype=torch.float32, device=CPU)
        return
    with pytest.raises(Refused) as caught:
        load_pair(target, drafter, dtype=torch.float32, device=CPU)
    title, *lines = str(caught.value).splitlines()
    assert title == f"target checkpoint {target} and drafter checkpoint {drafter}: {len(faults)} problem(s)"
    assert caught.value.code == "BAD_CHECKPOINT"
    for fault in faults:
        assert sum(line.removeprefix("  - ").startswith(fault.line) for line in lines) == 1, (fault.line, lines)
    assert len(lines) == len(faults), lines


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.line[:60])
def test_each_fault_alone_is_one_line(sound: Content, tmp_path: Path, fault: Fault) -> None:
    target, drafter = damaged(sound, [fault], tmp_path)
    first = survey_target(target)
    second = survey_drafter(drafter, first.config)
    lines = [f"target: {problem}" for problem in first.problems] + [f"drafter: {one}" for one in second.problems]
    assert len(lines) == 1, lines
    assert lines[0].startswith(fault.line)


def test_a_drafter_of_another_target_is_refused_with_every_size_that_differs(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path / "one")
    sizes = {"hidden_size": 48, "vocab_size": 80, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10}
    layers = {"num_hidden_layers": 7}
    _, drafter = write_pair(
        tmp_path / "other",
        target={**sizes, **layers},
        drafter={**sizes, "num_target_layers": 7, "target_layer_ids": [0, 5], "mask_token_id": 79},
    )
    with pytest.raises(Refused) as caught:
        load_pair(target, drafter, dtype=torch.float32, device=CPU)
    _, *lines = str(caught.value).splitlines()
    assert lines == [
        "  - drafter: mask_token_id = 79: expected an id in 0..63",
        f"  - drafter: target_layer_ids = [0, 5]: {TAPS}",
        "  - drafter: hidden_size = 48: expected 32, as the target has",
        "  - drafter: vocab_size = 80: expected 64, as the target has",
        "  - drafter: num_target_layers = 7: expected 4, as the target has",
        "  - drafter: num_attention_heads = 6: expected 4, as the target has",
        "  - drafter: num_key_value_heads = 3: expected 2, as the target has",
        "  - drafter: head_dim = 10: expected 8, as the target has",
    ]


def test_a_pair_in_the_wrong_order_is_told_by_name_and_not_by_every_tensor(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    assert survey_target(drafter).problems == ("architectures = ['Qwen3DSparkModel']: expected ['Qwen3ForCausalLM']",)
    assert all(" tensor" not in problem for problem in survey_drafter(target, None).problems)


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '"text"', "\udcff", "[" * 100_000], ids=range(7))
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_configuration_that_is_no_json_object_is_one_line_of_its_checkpoint(
    tmp_path: Path, role: str, text: str | None
) -> None:
    target, drafter = write_pair(tmp_path)
    path = tmp_path / role / "config.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Refused) as caught:
        load_pair(target, drafter, dtype=torch.float32, device=CPU)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"  - {role}: config.json: expected ")


FOREIGN = [
    ({"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 3}}, "upstream DFlash"),
    ({"architectures": ["DFlashDraftModel"]}, "upstream DFlash"),
    ({"architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash"}, "speculators"),
    ({"architectures": ["Eagle3Speculator"], "speculators_config": {"algorithm": "eagle3"}}, "speculators"),
    ({"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}, "SpecForge Eagle3"),
    ({"architectures": ["Qwen3Eagle3Model"]}, "Eagle3"),
    ({"architectures": ["Gemma4Eagle3Model"]}, "Eagle3"),
    ({"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}, "Gemma"),
    ({"model_type": "gemma4_unified_text"}, "Gemma"),
    ({"architectures": ["DeepseekV4ForCausalLM"], "num_nextn_predict_layers": 3}, "embedded drafter"),
]


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize(("changes", "name"), FOREIGN, ids=[str(n) for n in range(len(FOREIGN))])
def test_every_other_layout_is_refused_by_its_name_and_a_reason_and_nothing_more(
    tmp_path: Path, role: str, changes: dict[str, Any], name: str
) -> None:
    folders = dict(zip(("target", "drafter"), write_pair(tmp_path), strict=True))
    config = json.loads((folders[role] / "config.json").read_text())
    del config["hidden_size"]  # another layout keeps its sizes elsewhere
    (folders[role] / "config.json").write_text(json.dumps(config | changes))
    (folders[role] / "model.safetensors").unlink()
    with pytest.raises(Refused) as caught:
        load_pair(folders["target"], folders["drafter"], dtype=torch.float32, device=CPU)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"  - {role}: ")
    assert f"; {name} is refused because " in lines[0]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("mtp.0.fc.weight", "mtp.*"),
        ("model.mtp.layers.0.norm", "model.mtp.*"),
        ("midlayer.mlp.up", "midlayer.*"),
        ("t2d", "t2d"),
    ],
)
def test_tensors_of_another_layout_are_named_together(tmp_path: Path, name: str, start: str) -> None:
    made = content(tmp_path)
    made.target_tensors[name] = torch.ones(2)
    if start.endswith("*"):
        made.target_tensors[f"{name}.more"] = torch.ones(2)
    target, _ = write(made, tmp_path)
    (problem,) = survey_target(target).problems
    assert problem.startswith(start)
    assert "is refused because" in problem
    assert ("(2 tensors)" in problem) == start.endswith("*")
