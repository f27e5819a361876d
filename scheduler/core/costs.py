"""What a step costs: a measured table, made monotone, and interpolated between its points.

Owns the table as a value and its arithmetic: integers and + - * /, no clock. The worker measures while it warms up
(`worker/costs.py`), READY carries the numbers, the core adopts the first READY's; policies read it in the ledger.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import attrs

Correction = tuple[int, int, int, int]  # (rows, width or 0 for the drafter, measured ns, used ns)


@attrs.frozen(kw_only=True)
class CostTable:
    """Times in ns by rows and tokens a row (`widths`); the drafter's by rows, nothing without a drafter.

    `fingerprint` names what was measured, `context_len` how many positions each row's window held meanwhile.
    """

    fingerprint: tuple[tuple[str, str], ...]
    context_len: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    target_ns: tuple[tuple[int, ...], ...]  # [rows][widths]
    draft_ns: tuple[int, ...]  # [rows] or empty
    corrections: tuple[Correction, ...] = ()

    def target(self, num_rows: int, num_tokens: int) -> float:
        """A verify pass of `num_rows` rows with `num_tokens` tokens in all, in ns; nothing for no rows."""
        if num_rows < 1:
            return 0.0
        width = num_tokens / num_rows
        low, high, share = _between(self.rows, num_rows)
        below = _at(self.widths, self.target_ns[low], width)
        above = _at(self.widths, self.target_ns[high], width)
        return below + (above - below) * share

    def draft(self, num_rows: int) -> float:
        """A block for `num_rows` rows, their context included, in ns; nothing for no rows or without a drafter."""
        return _at(self.rows, self.draft_ns, num_rows) if num_rows > 0 and self.draft_ns else 0.0


def cost_problems(table: CostTable) -> list[str]:
    """Say what makes a table unusable, each with key, value and expectation. Flat is legal; for falls see `falls`."""
    problems = []
    for key, axis in (("rows", table.rows), ("widths", table.widths)):
        if not axis or not all(_positive(one) for one in axis) or any(low >= high for low, high in pairwise(axis)):
            problems.append(f"{key} = {list(axis)!r}: expected rising integers, 1 or more")
    if type(table.context_len) is not int or table.context_len < 0:
        problems.append(f"context_len = {table.context_len!r}: expected an integer, 0 or more")
    lens = [len(line) for line in table.target_ns]
    if lens != [len(table.widths)] * len(table.rows):
        problems.append(
            f"target_ns has lines of {lens} times: expected {len(table.rows)} lines of {len(table.widths)} each"
        )
    if len(table.draft_ns) not in (0, len(table.rows)):
        problems.append(f"draft_ns has {len(table.draft_ns)} times: expected {len(table.rows)}, or none")
    for key, line in (*((f"target_ns[{index}]", line) for index, line in enumerate(table.target_ns)), _draft(table)):
        problems += [
            f"{key}[{index}] = {time!r}: expected nanoseconds, an integer, 1 or more"
            for index, time in enumerate(line)
            if not _positive(time)
        ]
    return problems


def falls(table: CostTable) -> list[str]:
    """Where more work is said to cost less: measured tables are corrected, those of files refused."""
    corrected = monotone(table)
    return [
        f"{'draft_ns' if width == 0 else f'target_ns at {width} tokens a row'}, {rows} rows = {measured}: "
        f"expected times that never fall as work grows (monotone would be {used})"
        for rows, width, measured, used in corrected.corrections
    ]


def monotone(table: CostTable) -> CostTable:
    """Pool adjacent violators along the widths, then along the rows, and name each time that changed.

    The second pass keeps what the first one made: pooling keeps the order of lines that are ordered at every point.
    """
    by_width = [pool(line) for line in table.target_ns]
    columns = [pool(column) for column in zip(*by_width, strict=True)]
    target_ns = tuple(zip(*columns, strict=True))
    draft_ns = pool(table.draft_ns)
    corrections = [
        (rows, width, measured, used)
        for rows, line, now in zip(table.rows, table.target_ns, target_ns, strict=True)
        for width, measured, used in zip(table.widths, line, now, strict=True)
        if measured != used
    ]
    corrections += [
        (rows, 0, measured, used)
        for rows, measured, used in zip(table.rows, table.draft_ns, draft_ns, strict=False)
        if measured != used
    ]
    return attrs.evolve(table, target_ns=target_ns, draft_ns=draft_ns, corrections=tuple(corrections))


def pool(times: Sequence[int]) -> tuple[int, ...]:
    """The nearest times that never fall: neighbours that do are replaced by their mean, rounded down."""
    blocks: list[tuple[int, int]] = []  # (sum, count)
    for time in times:
        total, count = time, 1
        while blocks and blocks[-1][0] * count > total * blocks[-1][1]:
            last = blocks.pop()
            total, count = total + last[0], count + last[1]
        blocks.append((total, count))
    return tuple(total // count for total, count in blocks for _ in range(count))


def _between(axis: Sequence[int], value: float) -> tuple[int, int, float]:
    """The points around `value` and how far it is between them; beyond the ends, the end."""
    high = bisect_right(axis, value)
    if high == 0 or high == len(axis):
        end = 0 if high == 0 else high - 1
        return end, end, 0.0
    low = high - 1
    return low, high, (value - axis[low]) / (axis[high] - axis[low])


def _at(axis: Sequence[int], times: Sequence[int], value: float) -> float:
    low, high, share = _between(axis, value)
    return times[low] + (times[high] - times[low]) * share


def _draft(table: CostTable) -> tuple[str, Sequence[int]]:
    return "draft_ns", table.draft_ns


def _positive(value: object) -> bool:
    return type(value) is int and value >= 1
