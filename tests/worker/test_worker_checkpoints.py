"""What a worker says of the checkpoints that it is told to load."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from dsparkd.worker.backend import TorchBackend
from safetensors.torch import load_file, save_file
from worker_support import GOLDEN


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("target", "draft"):
        shutil.copytree(GOLDEN / "vanilla" / name, tmp_path / name)
    return tmp_path / "target", tmp_path / "draft"


def started(folders: tuple[Path, Path]) -> wire.Ready:
    made = TorchBackend()
    made.load(wire.Init(1, *map(str, folders), num_slots=2, max_model_len=64, max_step_tokens=64))
    return made.warm()


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_everything_wrong_with_a_pair_comes_in_one_refusal(folders: tuple[Path, Path]) -> None:
    target, draft = folders
    change(target, hidden_act="gelu")
    change(draft, block_size=1)
    with pytest.raises(Refused) as caught:
        started(folders)
    assert caught.value.code == "BAD_CHECKPOINT"
    for words in ("2 problem(s)", "target: hidden_act = 'gelu'", "drafter: block_size = 1"):
        assert words in str(caught.value)


def test_a_drafters_matrix_that_is_not_its_targets_is_warned_of_at_ready(folders: tuple[Path, Path]) -> None:
    assert started(folders).warnings == []
    path = folders[1] / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1}, path)
    (warning,) = started(folders).warnings
    assert warning == "lm_head.weight of the drafter is not its target's: its own is used and takes 65536 bytes more"


def test_l096_the_block_of_ready_is_the_checkpoints_whatever_its_layers(folders: tuple[Path, Path]) -> None:
    _, draft = folders
    tensors = load_file(draft / "model.safetensors")
    third = {f"layers.2.{key[9:]}": value.clone() for key, value in tensors.items() if key.startswith("layers.1.")}
    save_file(tensors | third, draft / "model.safetensors")
    change(draft, num_hidden_layers=3, block_size=5, layer_types=["full_attention"] * 3)
    torch.set_num_threads(1)
    assert started(folders).block_len == 5
