"""Arrivals: when requests come and how long they are, read from our own format and from four published ones.

Owns the formats and their units, and the scaling of lengths. What a format does not say (token ids) is made up from
what it does (serial numbers, prefix hashes), the same way every time. `simulate.py` and `replay --live` use them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from ...statemachine.errors import Refused
from .text_hash import MASK, mix

MOONCAKE_BLOCK = 512
FORMATS = ("arrivals", "azure", "mooncake", "vidur", "llmservingsim")
MAX_LEN = 10_000_000  # of one request: a file of numbers must not become a memory of them
MAX_NS = 1 << 61  # 73 years from the epoch


@attrs.frozen(kw_only=True)
class Arrival:
    """One request. Times in ns from the first one; lengths in tokens.

    `prefix_ids` name blocks of `block_len` tokens that the prompt begins with: equal ids mean equal tokens.
    """

    at_ns: int
    prompt_len: int
    output_len: int
    prefix_ids: tuple[int, ...] = ()
    block_len: int = MOONCAKE_BLOCK

    def prompt(self, serial: int, *, vocab_size: int) -> tuple[int, ...]:
        """Token ids that share exactly what the prefix ids say; the last token is this request's alone."""
        text: list[int] = []
        for block in self.prefix_ids:
            text += _tokens(2 * block, min(self.block_len, self.prompt_len - 1 - len(text)), vocab_size)
        return tuple(text + _tokens(2 * serial + 1, self.prompt_len - len(text), vocab_size))

    def scaled(self, factor: float) -> "Arrival":
        """Lengths times `factor`, one token at least; blocks shrink with them. Raises `Refused` beyond MAX_LEN."""
        if not max(self.prompt_len, self.output_len, self.block_len) * factor <= MAX_LEN:
            longest = max(self.prompt_len, self.output_len)
            raise Refused("BAD_CONFIG", f"scale = {factor}: {longest} tokens times it are more than {MAX_LEN}")
        return attrs.evolve(
            self,
            prompt_len=max(1, round(self.prompt_len * factor)),
            output_len=max(1, round(self.output_len * factor)),
            block_len=max(1, round(self.block_len * factor)),
        )


def _tokens(name: int, count: int, vocab_size: int) -> list[int]:
    """`count` token ids that begin anywhere and count on: cheap, and no two names are alike for long."""
    first = mix(name & MASK) % vocab_size
    if first + count <= vocab_size:
        return list(range(first, first + count))
    return [one % vocab_size for one in range(first, first + count)]


