"""The shapes for which passes are captured: rows and flat tokens, each rounded up to one of a few sizes.

Owns integers only. Rows of different widths share a bucket, as tokens are flat and a marker says which row each is of;
so there are log(slots) * log(block) shapes and not one for each width. `graphs.py` and `blocks.py` capture them.
"""

import attrs

from ..statemachine.errors import LocalError


def steps(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})


def fitting(number: int, sizes: list[int]) -> int:
    """The smallest of the ascending `sizes` that holds `number`. Past the largest nothing is cut: that is our bug."""
    for size in sizes:
        if number <= size:
            return size
    raise LocalError(f"{number} fits none of the captured sizes {sizes}")


@attrs.frozen
class Bucket:
    """`rows` rows of up to `width` tokens each, `tokens` together."""

    rows: int
    tokens: int
    width: int

    @property
    def sizes(self) -> list[int]:
        """Of the inputs of a pass: token_ids, positions, slots and cells of tokens, tokens of cells, slots of rows."""
        return [self.tokens] * 4 + [self.rows * self.width, self.rows]


def buckets(num_slots: int, verify_len: int) -> list[Bucket]:
    """Every bucket, the widest first, so that memory sees its peak at once. verify_len: the widest row, B + 1."""
    each = [(rows, per_row) for rows in reversed(steps(num_slots)) for per_row in reversed(steps(verify_len))]
    return [Bucket(rows, rows * per_row, 1 if per_row == 1 else verify_len) for rows, per_row in each]


def bucket_of(widths: list[int], *, num_slots: int, verify_len: int) -> Bucket:
    """The smallest bucket that holds rows of these widths. Raises LocalError when there is none."""
    rows = fitting(len(widths), steps(num_slots))
    per_row = [one for one in steps(verify_len) if one > 1 or max(widths) == 1]
    tokens = fitting(sum(widths), [rows * one for one in per_row])
    width = 1 if tokens == rows else verify_len
    if max(widths) > width:
        raise LocalError(f"a row of {max(widths)} tokens is wider than a verify pass of {verify_len}")
    return Bucket(rows, tokens, width)
