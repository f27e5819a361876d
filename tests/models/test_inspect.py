"""`dsparkd inspect`: true figures, the loader's own list of problems, and no byte of a tensor's data."""

import json
import math
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_support import SHARDS, content, write, write_pair, write_released_configs
from dsparkd.models.checkpoint import load_pair
from dsparkd.models.config import load_drafter_config, load_target_config
from dsparkd.models.shapes import Shapes, drafter_shapes, target_shapes
from dsparkd.models.shipped import shipped_pair
from dsparkd.statemachine.errors import Refused
from dsparkd.worker.backend import DTYPES
from dsparkd.worker.inspect import Dtype, report
from dsparkd.worker.windows import Shape, Windows
from model_support import CPU, GOLDEN, NAMES

META = torch.device("meta")
ADDRESS_SPACE = 3 << 30


def inspect(*arguments: object, status: int = 0, prefix: str = "", **options: Any) -> str:
    """Run the command as a user does -> stdout."""
    code = f"{prefix}\nimport sys\nfrom dsparkd.__main__ import main\nsys.exit(main(['inspect', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, env=path, timeout=120, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_shipped_pair_is_told_in_full_without_torch_or_the_library() -> None:
    paths = shipped_pair()
    block = "import sys\nfor name in ('torch', 'safetensors', 'numpy'): sys.modules[name] = None"
    shown = inspect(paths.target, paths.drafter, prefix=block)
    for words in ("the pair fits and can be served", "vanilla", "1, 4, 6", "with Markov", "90 BF16", "3,542,720"):
        assert words in shown
    found = json.loads(inspect(paths.target, paths.drafter, "--json", "--max-model-len", 100, "--dtype", "bfloat16"))
    assert found["problems"] == []
    assert found["target"] | found["drafter"] | found["slot"] == {
        "path": str(paths.drafter),
        "layout": "Qwen3DSparkModel as DeepSpec writes it",
        "served": True,
        "num_hidden_layers": 1,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 2048,
        "max_position_embeddings": 512,
        "rope": "plain",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [0],
        "tokenizer": True,
        "num_target_layers": 8,
        "target_layer_ids": [1, 4, 6],
        "block_size": 7,
        "mask_token_id": 1,
        "markov_rank": 64,
        "markov_head": "vanilla",
        "confidence_head": "with Markov",
        "sliding_window": None,
        "parameters": 767_041,
        "parameters_shared": 786_432,
        "shareable_in_file": ["embed_tokens.weight", "lm_head.weight"],
        "tensors": 20,
        "files": 1,
        "dtypes": {"BF16": 20},
        "max_model_len": 100,
        "dtype": "bfloat16",
        "drafter_window": 100,
        "target_bytes_per_token": 2048,
        "drafter_bytes_per_token": 256,
        "bytes": 108 * (2048 + 256) + 100 * 3 * 192 * 2,
    }


@pytest.mark.parametrize("name", [*NAMES, "sliding", "alone"])
@pytest.mark.parametrize("dtype", Dtype)
def test_the_bytes_of_a_slot_are_those_that_the_windows_take(tmp_path: Path, name: str, dtype: Dtype) -> None:
    if name in ("sliding", "alone"):
        slides = {"use_sliding_window": True, "sliding_window": 24}
        target, drafter = write_pair(tmp_path, drafter=slides if name == "sliding" else {})
    else:
        target, drafter = GOLDEN / name / "target", GOLDEN / name / "draft"
    found = report(target, None if name == "alone" else drafter, max_model_len=90, dtype=dtype)
    config = load_target_config(target)
    own = None if name == "alone" else load_drafter_config(drafter, config)
    window = 24 if name == "sliding" else 90
    shape = Shape(num_slots=3, max_model_len=90, block_len=0 if own is None else own.block_size, drafter_window=window)
    made = Windows(shape, config, own, dtype=DTYPES[dtype.value], device=META)
    assert found["slot"]["bytes"] == made.bytes_per_slot
    assert found["slot"]["drafter_window"] == (0 if own is None else window)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_the_files(name: str) -> None:
    target, drafter = GOLDEN / name / "target", GOLDEN / name / "draft"
    found = report(target, drafter, max_model_len=None, dtype=Dtype.float32)

    def stored(folder: Path) -> int:
        return (folder / "model.safetensors").stat().st_size // 4

    def of(role: str, folder: Path) -> int:
        total: int = found[role]["parameters"] + found[role].get("parameters_shared", 0)
        header = struct.unpack("<Q", (folder / "model.safetensors").read_bytes()[:8])[0]
        assert stored(folder) == total + (8 + header) // 4
        return total

    assert of("target", target) > of("drafter", drafter) - found["drafter"]["parameters_shared"]


