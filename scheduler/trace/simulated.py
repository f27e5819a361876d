"""A worker for simulations: it knows lengths and chances, no text; a function call, no socket and no clock.

Owns what windows hold in numbers and how many drafts stand. How many of a block stand depends on the request and the
position alone, not on the policy, so that policies meet the same luck. `simulate.py` runs it under the real core.
"""

from collections.abc import Sequence

import attrs

from ...statemachine.errors import LocalError, Refused
from ..core.events import Decode, Emitted, ReportRow, Scrub, Scrubbed, Seed, Seeded
from .text_hash import MASK, mix

FILLER = 0  # every emitted token: nobody looks at it
SCALE = 1.0 / (MASK + 1)


@attrs.frozen
class Acceptance:
    """`chances[j]`: the chance that draft j stands when all before it do. As long as the block."""

    chances: tuple[float, ...]
    note: str = ""

    def __attrs_post_init__(self) -> None:
        if not all(0 <= one <= 1 for one in self.chances):
            raise Refused("BAD_CONFIG", f"acceptance = {self.chances!r}: expected chances from 0 to 1")

    @classmethod
    def of_mean(cls, mean: float, block_len: int) -> "Acceptance":
        """Equal chances whose whole blocks emit `mean` tokens a pass, the extra one included. Raises `Refused`."""
        if not 1 <= mean <= block_len + 1:
            raise Refused("BAD_CONFIG", f"acceptance = {mean}: expected an acceptance length of 1..{block_len + 1}")
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            emitted = sum(middle**power for power in range(block_len + 1))
            low, high = (middle, high) if emitted < mean else (low, middle)
        return cls((low,) * block_len, f"mean {mean:g}")

    def num_true(self, name: int, position: int) -> int:
        """How many drafts of the block at `position` of request `name` are the target's own."""
        state = mix(mix(name & MASK) ^ position)
        for index, chance in enumerate(self.chances):
            state = mix((state + 0x9E3779B97F4A7C15) & MASK)
            if state * SCALE >= chance:
                return index
        return len(self.chances)


class _Window:
    __slots__ = ("length", "name", "num_true")

    def __init__(self, name: int, length: int) -> None:
        self.name, self.length, self.num_true = name, length, 0


class SimulatedWorker:
    """Runs rows. A request's name is its seed."""

    def __init__(self, num_slots: int, acceptance: Acceptance, *, seed: int = 0) -> None:
        self.acceptance, self.seed = acceptance, seed
        self.windows: list[_Window | None] = [None] * num_slots

    def run_rows(self, rows: Sequence[Decode | Seed | Scrub]) -> list[ReportRow]:
        return [self._decode(row) if type(row) is Decode else self._other(row) for row in rows]

    def _decode(self, row: Decode) -> Emitted:
        window = self.windows[row.slot]
        if window is None:
            raise LocalError(f"slot {row.slot} decodes before it is seeded")
        accepted = min(row.draft_len, window.num_true)
        window.length += accepted + 1
        return self._emitted(row, window, accepted)

    def _other(self, row: Decode | Seed | Scrub) -> ReportRow:
        if type(row) is Scrub:
            self.windows[row.slot] = None
            return Scrubbed(row.slot)
        if type(row) is not Seed:
            raise LocalError(f"{row!r} is no row of a command")
        end = row.start_pos + len(row.token_ids)
        window = self.windows[row.slot]
        if row.opens is not None or window is None:
            window = self.windows[row.slot] = _Window(row.params.seed, 0)
        window.length = end
        return self._emitted(row, window, 0) if row.last else Seeded(row.slot, row.epoch)

    def _emitted(self, row: Decode | Seed, window: _Window, accepted: int) -> Emitted:
        if row.propose_len:
            window.num_true = self.acceptance.num_true(window.name ^ self.seed << 20, window.length)
        return Emitted(row.slot, row.epoch, [FILLER] * (accepted + 1), accepted, row.propose_len)
