"""Mutants of the six tables, each run until something notices: the proof that the checks have teeth.

Owns the run of one mutant: first the moves that fire its own row, in the worlds kept as witnesses, then everything
near them, then every small scope from the start. `verdict.py` spreads the mutants over the cores.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ...statemachine.explore import explore
from ...statemachine.mutants import Mutant, mutants
from ...statemachine.table import DefectiveTable, Table
from ..core.tables import TABLES, Machine, Tables
from .coverage import RowKey, Witness
from .scope import Scope
from .world import EngineWorld

STAGES = ((1, 400), (3, 4000))  # how far from the witnesses, and how many states at most


class Uncounted:
    """Stands where a core counts its fired rows; mutants may have fewer of them."""

    def __getitem__(self, index: int) -> int:
        return 0

    def __setitem__(self, index: int, count: int) -> None:
        pass


UNCOUNTED: Any = [Uncounted() for _ in Machine]


@attrs.frozen
class Fate:
    """What became of a mutant: `refused` when it was built, `killed` at a stage, or `survived` everything."""

    mutant: str
    verdict: str
    why: str = ""


def every_mutant() -> list[tuple[Machine, Mutant]]:
    return [(machine, mutant) for machine, table in TABLES.items() for mutant in mutants(table.page)]


def judge(
    machine: Machine,
    mutant: Mutant,
    witnesses: Mapping[RowKey, Sequence[Witness]],
    *,
    scopes: Sequence[Scope] = (),
    stages: Sequence[tuple[int, int]] = STAGES,
) -> Fate:
    """Build the mutant and run it until it is noticed, or until `stages` and `scopes` are through."""
    try:
        table = Table(mutant.page)
    except DefectiveTable as refusal:
        return Fate(mutant.name, "refused", refusal.defects[0])
    tables = {**TABLES, machine: table}
    known = [witness for row in mutant.rows for witness in witnesses.get((machine, row), ())]
    for stage in _stages(known, tables, stages, scopes):
        if stage is not None:
            return Fate(mutant.name, "killed", stage)
    return Fate(mutant.name, "survived", f"{len(known)} witnesses")


def _stages(
    known: Sequence[Witness], tables: Tables, stages: Sequence[tuple[int, int]], scopes: Sequence[Scope]
) -> Iterator[str | None]:
    """Of each stage what it noticed, the cheapest first."""
    fired = []
    for before, move in known:
        world = before.fork(tables=tables)
        world.core.fired = UNCOUNTED
        try:
            world.act(move)
        except Exception as error:
            yield f"by its witness: {_line(error)}"
        fired.append(world)
    for depth, max_states in stages:
        found = explore(fired, max_depth=depth, max_states=max_states).violation
        yield None if found is None else f"{depth} moves from its witness: {found.problem.splitlines()[0][:200]}"
    for scope in scopes:
        try:
            start = EngineWorld(scope, tables=tables)
        except Exception as error:
            yield f"in scope {scope.name}: {_line(error)}"
            return
        found = explore(start).violation
        yield None if found is None else f"in scope {scope.name}: {found.problem.splitlines()[0][:200]}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
