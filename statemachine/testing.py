"""Means to test any table in a few lines: sweep it, walk it, run a model beside it, and see that its mutants die.

Owns what is common to all tables; needs Hypothesis, nothing else of this floor does. For people who change a table of
the engine or keep one of their own; docs/testing-kit.md is the worked example.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from .errors import LocalError
from .mutants import mutants
from .rows import Declaration, Ignore, Row
from .table import DefectiveTable, IllegalTransition, Table

AnyTable = Table[Any, Any, Any]
Entry = Row[Any, Any, Any] | Ignore[Any, Any]


@attrs.frozen
class Cell:
    """One place of the state x event plane. `entries` are its rows by case, one Ignore, or nothing: illegal."""

    state: IntEnum
    event: IntEnum
    entries: tuple[Entry, ...]


def cells(table: AnyTable) -> Iterator[Cell]:
    """Every state x every event."""
    for state in table.page.states:
        for event in table.page.events:
            found = [entry for entry in table.listing if (entry.state, entry.event) == (state, event)]
            yield Cell(state, event, tuple(found))


def sweep(table: AnyTable, facts: Callable[[IntEnum, IntEnum | None], Any] = lambda event, case: None) -> int:
    """Step every cell in every case and return how many steps were taken.

    `facts(event, case)` makes facts that the event's classifier must call `case`. Raises `LocalError` when it does
    not, when a step is not the row that the table lists, or when an illegal cell steps.
    """
    steps = 0
    for cell in cells(table):
        if not cell.entries:
            try:
                table.step(cell.state, cell.event, facts(cell.event, None))
            except IllegalTransition:
                continue
            raise LocalError(f"{table.name}: {cell.event.name} is illegal in {cell.state.name} and steps")
        for entry in cell.entries:
            case = entry.case if isinstance(entry, Row) else None
            taken = table.step(cell.state, cell.event, facts(cell.event, case))
            if table.listing[taken.index] is not entry:
                raise LocalError(f"{table.name}: expected {entry}, took {table.listing[taken.index]}")
            steps += 1
    return steps


def events(table: AnyTable) -> st.SearchStrategy[IntEnum]:
    members: type[IntEnum] = table.page.events
    return st.sampled_from(list(members))


def lawful(table: AnyTable, state: IntEnum) -> list[Entry]:
    """What may happen in `state`: rows of every case, and what is ignored."""
    return [entry for entry in table.listing if entry.state == state]


@st.composite
def walks(draw: Any, table: AnyTable, max_len: int = 30) -> list[Row[Any, Any, Any]]:
    """Draw a lawful life from the initial state: the rows that it takes, until a final state or `max_len`."""
    state, taken = table.page.initial, []
    for _ in range(draw(st.integers(0, max_len))):
        rows = [entry for entry in lawful(table, state) if isinstance(entry, Row)]
        if not rows:
            break
        taken.append(draw(st.sampled_from(rows)))
        state = taken[-1].next
    return taken


class TableRules(RuleBasedStateMachine):
    """A rule machine that takes any lawful row and runs your model beside it.

    Set `table`; override `begin` (make the model), `run` (an effect happens to it) and `holds` (assert what must be).
    """

    table: ClassVar[AnyTable]

    def __init__(self) -> None:
        super().__init__()
        self._be_born()

    def _be_born(self) -> None:
        self.state: IntEnum = self.table.page.initial
        self.life: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Make the model."""

    def run(self, effect: IntEnum) -> None:
        """An effect happens to the model."""

    def holds(self) -> None:
        """Assert what must be true of the state and the model together."""

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        """Take any lawful row; in a final state a new life begins."""
        if not lawful(self.table, self.state):
            self._be_born()
        entry = data.draw(st.sampled_from(lawful(self.table, self.state)), label="row")
        self.life.append(str(entry))
        if isinstance(entry, Row):
            self.state = entry.next
            for effect in entry.effects:
                self.run(effect)

    @invariant()
    def check(self) -> None:
        self.holds()


def surviving_mutants(page: Declaration[Any, Any, Any], judge: Callable[[AnyTable], None]) -> list[str]:
    """Names of single changes of `page` that its laws let pass and that `judge(table)` does not raise for."""
    survivors = []
    for mutant in mutants(page):
        try:
            judge(Table(mutant.page))
        except DefectiveTable:
            continue
        except Exception:
            continue
        survivors.append(mutant.name)
    return survivors
