"""How long a simulated step takes: a measured cost table, or points of steps a second by tokens.

Owns both forms and what they say beyond their edges. `simulate.py` asks for each command.
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import attrs

from ...statemachine.errors import Refused
from ..core.costs import CostTable
from ..core.events import CommandRow, Decode, Seed
from ..service.cost_files import read_costs
from ..service.worker_rows import core_costs


class StepTimes(Protocol):
    """Both forms. `costs` is what the policies are told, `note` where the numbers come from."""

    @property
    def costs(self) -> CostTable: ...

    @property
    def note(self) -> str: ...

    def step_ns(self, rows: Sequence[CommandRow]) -> int:
        """The time of one command, scheduler and wire included."""


@attrs.frozen
class TableTimes:
    """A cost table; chunk tokens cost what one more token costs at the table's edge, `overhead_ns` comes on top."""

    costs: CostTable
    overhead_ns: int = 0
    note: str = ""

    def step_ns(self, rows: Sequence[CommandRow]) -> int:
        lens = [row.draft_len for row in rows if type(row) is Decode]
        chunk_lens = [len(row.token_ids) for row in rows if type(row) is Seed]
        drafting = sum(getattr(row, "propose_len", 0) > 0 for row in rows)
        total = self.overhead_ns + self.costs.draft(drafting)
        if lens:
            total += self.costs.target(len(lens), len(lens) + sum(lens))
            total += sum(chunk_lens) * self.token_ns
        elif chunk_lens:
            total += self.costs.target(1, 1) + (sum(chunk_lens) - 1) * self.token_ns
        return int(total)

    @property
    def token_ns(self) -> float:
        """One more token of a step that is wide already."""
        table = self.costs
        rows, widths = table.rows[-1], table.widths
        if len(widths) < 2:
            return table.target_ns[-1][0] / rows
        more = rows * (widths[-1] - widths[0])
        return (table.target_ns[-1][-1] - table.target_ns[-1][0]) / more


def table_times(path: Path, *, overhead_ns: int = 0) -> TableTimes:
    """Of a file that `dsparkd costs -o` wrote. Raises `Refused`."""
    return TableTimes(core_costs(read_costs(path)), overhead_ns, f"cost table {path.name}")


@attrs.frozen
class PointTimes:
    """Steps a second by tokens of a step: (tokens, steps a second) pairs.

    A block for some rows costs `draft_share` of a pass over their anchors.
    """

    costs: CostTable
    points: tuple[tuple[int, float], ...]
    draft_share: float
    note: str

    def step_ns(self, rows: Sequence[CommandRow]) -> int:
        num_tokens = sum(
            row.draft_len + 1 if type(row) is Decode else len(row.token_ids) if type(row) is Seed else 0 for row in rows
        )
        drafting = sum(getattr(row, "propose_len", 0) > 0 for row in rows)
        return int(_point_ns(self.points, num_tokens) + self.costs.draft(drafting))


def point_times(path: Path) -> PointTimes:
    """Of a JSON file: {"sps": [[tokens, steps a second], ...], "draft_share": 0.1, "note": "..."}. Raises `Refused`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        points = tuple((int(tokens), float(speed)) for tokens, speed in values["sps"])
        share, note = float(values.get("draft_share", 0.1)), str(values.get("note", path.name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Refused("BAD_FILE", f"{path}: expected {{sps, draft_share, note}}: {error}") from error
    return points_of(points, share, note, where=str(path))


def points_of(points: tuple[tuple[int, float], ...], share: float, note: str, *, where: str) -> PointTimes:
    """Judge points and make the table that the policies are told of them."""
    rising = all(low[0] < high[0] for low, high in pairwise(points))
    if not points or not rising or not all(tokens >= 1 and 1e-6 < speed < 1e9 for tokens, speed in points):
        raise Refused(
            "BAD_FILE", f"{where}: sps = {points!r}: expected rising token counts with steps a second in 1e-6..1e9"
        )
    if not 0 <= share <= 10:
        raise Refused("BAD_FILE", f"{where}: draft_share = {share}: expected 0..10")
    rows, widths = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8)
    target = tuple(tuple(int(_point_ns(points, count * width)) for width in widths) for count in rows)
    costs = CostTable(
        fingerprint=(("points", note),),
        context_len=0,
        rows=rows,
        widths=widths,
        target_ns=target,
        draft_ns=tuple(int(share * line[0]) for line in target),
    )
    return PointTimes(costs, points, share, note)


def _point_ns(points: tuple[tuple[int, float], ...], tokens: int) -> float:
    """Between points by time; beyond the last one each token costs as much as between the last two."""
    times = [1e9 / speed for _, speed in points]
    counts = [count for count, _ in points]
    high = bisect_right(counts, tokens)
    if high == 0:
        return times[0]
    if high == len(counts):
        if len(counts) == 1:
            return times[0] * max(1.0, tokens / counts[0])
        slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2])
        return times[-1] + max(0.0, slope) * (tokens - counts[-1])
    low = high - 1
    return times[low] + (times[high] - times[low]) * (tokens - counts[low]) / (counts[high] - counts[low])
