"""The policies `schedule:1=7/4=3/8=1` and `max_concurrency:4`: shorter drafts when more rows decode at once.

Owns their text form and every fault that a table of lengths can have. R is the number of rows that are ready to decode
when a step is planned, those with drafting off included; a prompt's last chunk gets the same length as they do.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import attrs

from ....statemachine import request
from ....statemachine.errors import refuse_all
from ..ledger import Ledger, Request

Pairs = tuple[tuple[int, int], ...]
SEED_READY = request.State.SEED_READY


def num_decoding(rows: Sequence[Request]) -> int:
    """R: `decide` is handed decode rows and chunks, and only the former count."""
    return sum(1 for one in rows if one.state is not SEED_READY)


@attrs.frozen
class Schedule:
    """`steps` are (rows, drafts): up to so many rows, so many drafts; none beyond the last. Raises `Refused`."""

    steps: Pairs
    name: str = "schedule"
    version: int = 1

    def __attrs_post_init__(self) -> None:
        refuse_all("schedule", schedule_problems(self.steps))

    @property
    def max_len(self) -> int:
        return self.steps[0][1]  # lengths never grow with the rows

    @property
    def bounds(self) -> tuple[int, ...]:
        return tuple(bound for bound, _ in self.steps)

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int]:
        return [self.length(num_decoding(rows))] * len(rows)

    def length(self, num_rows: int) -> int:
        for bound, length in self.steps:
            if num_rows <= bound:
                return length
        return 0


@attrs.frozen
class MaxConcurrency:
    """As long as can be for up to `bound` rows, none beyond. The core lowers it to `max_draft_len`."""

    bound: int
    name: str = "max_concurrency"
    version: int = 1
    max_len: int | None = None

    @property
    def bounds(self) -> tuple[int, ...]:
        return (self.bound,)

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int]:
        block_len = 0 if ledger.worker.capacity is None else ledger.worker.capacity.block_len
        return [block_len if num_decoding(rows) <= self.bound else 0] * len(rows)


def schedule_pairs(text: str) -> list[tuple[str, str]]:
    """Split `1=7/4=3`; what is no pair keeps an empty value, which `schedule_problems` names."""
    parts = [part.partition("=") for part in text.split("/")] if text else []
    return [(key, value) for key, _, value in parts]


def schedule_problems(pairs: Iterable[tuple[Any, Any]], *, max_draft_len: int | None = None) -> list[str]:
    """Say everything that is wrong with a table of lengths: each line has the key, the value and what was expected."""
    pairs = list(pairs)
    if not pairs:
        return ["no keys: expected at least one, such as 4 = 7"]
    problems: list[str] = []
    good: dict[int, int] = {}
    for key, value in pairs:
        rows, length = _whole(key), _whole(value)
        if rows is None or rows < 1:
            problems.append(f"key {key!r} = {value!r}: expected a number of rows, 1 or more, as the key")
        elif rows in good:
            problems.append(f"key {key!r} = {value!r}: expected each key once, {rows} = {good[rows]} is there already")
        if length is None or length < 0:
            problems.append(f"key {key!r} = {value!r}: expected a number of drafts, 0 or more, as the value")
        elif rows is not None and rows >= 1:
            good.setdefault(rows, length)
    ordered = sorted(good.items())
    for (fewer, longest), (more, length) in pairwise(ordered):
        if length > longest:
            problems.append(
                f"key {more} = {length}: expected {longest} or less, as {fewer} rows have: "
                "a longer draft at more rows is refused"
            )
    if max_draft_len is not None and ordered and ordered[0][1] != max_draft_len:
        rows, length = ordered[0]
        problems.append(f"key {rows} = {length}: expected max_draft_len = {max_draft_len} at the smallest key")
    return problems


def schedule_of(pairs: Iterable[tuple[Any, Any]]) -> Schedule:
    """Make the policy of keys and values as people write them. Raises `Refused` (BAD_CONFIG) with every fault."""
    pairs = list(pairs)
    refuse_all("schedule", schedule_problems(pairs))
    return Schedule(tuple(sorted((int(key), int(value)) for key, value in pairs)))


def _whole(value: Any) -> int | None:
    """An integer, or text that reads as one: keys of TOML and JSON tables are text."""
    if type(value) is int:
        return value
    return int(value) if type(value) is str and value.isascii() and value.isdecimal() else None
