"""The laws of tables: every kind of defect is refused by name, every shipped table is lawful, look-up is total."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core.tables import TABLES
from dsparkd.statemachine import render, request
from dsparkd.statemachine.errors import LocalError
from dsparkd.statemachine.rows import Bond, Classifier, Declaration, Escape, Ignore, Row
from dsparkd.statemachine.table import DefectiveTable, IllegalTransition, Step, Table


class Light(IntEnum):
    RED = 0
    GREEN = 1
    OFF = 2


class Push(IntEnum):
    GO = 0
    HALT = 1
    CUT = 2


class Noise(IntEnum):
    BELL = 0


class Power(IntEnum):
    WEAK = 0
    STRONG = 1


def power(facts: Any) -> Power:
    return Power.STRONG if facts else Power.WEAK


LAWFUL = Declaration(
    name="LIGHT",
    states=Light,
    events=Push,
    effects=Noise,
    initial=Light.RED,
    finals=frozenset({Light.OFF}),
    classifiers={Push.GO: Classifier(Power, power)},
    rows=(
        Row(Light.RED, Push.GO, Light.GREEN, Power.STRONG, (Noise.BELL,)),
        Row(Light.RED, Push.GO, Light.RED, Power.WEAK),
        Row(Light.RED, Push.CUT, Light.OFF),
        Row(Light.GREEN, Push.HALT, Light.RED),
        Row(Light.GREEN, Push.CUT, Light.OFF),
    ),
    ignores=(Ignore(Light.RED, Push.HALT, "it stands already"),),
    laws=(Escape(Push.CUT, to=frozenset({Light.OFF})),),
)


def changed(*, drop: int | None = None, add: tuple[Any, ...] = (), **fields: Any) -> Declaration[Any, Any, Any]:
    rows = [row for index, row in enumerate(LAWFUL.rows) if index != drop]
    return attrs.evolve(LAWFUL, **{"rows": (*rows, *add), **fields})


DEFECTS: dict[str, tuple[Declaration[Any, Any, Any], str]] = {
    "duplicate row": (changed(add=(Row(Light.GREEN, Push.HALT, Light.GREEN),)), "duplicate row at (GREEN, HALT)"),
    "row without case beside others": (changed(add=(Row(Light.RED, Push.GO, Light.RED),)), "without a case stands"),
    "uncovered case": (changed(drop=1), "(RED, GO) does not cover Power: ['WEAK'] missing"),
    "case of a foreign enum": (
        changed(drop=1, add=(Row(Light.RED, Push.GO, Light.RED, Noise.BELL),)),
        "cases outside Power",
    ),
    "case without classifier": (changed(classifiers={}), "GO has no classifier"),
    "idle classifier": (
        changed(classifiers={**LAWFUL.classifiers, Push.CUT: Classifier(Power, power)}),
        "classifier of CUT decides nothing",
    ),
    "unreachable state": (changed(drop=0, add=(Row(Light.RED, Push.GO, Light.RED, Power.STRONG),)), "GREEN is unreach"),
    "unused event": (changed(drop=3), "event HALT is in no row"),
    "unused effect": (
        changed(drop=0, add=(Row(Light.RED, Push.GO, Light.GREEN, Power.STRONG),)),
        "effect BELL is in no row",
    ),
    "final with an exit": (changed(add=(Row(Light.OFF, Push.GO, Light.RED),)), "final state OFF has an exit"),
    "cell missing where the law wants a way out": (changed(drop=4), "escape law: CUT in GREEN"),
    "no path to a final state": (
        attrs.evolve(LAWFUL, rows=(*LAWFUL.rows[:3], Row(Light.GREEN, Push.HALT, Light.GREEN)), laws=()),
        "state GREEN has no path to OFF",
    ),
    "no path home": (
        attrs.evolve(LAWFUL, home=Light.RED, finals=frozenset()),
        "state OFF has no path to RED",
    ),
    "broken escape law": (changed(laws=(Escape(Push.CUT, to=frozenset({Light.RED})),)), "CUT in RED must lead to RED"),
    "ignored where the law forbids": (
        changed(drop=2, ignores=(*LAWFUL.ignores, Ignore(Light.RED, Push.CUT, "never mind"))),
        "CUT in RED must lead to OFF, found nothing",
    ),
    "ignored and handled": (
        changed(ignores=(*LAWFUL.ignores, Ignore(Light.GREEN, Push.HALT, "why not"))),
        "(GREEN, HALT) is ignored and also has a row",
    ),
    "ignored without a reason": (
        changed(ignores=(Ignore(Light.RED, Push.HALT, "  "),)),
        "(RED, HALT) is ignored without a reason",
    ),
    "effect outside the states that it belongs to": (
        changed(bonds=(Bond(Noise.BELL, into=frozenset({Light.RED})),)),
        "BELL stands only in rows that lead to RED, found in RED --GO[STRONG]--> GREEN",
    ),
    "effect missing where it belongs": (
        changed(bonds=(Bond(Noise.BELL, into=frozenset({Light.GREEN, Light.OFF})),)),
        "BELL is missing in RED --CUT--> OFF",
    ),
    "members that do not count": (changed(effects=IntEnum("Gap", {"BELL": 1})), "members must count 0, 1, 2"),
    "neither final state nor home": (changed(finals=frozenset()), "names neither a final state nor a home"),
    "ignored state of another machine": (
        changed(ignores=(*LAWFUL.ignores, Ignore(request.State.QUEUED, Push.GO, "why not"))),
        "ignores: <State.QUEUED: 0> is not a member of Light",
    ),
    "law about another machine": (
        changed(laws=(Escape(Push.CUT, to=frozenset({request.State.SEEDING})),)),
        "laws: <State.SEEDING: 2> is not a member of Light",
    ),
    "bond of another machine": (
        changed(bonds=(Bond(request.Effect.SEAT, into=frozenset({Light.RED})),)),
        "bonds: <Effect.SEAT: 0> is not a member of Noise",
    ),
    "initial state of another machine": (
        changed(initial=request.State.QUEUED),
        "initial: <State.QUEUED: 0> is not a member of Light",
    ),
    "member of another machine": (
        changed(add=(Row(request.State.QUEUED, Push.HALT, Light.RED),)),
        "is not a member of Light",
    ),
}


@pytest.mark.parametrize("kind", DEFECTS)
def test_a_defect_is_refused_by_name(kind: str) -> None:
    page, sentence = DEFECTS[kind]
    with pytest.raises(DefectiveTable) as caught:
        Table(page)
    assert any(sentence in one for one in caught.value.defects), caught.value.defects


def test_all_defects_are_listed_at_once() -> None:
    with pytest.raises(DefectiveTable) as caught:
        Table(changed(drop=1, ignores=(Ignore(Light.RED, Push.HALT, ""),)))
    assert len(caught.value.defects) == 2


def test_a_lawful_table_steps_by_cases_and_ignores_with_a_reason() -> None:
    table = Table(LAWFUL)
    assert table.step(Light.RED, Push.GO, True) == Step(Light.GREEN, (Noise.BELL,), 0)
    assert table.step(Light.RED, Push.GO, False).next is Light.RED
    assert table.step(Light.RED, Push.HALT) == Step(Light.RED, (), len(LAWFUL.rows))


def cells() -> Iterator[tuple[Any, Any, Any]]:
    for table in TABLES.values():
        for state in table.page.states:
            for event in table.page.events:
                yield table, state, event


def test_every_cell_of_every_machine_steps_ignores_or_is_illegal() -> None:
    for table, state, event in cells():
        listed = [entry for entry in table.listing if (entry.state, entry.event) == (state, event)]
        classifier = table.page.classifiers.get(event)
        if not listed:
            with pytest.raises(IllegalTransition, match=f"{event.name} is illegal in state {state.name}"):
                table.step(state, event, None)
        elif classifier is None or len(listed) == 1:
            assert table.listing[table.step(state, event).index] is listed[0]
        else:
            assert {entry.case for entry in listed} == set(classifier.cases)


def test_an_effect_without_a_handler_is_refused() -> None:
    with pytest.raises(LocalError, match="BELL"):
        Table(LAWFUL).bind({})
    with pytest.raises(LocalError, match="foreign"):
        Table(LAWFUL).bind({Noise.BELL: print, request.Effect.END: print})


def test_pictures_show_every_row_and_every_ignored_cell() -> None:
    for table in TABLES.values():
        text = render.listing(table)
        assert all(str(row) in text for row in table.page.rows)
        assert all(one.why in text for one in table.page.ignores)
        assert render.matrix(table).count("\n") == len(table.page.states) + 1
        assert all(state.name in render.mermaid(table) for state in table.page.states)
