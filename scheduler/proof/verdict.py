"""The whole proof as one value: laws, explorations, coverage, situations and mutants, spread over the cores.

Owns the run and the sum; each core takes a share of the small scopes and runs every mutant from the worlds that its
share kept, then the large scopes, one at a time. `cli/check.py` shows progress and writes the verdict.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

import attrs

from ...statemachine.explore import Exploration, explore
from ..core.tables import TABLES, Machine
from .coverage import Coverage, RowKey
from .equivalents import EQUIVALENT
from .mutation import STAGES, Fate, every_mutant, judge
from .records import Record, as_python
from .scope import Scope
from .scopes import LARGE, SMALL
from .world import EngineWorld

MOST_EQUIVALENT = 0.03


@attrs.define
class Share:
    """What one task found."""

    scopes: list[dict[str, Any]] = attrs.field(factory=list)
    rows: Counter[RowKey] = attrs.field(factory=Counter)
    sometimes: dict[str, bool] = attrs.field(factory=dict)
    violations: list[dict[str, Any]] = attrs.field(factory=list)
    fates: list[Fate] = attrs.field(factory=list)


# Scopes, and whether mutants run from what they kept: not at all, quickly (the listed equivalents near their witnesses
# only), or as far as it goes.
Task = tuple[tuple[Scope, ...], str]
Progress = Callable[[int, int], None]  # (tasks done, of how many)


def prove(*, quick: bool = False, jobs: int = 2, progress: Progress = lambda done, total: None) -> dict[str, Any]:
    """Run everything (`quick`: without the large scopes) and return the verdict as plain values."""
    shares = deal(SMALL, jobs)
    tasks: list[Task] = [(tuple(share), "quickly" if quick else "far") for share in shares]
    tasks += [] if quick else [((scope,), "not") for scope in LARGE]
    found = _in_parallel(tasks, jobs, progress)
    fates = strongest([share.fates for share in found])
    fates = [_last_word(fate, SMALL) for fate in fates]
    return summary(found, fates)


def deal(scopes: Sequence[Scope], jobs: int) -> list[list[Scope]]:
    """Give the scopes to the jobs in turn, so that neighbours in the list (alike in size) go to different ones."""
    return [list(scopes[job::jobs]) for job in range(max(1, jobs)) if scopes[job::jobs]]


def run_task(task: Task) -> Share:
    scopes, mutants = task
    share, coverage = Share(), Coverage()
    for scope in scopes:
        start = coverage.attach(EngineWorld(scope))
        found = explore(start, watch=coverage.watch)
        share.scopes.append(
            {
                "name": scope.name,
                "states": found.num_states,
                "transitions": found.num_transitions,
                "depth": found.depth,
                "complete": found.complete,
            }
        )
        if found.violation is not None:
            share.violations.append(describe_violation(scope, found))
    share.rows, share.sometimes = coverage.rows, coverage.sometimes.reached
    if mutants != "not" and not share.violations:
        for machine, mutant in every_mutant():
            near = mutants == "quickly" and mutant.name in EQUIVALENT
            share.fates.append(judge(machine, mutant, coverage.witnesses, stages=STAGES[:1] if near else STAGES))
    return share


def describe_violation(scope: Scope, found: Exploration) -> dict[str, Any]:
    """The shortest way to it: as moves, as a script, and as records for a trace file."""
    assert found.violation is not None
    story = tell_story(scope, found.violation.path)
    return {
        "scope": scope.name,
        "problem": found.violation.problem,
        "moves": [list(move) for move in found.violation.path],
        "python": as_python(scope.limits(), story),
        "limits": scope.limits(),
        "story": story,
    }


def tell_story(scope: Scope, path: Sequence[Any], **options: Any) -> list[Record]:
    """Every input along a path, the one that breaks included."""
    story: list[Record] = []
    try:
        world = EngineWorld(scope, story=story, **options)
        for move in path:
            world.act(move)
    except Exception:
        return story  # the last input is the one that breaks
    return story


def strongest(fates: Sequence[Sequence[Fate]]) -> list[Fate]:
    """Of each mutant the best that any share made of it."""
    best: dict[str, Fate] = {}
    for fate in (fate for share in fates for fate in share):
        if fate.mutant not in best or fate.verdict != "survived":
            best[fate.mutant] = fate
    return list(best.values())


def _last_word(fate: Fate, scopes: Sequence[Scope]) -> Fate:
    """A survivor that is not listed runs through every small scope from the start before it counts as one."""
    if fate.verdict != "survived" or fate.mutant in EQUIVALENT:
        return fate
    machine, mutant = next((m, one) for m, one in every_mutant() if one.name == fate.mutant)
    return judge(machine, mutant, {}, scopes=scopes)


def summary(found: Sequence[Share], fates: Sequence[Fate]) -> dict[str, Any]:
    rows: Counter[RowKey] = sum((share.rows for share in found), Counter())
    names = [(machine, index) for machine, table in TABLES.items() for index in range(len(table.page.rows))]
    fired = [key for key in names if rows[key]]
    verdicts = Counter(fate.verdict for fate in fates)
    survivors = [fate.mutant for fate in fates if fate.verdict == "survived" and fate.mutant not in EQUIVALENT]
    sometimes: dict[str, bool] = {}
    for share in found:
        for name, reached in share.sometimes.items():
            sometimes[name] = sometimes.get(name, False) or reached
    return {
        "machines": [machine.name for machine in Machine],
        "rows": len(names),
        "rows_fired": len(fired),
        "row_coverage": len(fired) / len(names),
        "rows_unfired": [f"{m.name} {TABLES[m].page.rows[index]}" for m, index in names if not rows[m, index]],
        "mutants": len(fates),
        "refused": verdicts["refused"],
        "killed": verdicts["killed"],
        "survivors": survivors,
        "equivalent": [{"mutant": name, "reason": reason} for name, reason in EQUIVALENT.items()],
        "not_equivalent": _wrongly_listed(fates),
        "states_explored": sum(scope["states"] for share in found for scope in share.scopes),
        "scopes": [scope for share in found for scope in share.scopes],
        "sometimes": sometimes,
        "violations": [violation for share in found for violation in share.violations],
    }


def _wrongly_listed(fates: Sequence[Fate]) -> list[str]:
    known: Mapping[str, Fate] = {fate.mutant: fate for fate in fates}
    wrong = [name for name in EQUIVALENT if name in known and known[name].verdict != "survived"]
    strangers = [name for name in EQUIVALENT if known and name not in known]
    return [*wrong, *strangers]


def failures(verdict: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that a proof must not have; empty when it stands."""
    problems = [f"violation in scope {one['scope']}: {one['problem']}" for one in verdict["violations"]]
    problems += [f"row never fired: {row}" for row in verdict["rows_unfired"]]
    problems += [f"mutant survived: {name}" for name in verdict["survivors"]]
    problems += [f"listed as equivalent, but noticed or unknown: {name}" for name in verdict["not_equivalent"]]
    problems += [f"never reached: {name}" for name, reached in verdict["sometimes"].items() if not reached]
    problems += [f"scope {one['name']} was not finished" for one in verdict["scopes"] if not one["complete"]]
    if len(verdict["equivalent"]) > MOST_EQUIVALENT * max(1, verdict["mutants"]):
        problems.append(f"{len(verdict['equivalent'])} of {verdict['mutants']} mutants are listed as equivalent")
    return problems


def _in_parallel(tasks: Sequence[Task], jobs: int, progress: Progress) -> list[Share]:
    """Forked processes, so that they start with everything loaded."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        futures: list[Future[Share]] = [pool.submit(run_task, task) for task in tasks]
        waiting: set[Future[Share]] = set(futures)
        while waiting:
            progress(len(tasks) - len(waiting), len(tasks))
            waiting = wait(waiting, return_when=FIRST_COMPLETED).not_done
    progress(len(tasks), len(tasks))
    return [future.result() for future in futures]
