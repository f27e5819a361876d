"""Every single change of every row of a table: what a slip of the pen could make of it.

Owns the enumeration, and nothing of the judgement: a mutant is refused when its table is built, or killed by whoever
runs it (`scheduler/proof/mutation.py` for the engine, `testing.kill_mutants` for anybody's table).
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import attrs

from .rows import Declaration, Row

Page = Declaration[Any, Any, Any]


@attrs.frozen
class Mutant:
    """A changed declaration. `rows` are the numbers of the changed rows in the original, for finding witnesses."""

    name: str
    page: Page
    rows: tuple[int, ...]


def mutants(page: Page) -> Iterator[Mutant]:
    """Drop or add an effect, retarget to every other state, delete the row, swap two cases of a cell."""
    for number, row in enumerate(page.rows):
        for effect in row.effects:
            rest = tuple(one for one in row.effects if one != effect)
            yield _with(page, number, attrs.evolve(row, effects=rest), f"drop {effect.name}")
        for effect in page.effects:
            if effect not in row.effects:
                yield _with(page, number, attrs.evolve(row, effects=(*row.effects, effect)), f"add {effect.name}")
        for state in page.states:
            if state != row.next:
                yield _with(page, number, attrs.evolve(row, next=state), f"to {state.name}")
        rows = page.rows[:number] + page.rows[number + 1 :]
        yield Mutant(f"{page.name} {row}: delete", attrs.evolve(page, rows=rows), (number,))
    yield from _swapped(page)


def _swapped(page: Page) -> Iterator[Mutant]:
    for (here, one), (there, other) in combinations(enumerate(page.rows), 2):
        if (one.state, one.event) != (other.state, other.event):
            continue
        if (one.next, one.effects) == (other.next, other.effects):
            continue  # nothing would change
        rows = list(page.rows)
        rows[here], rows[there] = attrs.evolve(one, case=other.case), attrs.evolve(other, case=one.case)
        name = f"{page.name} {one}: swap with {other.case.name if other.case is not None else 'ALWAYS'}"
        yield Mutant(name, attrs.evolve(page, rows=tuple(rows)), (here, there))


def _with(page: Page, number: int, row: Row[Any, Any, Any], what: str) -> Mutant:
    rows = (*page.rows[:number], row, *page.rows[number + 1 :])
    return Mutant(f"{page.name} {page.rows[number]}: {what}", attrs.evolve(page, rows=rows), (number,))
