"""A compiled machine: `table.step(state, event, facts)` looks one transition up and changes nothing itself.

Owns compilation and look-up; never stores a subject's state (the ledger does) and never runs an effect (the core
does). A table with a defect refuses to be built and lists all of them.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Generic

import attrs

from .check import defects
from .errors import LocalError
from .rows import ALWAYS, Classifier, Declaration, E, F, Ignore, Row, S


class DefectiveTable(LocalError):
    """The declaration breaks a law. `defects` holds every sentence."""

    def __init__(self, name: str, found: list[str]) -> None:
        super().__init__(f"table {name} has {len(found)} defect(s):\n" + "\n".join(f"  - {one}" for one in found))
        self.defects = tuple(found)


class IllegalTransition(LocalError):
    """The cell is empty: nobody may send this event in this state."""


@attrs.frozen
class Step(Generic[S, F]):
    """One looked-up transition. `index` counts the table's rows, then its ignores, for coverage."""

    next: S
    effects: tuple[F, ...]
    index: int


class Table(Generic[S, E, F]):
    """A lawful `Declaration`, compiled to lists indexed by small integers.

    Raises `DefectiveTable` at construction with every defect found.
    """

    def __init__(self, page: Declaration[S, E, F]) -> None:
        found = defects(page)
        if found:
            raise DefectiveTable(page.name, found)
        self.page = page
        self.name = page.name
        self.listing: tuple[Row[S, E, F] | Ignore[S, E], ...] = (*page.rows, *page.ignores)
        self.ways = tuple(f"{row.state.name}>{row.next.name}" for row in page.rows)  # by row, for counting
        self._cells = [[self._compile(state, event) for event in page.events] for state in page.states]

    def step(self, state: S, event: E, facts: Any = None) -> Step[S, F]:
        """Return the transition that applies, or raise `IllegalTransition` and change nothing."""
        cell = self._cells[state][event]
        if type(cell) is Step:
            return cell
        if type(cell) is tuple:
            return cell[1][cell[0](facts)]  # type: ignore[no-any-return]
        raise IllegalTransition(f"{self.name}: event {event.name} is illegal in state {state.name} (facts: {facts!r})")

    def bind(self, handlers: Mapping[F, Callable[..., None]]) -> list[Callable[..., None]]:
        """Return `handlers` as a list by effect; a missing or foreign one is a `LocalError` that names it."""
        missing = [effect.name for effect in self.page.effects if effect not in handlers]
        foreign = [repr(key) for key in handlers if not isinstance(key, self.page.effects)]
        if missing or foreign:
            raise LocalError(f"{self.name}: effects without a handler: {missing}; foreign handlers: {foreign}")
        return [handlers[effect] for effect in self.page.effects]

    def _compile(self, state: S, event: E) -> Any:
        steps: dict[IntEnum | None, Step[S, F]] = {}
        for index, entry in enumerate(self.listing):
            if (entry.state, entry.event) != (state, event):
                continue
            if isinstance(entry, Row):
                steps[entry.case] = Step(entry.next, entry.effects, index)
            else:
                return Step(state, (), index)
        if not steps:
            return None
        if ALWAYS in steps:
            return steps[ALWAYS]
        classifier: Classifier = self.page.classifiers[event]
        return classifier.classify, [steps[case] for case in classifier.cases]
