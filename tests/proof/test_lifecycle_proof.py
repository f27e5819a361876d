"""The lifecycle holds in every interleaving of the small scopes, and nothing in the tables can change unnoticed."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core.tables import TABLES, Machine
from dsparkd.scheduler.proof.equivalents import EQUIVALENT
from dsparkd.scheduler.proof.records import as_python, read, replay, write
from dsparkd.scheduler.proof.scopes import LARGE, SMALL
from dsparkd.scheduler.proof.verdict import describe_violation, failures, tell_story
from dsparkd.scheduler.proof.world import EngineWorld
from dsparkd.statemachine import request
from dsparkd.statemachine.errors import LocalError
from dsparkd.statemachine.explore import explore
from dsparkd.statemachine.table import Table

# A space that shrinks proves less without anybody noticing, so its size is written down.
STATES = {
    "boot": 2743,
    "decode": 3639,
    "faults": 5431,
    "bugs": 5448,
    "deaths": 10076,
    "frail": 1061,
    "chunks": 2211,
    "unseeded": 2688,
    "poison": 3342,
    "labels": 1678,
    "clients": 6847,
    "reuse": 1225,
    "prefixes": 1460,
    "slow": 3835,
    "stops": 2628,
    "drain": 8834,
}


def test_nothing_forbidden_happens_in_any_small_scope(verdict: dict[str, Any]) -> None:
    assert verdict["violations"] == []


def test_the_spaces_have_the_sizes_that_they_had(verdict: dict[str, Any]) -> None:
    assert {one["name"]: one["states"] for one in verdict["scopes"]} == STATES
    assert all(one["complete"] for one in verdict["scopes"])


def test_every_row_of_every_table_fires(verdict: dict[str, Any]) -> None:
    assert verdict["rows_unfired"] == []
    assert verdict["row_coverage"] == 1.0
    assert verdict["rows"] == sum(len(table.page.rows) for table in TABLES.values())


def test_every_named_situation_is_reached(verdict: dict[str, Any]) -> None:
    assert [name for name, reached in verdict["sometimes"].items() if not reached] == []
    assert len(verdict["sometimes"]) >= 40


def test_no_mutant_survives_but_the_listed_equivalents(verdict: dict[str, Any]) -> None:
    assert verdict["survivors"] == []
    assert verdict["not_equivalent"] == []
    assert verdict["mutants"] == verdict["refused"] + verdict["killed"] + len(EQUIVALENT)
    assert verdict["mutants"] > 2000
    assert len(EQUIVALENT) <= 0.03 * verdict["mutants"]
    assert failures(verdict) == []


def test_the_verdict_fails_on_each_thing_that_it_must_not_have(verdict: dict[str, Any]) -> None:
    bad = {
        "violations": [{"scope": "s", "problem": "p"}],
        "rows_unfired": ["a row"],
        "survivors": ["a mutant"],
        "not_equivalent": ["a mutant"],
        "sometimes": {"a situation": False},
        "scopes": [{"name": "s", "complete": False}],
        "equivalent": [{}] * 100,
    }
    for key, value in bad.items():
        assert len(failures({**verdict, key: value})) == 1, key


def test_scopes_have_names_of_their_own() -> None:
    names = [scope.name for scope in SMALL + LARGE]
    assert len(set(names)) == len(names)
    assert len(SMALL) >= 4


# ---- what a violation looks like --------------------------------------------------------------------------------


def without_requeue() -> dict[Machine, Any]:
    """A table whose law was taken out together with the effect, so that only the explorer can notice."""
    page = request.PAGE
    rows = tuple(
        attrs.evolve(row, effects=tuple(e for e in row.effects if e is not request.Effect.REQUEUE))
        if row.event is request.Event.WORKER_LOST and row.state is request.State.VERIFYING
        else row
        for row in page.rows
    )
    bonds = tuple(bond for bond in page.bonds if bond.effect is not request.Effect.REQUEUE)
    return {**TABLES, Machine.REQUEST: Table(attrs.evolve(page, rows=rows, bonds=bonds))}


def test_a_violation_is_told_by_a_shortest_way_as_python_and_as_a_file_that_replays(tmp_path: Path) -> None:
    scope = next(one for one in SMALL if one.name == "deaths")
    tables = without_requeue()
    found = explore(EngineWorld(scope, tables=tables))
    assert found.violation is not None
    moves = [move[0] for move in found.violation.path]
    assert moves == ["submit", "tick", "report", "tick", "die"]
    told = describe_violation(scope, found)
    assert "WorkerDied" in told["python"]
    story = tell_story(scope, found.violation.path, tables=tables)
    path = tmp_path / "violation.jsonl"
    write(path, scope.limits(), story)
    assert read(path) == (scope.limits(), story)
    with pytest.raises(LocalError, match="the queue is"):
        list(replay(path, tables=tables))
    last = list(replay(path))[-1]
    assert type(last[0]).__name__ == "WorkerDied"
    script = as_python(scope.limits(), story)
    names: dict[str, Any] = {}
    exec(script, names)
    assert names["core"].ledger.queue
    assert all(json.loads(line)["kind"] for line in path.read_text().splitlines())
