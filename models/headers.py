"""What safetensors files say of themselves: names, dtypes, shapes and places, one file or shards with an index.

Owns the reading of headers, which is all that judging a checkpoint takes. Never reads a tensor's data and never loads
torch or the safetensors library, so that a checkpoint of any size is judged in milliseconds and on any machine; the
library reads the data later and has the last word. Called by `survey`.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from .fields import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = {"F32": 4, "BF16": 2, "F16": 2}  # bytes an element
MOST_HEADER_BYTES = 100_000_000  # the format's own limit


@attrs.frozen
class TensorHeader:
    """dtype as the format spells it (F32, BF16); the name of the file that holds the tensor."""

    dtype: str
    shape: tuple[int, ...]
    file: str


@attrs.frozen
class Headers:
    """All tensors of a checkpoint by name.

    noted: names of which a problem tells already, or that stand in a file which could not be read; they are not
    missing. whole: False when it is not even known which tensors there should be.
    """

    tensors: dict[str, TensorHeader]
    noted: frozenset[str] = frozenset()
    whole: bool = True


def read_headers(folder: Path, problems: list[str]) -> Headers:
    """Read model.safetensors, or the shards that model.safetensors.index.json lists.

    Noted in `problems`: files that are absent, cut or corrupt, tensors that a shard lacks, tensors in a shard that the
    index does not place there.
    """
    if (folder / SINGLE).exists() or not (folder / INDEX).exists():
        tensors = _read_file(folder, SINGLE, problems)
        return Headers(tensors or {}, whole=tensors is not None)
    listed = _read_index(folder, problems)
    if listed is None:
        return Headers({}, whole=False)
    found: dict[str, TensorHeader] = {}
    noted = set(listed.pop("", ()))
    for name, keys in sorted(listed.items()):
        tensors = _read_file(folder, name, problems)
        if tensors is None:
            noted.update(keys)
            continue
        lost, strays = sorted(keys - set(tensors)), sorted(set(tensors) - keys)
        problems += [f"{key}: expected in {name} by {INDEX}, found no such tensor" for key in lost]
        problems += [f"{key}: expected not in {name} by {INDEX}, found {list(tensors[key].shape)}" for key in strays]
        noted.update(lost, strays)
        found |= {key: tensors[key] for key in keys & set(tensors)}
    return Headers(found, frozenset(noted))


def _read_index(folder: Path, problems: list[str]) -> dict[str, set[str]] | None:
    """File name -> the tensors it must hold; under the empty name those whose place is no file name."""
    index = read_json(folder / INDEX, problems)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        problems.append(f"{INDEX}: expected a non-empty object weight_map")
        return None
    files: dict[str, set[str]] = {}
    for key, name in weight_map.items():
        if not isinstance(name, str) or not name or Path(name).name != name:
            problems.append(f"{INDEX}: {key} = {name!r}: expected a file name in the same folder")
            name = ""
        files.setdefault(name, set()).add(key)
    return files


def _read_file(folder: Path, name: str, problems: list[str]) -> dict[str, TensorHeader] | None:
    if name == SINGLE and not (folder / SINGLE).exists():
        problems.append(f"{SINGLE}: expected it or {INDEX} in {folder}, found neither")
        return None
    try:
        entries = _read_header(folder / name)
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{name}: expected a readable safetensors file, found {error}")
        return None
    return {key: TensorHeader(dtype, shape, name) for key, (dtype, shape) in entries.items()}


def _read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name -> dtype, shape. Raises OSError, ValueError or RecursionError for what is no safetensors file."""
    with path.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(0)
        header_len = int.from_bytes(opened.read(8), "little")
        if size < 8 or header_len > min(size - 8, MOST_HEADER_BYTES):
            raise ValueError(f"{size} bytes with a header of {header_len}")
        text = opened.read(header_len)
    header = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    if not isinstance(header, dict):
        raise ValueError(f"a header that is a JSON {type(header).__name__}, no object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(value, str) for value in metadata.values()):
        raise ValueError("a __metadata__ that is no object of strings")
    entries = {key: _entry(key, value) for key, value in header.items()}
    _check_layout([places for _, _, places in entries.values()], size - 8 - header_len)
    return {key: (dtype, shape) for key, (dtype, shape, _) in entries.items()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a header that names something twice")
    return values


def _entry(key: str, value: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """dtype, shape, and where the data begin and end."""
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            dtype.isprintable() and all(type(size) is int and size >= 0 for size in [*shape, begin, end])
        ):
            if dtype in FLOATS and math.prod(shape) * FLOATS[dtype] != end - begin:
                raise ValueError(f"{key} of {dtype} {shape} in {end - begin} bytes")
            return dtype, tuple(shape), (begin, end)
    raise ValueError(f"{key} without dtype, shape or data_offsets")


def _check_layout(places: Sequence[tuple[int, int]], size: int) -> None:
    """The data follow each other without a hole up to the file's end."""
    reached = 0
    for begin, end in sorted(places):
        if begin != reached or end < begin:
            raise ValueError(f"data at {begin}, expected at {reached}")
        reached = end
    if reached != size:
        raise ValueError(f"{size} bytes of data where its header says {reached}")
