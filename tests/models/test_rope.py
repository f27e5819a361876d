"""Scaled rotary embeddings: frequencies as published, target and drafter alike, unknown kinds refused by name."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from dsparkd.models.config import TargetConfig
from dsparkd.models.fields import Fields
from dsparkd.models.layers import RotaryTable, inverse_frequencies
from dsparkd.models.rope import KINDS, read_rope
from model_support import CPU, golden

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "rope_frequencies.json").read_text())["cases"]
KEYS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "llama3": {
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}


def read(values: dict[str, Any]) -> tuple[Any, list[str]]:
    problems: list[str] = []
    return read_rope(Fields(values, problems)), problems


def config_of(rope: dict[str, Any], **fields: Any) -> TargetConfig:
    (theta, scaling), problems = read({"rope_parameters": rope})
    assert problems == []
    return attrs.evolve(golden("vanilla").pair.target.config, rope_theta=theta, rope_scaling=scaling, **fields)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["rope_parameters"]["rope_type"])
def test_frequencies_are_those_that_another_implementation_recorded(case: dict[str, Any]) -> None:
    config = config_of(
        case["rope_parameters"], head_dim=case["head_dim"], max_positions=case["max_position_embeddings"]
    )
    frequencies, scale = inverse_frequencies(config, text_len=case["text_len"])
    torch.testing.assert_close(frequencies, torch.tensor(case["inverse_frequencies"]), rtol=2e-6, atol=0)
    assert scale == pytest.approx(case["factor_of_tables"], rel=1e-12)


def test_every_kind_that_scales_has_a_recorded_case() -> None:
    assert {case["rope_parameters"]["rope_type"] for case in CASES} == set(KINDS) - {"default"}


@pytest.mark.parametrize("kind", KINDS)
def test_both_spellings_of_every_kind_say_the_same(kind: str) -> None:
    newer, problems = read({"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **KEYS[kind]}})
    older, more = read({"rope_theta": 5000.0, "rope_scaling": {"type": kind, **KEYS[kind]}})
    assert newer == older
    assert newer[0] == 5000.0
    assert (newer[1] is None) == (kind == "default")
    assert problems == more == []


@pytest.mark.parametrize("kind", KINDS)
def test_l100_an_unknown_key_of_any_kind_and_an_unknown_kind_are_errors_by_name(kind: str) -> None:
    for key in ("mscale", "short_factor", "partial_rotary_factor"):
        _, problems = read({"rope_parameters": {"rope_type": kind, "rope_theta": 1.0, **KEYS[kind], key: 1.0}})
        assert problems == [f"rope_parameters.{key} = 1.0: expected no such key with rope_type {kind!r}"]
    _, problems = read({"rope_theta": 1.0, "rope_scaling": {"rope_type": "longrope", **KEYS[kind]}})
    assert len(problems) == 1
    assert "rope_scaling.rope_type = 'longrope'" in problems[0]
    for missing in KEYS[kind]:
        rest = {key: value for key, value in KEYS[kind].items() if key != missing}
        _, problems = read({"rope_parameters": {"rope_type": kind, "rope_theta": 1.0, **rest}})
        assert any(missing in one for one in problems)


@pytest.mark.parametrize("kind", KINDS)
def test_l100_the_drafters_table_far_out_is_the_targets(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1000000.0, **KEYS[kind]}
    target = config_of(rope, max_positions=65536)
    drafter = attrs.evolve(
        golden("vanilla").pair.drafter.config,
        rope_theta=target.rope_theta,
        rope_scaling=target.rope_scaling,
        max_positions=65536,
    )
    one, other = (RotaryTable(config, 40_008, CPU, torch.float32, text_len=40_000) for config in (target, drafter))
    for mine, its in zip(one.at(torch.tensor([40_000])), other.at(torch.tensor([40_000])), strict=True):
        assert torch.equal(mine, its)
    plain = RotaryTable(config_of({"rope_type": "default", "rope_theta": 1000000.0}), 40_001, CPU, torch.float32)
    scaled = kind not in ("default", "dynamic")  # dynamic scales beyond the trained length alone
    assert torch.equal(one.table[40_000], plain.table[40_000]) != scaled


def test_dynamic_scaling_begins_beyond_the_trained_length_and_is_one_for_all_texts() -> None:
    config = config_of({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, max_positions=1024)
    plain = RotaryTable(attrs.evolve(config, rope_scaling=None), 1032, CPU, torch.float32).table
    assert torch.equal(RotaryTable(config, 1032, CPU, torch.float32, text_len=1024).table, plain)
    longer = RotaryTable(config, 1032, CPU, torch.float32, text_len=2048).table
    assert not torch.equal(longer, plain)
    # The slowest pair turns once in as many positions more as the text is longer, about: twice 2048/1024 minus one.
    slow, slower = (inverse_frequencies(config, text_len=length)[0][-1] for length in (1024, 2048))
    assert float(slow / slower) == pytest.approx(3.0, rel=1e-4)