def test_problems_are_the_loaders_own_and_the_status_is_1(tmp_path: Path) -> None:
    made = content(tmp_path)
    made.target["hidden_act"] = "gelu"
    made.drafter.update(block_size=1, mask_token_id=64)
    del made.drafter_tensors["norm.weight"]
    target, drafter = write(made, tmp_path)
    with pytest.raises(Refused) as caught:
        load_pair(target, drafter, dtype=torch.float32, device=CPU)
    lines = [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]
    assert len(lines) == 4
    shown = inspect(target, drafter, status=1)
    assert "cannot be served: 4 problem(s)" in shown
    assert all(f"  - {line}\n" in shown for line in lines)
    found = json.loads(inspect(target, drafter, "--json", status=1))
    assert found["problems"] == lines
    assert (found["target"]["served"], found["drafter"]["served"], found["slot"]) == (False, False, None)
    # What the configuration does not reliably say is left out, not shown as 0.
    assert {"block_size", "mask_token_id", "parameters"} & set(found["drafter"]) == set()
    assert found["drafter"]["markov_rank"] == 6


def test_a_length_beyond_the_trained_positions_is_a_problem(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    (problem,) = report(target, drafter, max_model_len=257, dtype=Dtype.float32)["problems"]
    assert problem == "max_model_len = 257: expected at most the target's 256 positions"
    assert report(target, drafter, max_model_len=None, dtype=Dtype.float32)["slot"]["max_model_len"] == 256


def test_a_drafter_alone_and_a_target_alone_are_told_as_such(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    alone = report(drafter, None, max_model_len=None, dtype=Dtype.float32)
    assert (alone["target"], alone["slot"], alone["problems"]) == (None, None, [])
    assert "with a target that fits" in inspect(drafter)
    assert report(target, None, max_model_len=None, dtype=Dtype.float32)["drafter"] is None


def test_another_layout_is_named_and_nothing_is_said_of_its_sizes(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | {"architectures": ["DFlashDraftModel"]}))
    found = report(target, drafter, max_model_len=None, dtype=Dtype.float32)
    assert found["drafter"]["layout"] == "upstream DFlash"
    assert "hidden_size" not in found["drafter"]
    assert report(drafter, None, max_model_len=None, dtype=Dtype.float32)["problems"] != []


def write_hollow(path: Path, shapes: Shapes) -> None:
    """A bf16 file with a true header and data that take no room on the disk."""
    end, entries = 0, {}
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)


def test_a_pair_of_36_gigabytes_is_judged_in_an_address_space_of_3(tmp_path: Path) -> None:
    target, drafter = write_released_configs(tmp_path, "14B")
    config = load_target_config(target)
    shapes = target_shapes(config)
    late = {name: shape for name, shape in shapes.items() if name.startswith("model.layers.2")}
    early = {name: shape for name, shape in shapes.items() if name not in late}
    weight_map = {}
    for name, part in zip(SHARDS, (early, late), strict=True):
        write_hollow(target / name, part)
        weight_map |= dict.fromkeys(part, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_hollow(drafter / "model.safetensors", drafter_shapes(load_drafter_config(drafter, config)))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) > 36e9

    def narrow() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    found = json.loads(inspect(target, drafter, "--json", preexec_fn=narrow))
    assert found["problems"] == []
    assert (found["target"]["files"], found["target"]["tensors"]) == (2, 443)
    assert found["slot"]["target_bytes_per_token"] == 2 * 163_840


def test_names_that_no_terminal_should_get_are_shown_by_their_escapes(tmp_path: Path) -> None:
    """A lone surrogate has no encoding, and an escape sequence would be obeyed."""
    target, _ = write_pair(tmp_path)
    path = target / "model.safetensors"
    whole = path.read_bytes()
    header_len = int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8 : 8 + header_len])
    entries["\ud800\x1b[2J"] = entries.pop("model.norm.weight")
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + header_len :])
    shown = inspect(target, status=1)
    assert "\\ud800\\x1b[2J: unexpected tensor" in shown
    assert "\x1b" not in shown
    config = json.loads((target / "config.json").read_text())
    rope = {"rope_type": "default", "rope_theta": 10000.0, "\ud801": 1}
    (target / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    with pytest.raises(Refused, match=r"\\ud801"):
        load_pair(target, None, dtype=torch.float32, device=CPU)


def test_more_layers_than_any_model_has_are_refused_and_not_listed(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**5}))
    problems = report(target, None, max_model_len=None, dtype=Dtype.float32)["problems"]
    assert problems == ["target: num_hidden_layers = 100000: expected a positive integer up to 1000"]
