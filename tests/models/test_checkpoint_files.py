"""Files on disk: headers read without their data agree with the library, and no damage passes unnoticed."""

import json
import struct
from pathlib import Path
from typing import Any

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
from dsparkd.models.checkpoint import _read_data, load_pair, read_target
from dsparkd.models.headers import read_headers
from dsparkd.models.survey import survey_drafter, survey_target
from dsparkd.statemachine.errors import Refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_support import CPU
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

SMALL = save(
    {"a": torch.ones(2, 3), "b.weight": torch.zeros(4, dtype=torch.bfloat16), "c": torch.tensor([7], dtype=torch.int8)},
    metadata={"format": "pt"},
)
HEADER_END = 8 + struct.unpack("<Q", SMALL[:8])[0]


def by_library(path: Path) -> dict[str, tuple[str, list[int]]] | None:
    try:
        with safe_open(str(path), framework="pt") as opened:
            slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 it is no mapping
            return {key: (one.get_dtype(), one.get_shape()) for key, one in slices.items()}
    except SafetensorError:
        return None


def by_header(folder: Path) -> dict[str, tuple[str, list[int]]] | None:
    problems: list[str] = []
    headers = read_headers(folder, problems)
    assert headers.whole == (problems == [])
    assert all(
        problem.startswith("model.safetensors: expected a readable safetensors file, found ") for problem in problems
    )
    return {key: (one.dtype, list(one.shape)) for key, one in headers.tensors.items()} if headers.whole else None


EDITS = st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=3)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(EDITS, st.integers(0, len(SMALL)), st.binary(max_size=3))
@example([], len(SMALL), b"")
def test_what_the_header_reader_accepts_is_what_the_library_reads(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], end: int, more: bytes
) -> None:
    damaged = bytearray(SMALL)
    for place, value in edits:
        damaged[place] = value
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(bytes(damaged[:end]) + more)
    ours, its = by_header(folder), by_library(folder / "model.safetensors")
    assert ours is None or ours == its
    if end + len(more) != len(SMALL) and not edits:
        assert ours is None
    if not edits and end == len(SMALL) and not more:
        assert ours is not None


def header(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def entry(begin: int, end: int, *, dtype: str = "F32", shape: tuple[Any, ...] = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x00" * 7,
        SMALL[: HEADER_END - 1],
        SMALL[:-1],
        SMALL + b"\x00",
        b"\xff" * 64,
        b"PK\x03\x04 a pickle, perhaps",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 2) + b"\xff\xfe",
        header(a=entry(0, 4), b=entry(8, 12)) + b"\x00" * 12,
        header(a=entry(0, 4), b=entry(0, 4)) + b"\x00" * 4,
        header(a=entry(0, 8)) + b"\x00" * 8,
        header(a=entry(4, 0)),
        header(a=entry(0, 4, shape=(-1,))) + b"\x00" * 4,
        header(a=entry(0, 4, shape=(True,))) + b"\x00" * 4,
        header(a=[1]),
        header(__metadata__={"a": 1}),
        struct.pack("<Q", 17) + b'{"a":{},"a":{}}  ',
    ],
    ids=range(19),
)
def test_a_damaged_file_is_one_problem_and_no_exception(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(damage)
    assert by_header(tmp_path) is None
    assert by_library(tmp_path / "model.safetensors") is None


def test_a_folder_in_a_files_place_and_no_file_at_all_are_one_problem_each(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path)
    (target / "model.safetensors").unlink()
    (problem,) = survey_target(target).problems
    assert problem == f"model.safetensors: expected it or {INDEX} in {target}, found neither"
    (target / "model.safetensors").mkdir()
    (problem,) = survey_target(target).problems
    assert problem.startswith("model.safetensors: expected a readable safetensors file, found ")


def test_data_cut_between_judging_and_reading_are_refused_too(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path)
    survey = survey_target(target)
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Refused, match=r"model\.safetensors: expected a readable safetensors file"):
        _read_data(target, survey.headers)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Content, Path, Path]:
    made = content(tmp_path)
    return made, *write(made, tmp_path)