def read_arrivals(path: Path, kind: str | None = None) -> list[Arrival]:
    """Read a file of a format of FORMATS, which is told by its first line when it is not named; in order of time.

    Raises `Refused` (BAD_FILE) naming the line, what stands there, and what was expected.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("BAD_FILE", f"{path}: cannot be read: {error}") from error
    if not any(line.strip() for line in lines):
        raise Refused("BAD_FILE", f"{path}: holds no arrival")
    found = _told_by(lines[0]) if kind is None else kind
    if found not in READERS:
        told = "is not told by its first line" if kind is None else f"is {kind}"
        raise Refused("BAD_FILE", f"{path}: its format {told}: expected one of {', '.join(FORMATS)}")
    read = list(_read(path, lines, READERS[found]))
    if not read:
        raise Refused("BAD_FILE", f"{path}: holds no arrival")
    first = min(one.at_ns for one in read)
    return sorted((attrs.evolve(one, at_ns=one.at_ns - first) for one in read), key=lambda one: one.at_ns)


def write_arrivals(path: Path, arrivals: Iterable[Arrival], about: Mapping[str, Any]) -> None:
    """Write our own format: a line `about` where they are from, then JSON lines with at_ms, prompt_len, output_len, and
    prefix_ids and block_len where there are shared blocks. `path` must not exist."""
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps({"about": dict(about)}) + "\n")
        for one in arrivals:
            row: dict[str, Any] = {"at_ms": one.at_ns / 1e6, "prompt_len": one.prompt_len, "output_len": one.output_len}
            if one.prefix_ids:
                row |= {"prefix_ids": list(one.prefix_ids), "block_len": one.block_len}
            file.write(json.dumps(row) + "\n")


def _read(path: Path, lines: Sequence[str], read: Callable[[str], Arrival | None]) -> Iterator[Arrival]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = read(line)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Refused("BAD_FILE", f"{path}, line {number}: {type(error).__name__}: {error}") from error
        if one is not None:
            yield one


def _told_by(line: str) -> str | None:
    heads = {"TIMESTAMP,": "azure", "arrived_at,": "vidur"}
    for head, kind in heads.items():
        if line.startswith(head):
            return kind
    keys = {"at_ms": "arrivals", "about": "arrivals", "hash_ids": "mooncake", "arrival_time_ns": "llmservingsim"}
    return next((kind for key, kind in keys.items() if f'"{key}"' in line), None)


def _arrival(at_ns: float, prompt_len: Any, output_len: Any, **more: Any) -> Arrival:
    lens = (_whole(prompt_len), _whole(output_len))
    if not all(1 <= length <= MAX_LEN for length in lens):
        raise ValueError(f"prompt and output of {lens} tokens: expected 1..{MAX_LEN}")
    if abs(at_ns) > MAX_NS:
        raise ValueError(f"a time of {at_ns / 1e9:g} s: expected at most {MAX_NS // 10**9}")
    return Arrival(at_ns=round(at_ns), prompt_len=lens[0], output_len=lens[1], **more)


def _whole(length: Any) -> int:
    """Columns may hold 12.0 for 12; what is not whole has lost something already."""
    found = float(length)
    if not found.is_integer():
        raise ValueError(f"a length of {length}: expected a whole number of tokens")
    return int(found)


# ---- the formats: a line in, an arrival out; None for a heading ----------------------------------------------------


def _own(line: str) -> Arrival | None:
    row = json.loads(line)
    if row.keys() == {"about"}:
        return None
    unknown = row.keys() - {"at_ms", "prompt_len", "output_len", "prefix_ids", "block_len"}
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    blocks = tuple(map(int, row.get("prefix_ids", ())))
    block_len = int(row.get("block_len", MOONCAKE_BLOCK))
    if block_len < 1:
        raise ValueError(f"block_len = {block_len}: expected 1 or more")
    more = {"prefix_ids": blocks, "block_len": block_len}
    return _arrival(float(row["at_ms"]) * 1e6, row["prompt_len"], row["output_len"], **more)


def _azure(line: str) -> Arrival | None:
    """TIMESTAMP,ContextTokens,GeneratedTokens with wall clock times of seven fractional digits."""
    if line.startswith("TIMESTAMP"):
        return None
    stamp, prompt_len, output_len = line.split(",")
    seconds, _, fraction = stamp.partition(".")
    whole = datetime.fromisoformat(seconds + "+00:00").timestamp()
    return _arrival(int(whole) * 10**9 + int(fraction.ljust(9, "0")[:9] or 0), prompt_len, output_len)


def _mooncake(line: str) -> Arrival:
    """timestamp in ms; each hash id names 512 tokens, the last one what is left."""
    row = json.loads(line)
    blocks = tuple(map(int, row["hash_ids"]))
    return _arrival(float(row["timestamp"]) * 1e6, row["input_length"], row["output_length"], prefix_ids=blocks)


def _vidur(line: str) -> Arrival | None:
    """arrived_at in seconds."""
    if line.startswith("arrived_at"):
        return None
    at_s, prompt_len, output_len = line.split(",")
    return _arrival(float(at_s) * 1e9, prompt_len, output_len)


def _llmservingsim(line: str) -> Arrival:
    """arrival_time_ns; token ids may be there and are not needed."""
    row = json.loads(line)
    return _arrival(row["arrival_time_ns"], row["input_toks"], row["output_toks"])


READERS: dict[str, Callable[[str], Arrival | None]] = {
    "arrivals": _own,
    "azure": _azure,
    "mooncake": _mooncake,
    "vidur": _vidur,
    "llmservingsim": _llmservingsim,
}
