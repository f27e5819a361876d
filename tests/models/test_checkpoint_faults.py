"""Whatever set of faults a pair has, one refusal lists them all, each with key, value and what was expected."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_support import Content, content, write, write_pair
from dsparkd.models.checkpoint import load_pair
from dsparkd.models.survey import survey_drafter, survey_target
from dsparkd.statemachine.errors import Refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_support import CPU
from planted_faults import FAULTS, TAPS, Fault, damaged


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Content:
    return content(tmp_path_factory.mktemp("sound"))


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