def test_both_checkpoints_may_come_in_shards(pair: tuple[Content, Path, Path]) -> None:
    made, target, drafter = pair
    whole = load_pair(target, drafter, dtype=torch.float32, device=CPU)
    for folder, tensors in ((target, made.target_tensors), (drafter, made.drafter_tensors)):
        names = sorted(tensors)
        shards = {SHARDS[n]: {key: tensors[key] for key in names[n::2]} for n in (0, 1)}
        write_shards(folder, shards, weight_map_of(shards))
    parts = load_pair(target, drafter, dtype=torch.float32, device=CPU)
    assert whole.drafter is not None and parts.drafter is not None
    assert parts.target.layers[3].qkv.equal(whole.target.layers[3].qkv)
    assert parts.drafter.context_kv.equal(whole.drafter.context_kv)
    assert parts.drafter.shares_target_embeddings


def problems_of(folder: Path) -> list[str]:
    problems = list(survey_target(folder).problems)
    with pytest.raises(Refused) as caught:
        read_target(folder)
    assert f"{len(problems)} problem(s)" in str(caught.value)
    return problems


def test_a_missing_shard_hides_only_its_own_tensors(pair: tuple[Content, Path, Path]) -> None:
    made, target, _ = pair
    shards = shards_of(made.target_tensors)
    del shards[SHARDS[0]]["model.norm.weight"]
    write_shards(target, shards, weight_map_of(shards))
    (target / SHARDS[1]).unlink()
    lost, missing = problems_of(target)
    assert lost.startswith(f"{SHARDS[1]}: expected a readable safetensors file, found ")
    assert missing == "model.norm.weight: expected [32], found no such tensor"


def test_a_tensor_that_its_shard_lacks_and_one_in_the_wrong_shard_are_told_once_each(
    pair: tuple[Content, Path, Path],
) -> None:
    made, target, _ = pair
    shards = shards_of(made.target_tensors)
    weight_map = weight_map_of(shards)
    weight_map["model.norm.weight"] = SHARDS[1]  # it lies in the first
    del weight_map["lm_head.weight"]  # it lies in the first, unlisted
    weight_map["model.nowhere"] = SHARDS[0]
    write_shards(target, shards, weight_map)
    assert problems_of(target) == [
        f"model.nowhere: expected in {SHARDS[0]} by {INDEX}, found no such tensor",
        f"lm_head.weight: expected not in {SHARDS[0]} by {INDEX}, found [64, 32]",
        f"model.norm.weight: expected not in {SHARDS[0]} by {INDEX}, found [32]",
        f"model.norm.weight: expected in {SHARDS[1]} by {INDEX}, found no such tensor",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected readable JSON"),
        ("[]", "expected a JSON object, found list"),
        ("{}", "expected a non-empty object weight_map"),
        ('{"weight_map": {}}', "expected a non-empty object weight_map"),
        ('{"weight_map": ["a"]}', "expected a non-empty object weight_map"),
    ],
)
def test_a_broken_index_is_one_problem(pair: tuple[Content, Path, Path], text: str, words: str) -> None:
    _, target, _ = pair
    (target / "model.safetensors").unlink()
    (target / INDEX).write_text(text)
    (problem,) = problems_of(target)
    assert problem.startswith(f"{INDEX}: {words}")


@pytest.mark.parametrize("place", ["../model.safetensors", "", ".", "a/b", 7, None], ids=str)
def test_an_index_that_leads_out_of_the_folder_is_refused(pair: tuple[Content, Path, Path], place: object) -> None:
    made, target, _ = pair
    shards = shards_of(made.target_tensors)
    del shards[SHARDS[0]]["model.norm.weight"]
    write_shards(target, shards, {**weight_map_of(shards), "model.norm.weight": place})
    assert problems_of(target) == [
        f"{INDEX}: model.norm.weight = {place!r}: expected a file name in the same folder",
    ]


def test_a_drafter_alone_is_judged_as_far_as_that_goes(pair: tuple[Content, Path, Path]) -> None:
    _, _, drafter = pair
    assert survey_drafter(drafter, None).problems == ()
