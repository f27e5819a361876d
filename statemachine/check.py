"""The laws of a table: every defect that makes it ambiguous, incomplete or inescapable, found as set arithmetic.

Owns the judgement, never the compilation; `table.Table` refuses to be built while `defects` returns anything.
"""

from collections import defaultdict
from collections.abc import Iterable
from enum import IntEnum

from .rows import ALWAYS, Declaration, E, F, Row, S

Cells = dict[tuple[S, E], list[Row[S, E, F]]]


def defects(page: Declaration[S, E, F]) -> list[str]:
    """Return one sentence for each defect of `page`; an empty list means that the table is lawful."""
    cells: Cells[S, E, F] = defaultdict(list)
    for row in page.rows:
        cells[row.state, row.event].append(row)
    return [
        *_foreign_members(page),
        *_ambiguous_cells(page, cells),
        *_uncovered_cells(page, cells),
        *_unused_members(page),
        *_unreachable_states(page),
        *_bad_finals(page),
        *_dead_ends(page),
        *_broken_laws(page, cells),
        *_broken_bonds(page),
    ]


def _foreign_members(page: Declaration[S, E, F]) -> Iterable[str]:
    """IntEnum members of different machines compare equal, so a foreign one would pass silently."""
    for where, member, enum in _named_members(page):
        if not isinstance(member, enum):
            yield f"{where}: {member!r} is not a member of {enum.__name__}"
    for enum in (page.states, page.events, page.effects):
        if [int(member) for member in enum] != list(range(len(enum))):
            yield f"{enum.__name__}: members must count 0, 1, 2, ... to be compiled to lists"


def _named_members(page: Declaration[S, E, F]) -> Iterable[tuple[object, IntEnum, type[IntEnum]]]:
    """Every member that the page names, where, and the enum that it must be of."""
    yield "initial", page.initial, page.states
    yield from (("finals", state, page.states) for state in page.finals)
    if page.home is not None:
        yield "home", page.home, page.states
    yield from (("classifiers", event, page.events) for event in page.classifiers)
    for row in page.rows:
        yield from ((row, state, page.states) for state in (row.state, row.next))
        yield row, row.event, page.events
        yield from ((row, effect, page.effects) for effect in row.effects)
    for ignore in page.ignores:
        yield from (("ignores", ignore.state, page.states), ("ignores", ignore.event, page.events))
    for law in page.laws:
        yield "laws", law.event, page.events
        yield from (("laws", state, page.states) for state in (*law.to, *law.stays))
    for bond in page.bonds:
        yield "bonds", bond.effect, page.effects
        yield from (("bonds", state, page.states) for state in bond.into)


def _ambiguous_cells(page: Declaration[S, E, F], cells: Cells[S, E, F]) -> Iterable[str]:
    for (state, event), rows in cells.items():
        where = f"({state.name}, {event.name})"
        cases = [row.case for row in rows]
        if len(set(cases)) < len(cases):
            yield f"duplicate row at {where}"
        if ALWAYS in cases and len(rows) > 1:
            yield f"a row without a case stands beside others at {where}"
    ignored = [(ignore.state, ignore.event) for ignore in page.ignores]
    for cell in ignored:
        if cell in cells or ignored.count(cell) > 1:
            yield f"({cell[0].name}, {cell[1].name}) is ignored and also has a row or a second ignore"
    for ignore in page.ignores:
        if not ignore.why.strip():
            yield f"({ignore.state.name}, {ignore.event.name}) is ignored without a reason"


def _uncovered_cells(page: Declaration[S, E, F], cells: Cells[S, E, F]) -> Iterable[str]:
    for (state, event), rows in cells.items():
        cases = {row.case for row in rows if row.case is not ALWAYS}
        if not cases:
            continue
        where = f"({state.name}, {event.name})"
        classifier = page.classifiers.get(event)
        if classifier is None:
            yield f"{where} has cases but {event.name} has no classifier"
            continue
        if [int(case) for case in classifier.cases] != list(range(len(classifier.cases))):
            yield f"{classifier.cases.__name__}: members must count 0, 1, 2, ... to be compiled to lists"
        foreign = [case for case in cases if not isinstance(case, classifier.cases)]
        missing = [case.name for case in classifier.cases if case not in cases]
        if foreign:
            yield f"{where} has cases outside {classifier.cases.__name__}: {sorted(case.name for case in foreign)}"
        if missing:
            yield f"{where} does not cover {classifier.cases.__name__}: {missing} missing"


def _unused_members(page: Declaration[S, E, F]) -> Iterable[str]:
    events = {row.event for row in page.rows}
    effects = {effect for row in page.rows for effect in row.effects}
    cased = {row.event for row in page.rows if row.case is not ALWAYS}
    for event in page.events:
        if event not in events:
            yield f"event {event.name} is in no row"
    for effect in page.effects:
        if effect not in effects:
            yield f"effect {effect.name} is in no row"
    for event in page.classifiers:
        if event not in cased:
            yield f"classifier of {event.name} decides nothing"


def _reach(page: Declaration[S, E, F], start: S, *, backwards: bool = False) -> set[S]:
    seen, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        for row in page.rows:
            source, target = (row.next, row.state) if backwards else (row.state, row.next)
            if source == here and target not in seen:
                seen.add(target)
                frontier.append(target)
    return seen


def _unreachable_states(page: Declaration[S, E, F]) -> Iterable[str]:
    reached = _reach(page, page.initial)
    for state in page.states:
        if state not in reached:
            yield f"state {state.name} is unreachable from {page.initial.name}"


def _bad_finals(page: Declaration[S, E, F]) -> Iterable[str]:
    for row in page.rows:
        if row.state in page.finals and row.next != row.state:
            yield f"final state {row.state.name} has an exit: {row}"


def _dead_ends(page: Declaration[S, E, F]) -> Iterable[str]:
    goals = page.finals if page.home is None else frozenset({page.home})
    if not goals:
        yield "the machine names neither a final state nor a home"
        return
    escaping: set[S] = set()
    for goal in goals:
        escaping |= _reach(page, goal, backwards=True)
    for state in page.states:
        if state not in escaping:
            yield f"state {state.name} has no path to {' or '.join(sorted(goal.name for goal in goals))}"


def _broken_laws(page: Declaration[S, E, F], cells: Cells[S, E, F]) -> Iterable[str]:
    ignored = {(ignore.state, ignore.event) for ignore in page.ignores}
    for law in page.laws:
        for state in page.states:
            if state in page.finals:
                continue
            rows = cells.get((state, law.event), [])
            ways = {row.next for row in rows}
            stays = (state, law.event) in ignored and state in law.stays
            if not stays and (not rows or not ways <= law.to):
                allowed = " or ".join(sorted(target.name for target in law.to))
                found = ", ".join(sorted(way.name for way in ways)) or "nothing"
                yield f"escape law: {law.event.name} in {state.name} must lead to {allowed}, found {found}"


def _broken_bonds(page: Declaration[S, E, F]) -> Iterable[str]:
    for bond in page.bonds:
        allowed = " or ".join(sorted(state.name for state in bond.into))
        for row in page.rows:
            bound = bond.effect in row.effects
            if bound and row.next not in bond.into:
                yield f"effect law: {bond.effect.name} stands only in rows that lead to {allowed}, found in {row}"
            enters = row.next in bond.into and row.state != row.next
            if bond.always and enters and not bound:
                yield f"effect law: {bond.effect.name} is missing in {row}, which leads to {row.next.name}"
