"""What an exploration reached: how often each row fired, and for each row a few worlds from which one move fires it.

Owns the counting and the witnesses, from which mutants are run; decides nothing.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from ..core.tables import Machine
from .moves import Move
from .sometimes import Sometimes
from .world import EngineWorld

WITNESSES_PER_KIND = 2
RowKey = tuple[Machine, int]
Witness = tuple[EngineWorld, Move]


class Log:
    """Stands where a core counts its fired rows, and writes each of them down."""

    def __init__(self, machine: Machine, fired: list[RowKey]) -> None:
        self.machine, self.fired = machine, fired

    def __getitem__(self, index: int) -> int:
        return 0

    def __setitem__(self, index: int, count: int) -> None:
        self.fired.append((self.machine, index))


class Coverage:
    """Watches explorations: pass `watch` to `explore`, and start from `attach(world)`."""

    def __init__(self) -> None:
        self.rows: Counter[RowKey] = Counter()
        self.witnesses: dict[RowKey, list[Witness]] = {}
        self.sometimes = Sometimes()
        self._just_fired: list[RowKey] = []
        self._kept: Counter[Any] = Counter()

    def attach(self, world: EngineWorld) -> EngineWorld:
        """A fork whose descendants all report here. The rows that booted it count as fired."""
        for machine, counts in zip(Machine, world.core.fired, strict=True):
            self.rows.update({(machine, index): count for index, count in enumerate(counts) if count})
        twin = world.fork()
        twin.core.fired = [Log(machine, self._just_fired) for machine in Machine]  # type: ignore[misc]
        return twin

    def watch(self, before: EngineWorld, move: Move, after: EngineWorld, path: Callable[[], tuple[Any, ...]]) -> None:
        for key in self._just_fired:
            self.rows[key] += 1
            kind = (key, *_kind(before), move[0])
            if self._kept[kind] < WITNESSES_PER_KIND:
                self._kept[kind] += 1
                self.witnesses.setdefault(key, []).append((before, move))
        self._just_fired.clear()
        self.sometimes.watch(before, move, after)


def _kind(world: EngineWorld) -> tuple[Any, ...]:
    """What makes a witness worth keeping beside another: who is where, and what time has done."""
    ledger = world.core.ledger
    return (
        world.scope.name,
        ledger.step is None,
        len(ledger.requests),
        len(ledger.seated),
        len(ledger.condemned),
        world.progress_ran(),
        any(one.restarts for one in ledger.requests.values()),
    )
