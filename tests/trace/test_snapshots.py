"""A snapshot forgets nothing: every attribute of every record comes back by value and type, and so it is with a fork.

Whoever adds a fact to the ledger finds out here: it must be in `freeze` and `thaw`, in `fork`, and either in the
fingerprint or in the list of those that decide nothing.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from dsparkd.scheduler.core import fingerprint
from dsparkd.scheduler.core import ledger as records
from dsparkd.scheduler.core.acceptance import Acceptance
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.events import Options, PassDetail, WorkerReady
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.core.ledger import Ledger, Record
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.results import Tokens
from dsparkd.scheduler.core.step_costs import StepCosts
from dsparkd.scheduler.service.snapshots import freeze, thaw
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import client, engine, request, slot, step, worker

COSTS = CostTable(
    fingerprint=(("target", "t"),), context_len=64, rows=(1, 4), widths=(1, 8), target_ns=((10, 17), (20, 90)),
    draft_ns=(3, 6),
)  # fmt: skip
LIMITS = Limits(num_slots=3, max_model_len=128)
RECORDS = [made for made in vars(records).values() if isinstance(made, type) and issubclass(made, Record)]
STATES = {
    "Request": request.State.SEEDING,
    "Slot": slot.State.QUARANTINED,
    "StepInFlight": step.State.OVERDUE,
    "Worker": worker.State.DEGRADED,
    "Client": client.State.AWAY,
    "Engine": engine.State.DRAINING,
}


def through_a_file(core: Core) -> Core:
    twin = Core(core.limits, core.policy)
    thaw(twin, msgspec.msgpack.decode(msgspec.msgpack.encode(freeze(core))))
    return twin


def marked() -> Core:
    """A core in which no attribute of any record is what a new record has: values that no engine reaches together."""
    bench = Bench("fixed:7", limits=LIMITS)
    for number in range(5):
        bench.submit(number, [number, 5, 6, 7] * 4, max_tokens=20)
    for _ in range(3):
        bench.tick()
        bench.answer()
    bench.tick()
    core = bench.core
    ledger = core.ledger
    assert ledger.step is not None
    every = [*ledger.requests.values(), *ledger.slots, ledger.step, ledger.worker, *ledger.clients.values()]
    for number, one in enumerate([*every, ledger.engine]):
        for name in one.__slots__:
            if name not in ("id", "rows", "requests", "prompt"):
                setattr(one, name, mark(type(one).__name__, name, getattr(one, name), number))
    ledger.now_ns, ledger.next_order, ledger.num_left = 77, 78, 79
    ledger.free, ledger.condemned, ledger.suspects = [2], [1], [3]
    ledger.acceptance, ledger.step_costs = (
        Acceptance((1.5,), (0.5,), 3, 1),
        StepCosts(counts=(1.0, 2.0, 3.0)),
    )
    ledger.timers = {(records.Timer.GRACE, 4): (9, None), (records.Timer.DRAIN, 0): (8, 99)}
    ledger.deadlines = [(5, 1, 0), (7, 2, 1)]
    for number, name in enumerate(vars(core.totals)):
        known = getattr(core.totals, name)
        marks: dict[type[Any], Any] = {int: 100 + number, list: [number], dict: {"X": number}}
        setattr(core.totals, name, marks[type(known)])
    core.fired = [[number + 1 for number in range(len(counts))] for counts in core.fired]
    return core


def mark(record: str, name: str, value: Any, number: int) -> Any:
    special = {
        "state": STATES[record],
        "options": Options(max_tokens=number + 3, stop_token_ids=frozenset({number, 2}), salt="s"),
        "held_confidence": (0.5, 1.0 + number),
        "past_confidence": (0.25,),
        "acceptance": Acceptance((2.5,), (1.5,), number, 1),
        "capacity": WorkerReady(1, 3, 128, 7, ("graphs",), COSTS, 64, True),
        "content": (4, number),
        "lost": ["graphs"],
        "owner": 2,
        "slot": 1,
        "front": True,
        "untold": [Tokens(1, 2, 3, [4, number], 1, None, 7, PassDetail(logprobs=[-0.5, -1.0]))],
    }
    if name in special:
        return special[name]
    marks: dict[type[Any], Callable[[], Any]] = {
        int: lambda: 1000 + number, str: lambda: f"text {number}", list: lambda: [number, 1]
    }  # fmt: skip
    return marks[type(value)]()


def seen(value: Any) -> Any:
    """A value with its types, records by their attributes."""
    if isinstance(value, Ledger):
        return {name: seen(one) for name, one in vars(value).items()}
    if isinstance(value, Record):
        return type(value).__name__, {name: seen(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, dict):
        return dict, [(seen(key), seen(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [seen(one) for one in value]
    return type(value), value


def differing(one: Any, other: Any) -> list[str]:
    """Names of a record's or ledger's attributes that differ."""
    names = vars(one) if isinstance(one, Ledger) else one.__slots__
    return [name for name in names if seen(getattr(one, name)) != seen(getattr(other, name))]


def new_record(made: type[Any]) -> Any:
    values: dict[str, tuple[Any, ...]] = {"Worker": (LIMITS.restart_budget,), "Engine": ()}
    if made.__name__ == "Request":
        return made(-1, client=-1, prompt=(), options=Options(), order=-1)
    return made(-1, rows=[]) if made.__name__ == "StepInFlight" else made(*values.get(made.__name__, (-1,)))


def first_of_each(ledger: Ledger) -> Iterator[Any]:
    yield from (ledger.requests[0], ledger.slots[0], ledger.step, ledger.worker, ledger.clients[0], ledger.engine)


def test_every_attribute_of_every_record_comes_back_by_value_and_type() -> None:
    core = marked()
    fresh = Ledger(num_slots=3, restart_budget=LIMITS.restart_budget)
    assert differing(core.ledger, fresh) == list(vars(fresh))  # else this test would see nothing
    for one in first_of_each(core.ledger):
        assert differing(one, new_record(type(one))) == list(one.__slots__), type(one).__name__
    assert {type(one) for one in first_of_each(core.ledger)} == {*RECORDS} - {Record}
    twin = through_a_file(core)
    assert differing(core.ledger, twin.ledger) == []
    assert {name: seen(one) for name, one in vars(core.totals).items()} == {
        name: seen(one) for name, one in vars(twin.totals).items()
    }
    assert twin.fired == core.fired
    assert twin.ledger.queue[0] is twin.ledger.requests[core.ledger.queue[0].id]
    for key, one in twin.ledger.seated.items():
        assert one is twin.ledger.requests[key]


def test_what_a_core_holds_beside_its_ledger_is_frozen_or_made_anew() -> None:
    given = {"limits", "policy", "tables", "watch"}
    made_anew = given | {"learns", "needs_confidence", "handlers", "_outputs", "_pending"}
    assert {*vars(marked())} - made_anew == {"ledger", "totals", "fired"}


def containers(value: Any) -> Iterator[Any]:
    """Everything inside that may change."""
    if isinstance(value, Ledger | Record):
        yield value
        names = vars(value) if isinstance(value, Ledger) else value.__slots__
        for name in names:
            if name != "rows":  # rows of a step in flight are never changed
                yield from containers(getattr(value, name))
    elif isinstance(value, list | dict | set):
        yield value
        for one in value.values() if isinstance(value, dict) else value:
            yield from containers(one)


def test_a_fork_has_every_attribute_and_shares_no_container() -> None:
    ledger = marked().ledger
    twin = ledger.fork()
    assert differing(ledger, twin) == []
    mine = {id(one): one for one in containers(ledger)}
    shared = [one for one in containers(twin) if id(one) in mine]
    assert shared == []


COUNTS_ONLY = {
    *("accepted_hist", "fired", "num_drafted", "num_emitted_drafting", "num_reused", "num_restarts", "verified_hist"),
    *("reason", "respawns", "restart_budget", "session", "next_order", "num_left"),
}


def test_what_is_neither_in_the_fingerprint_nor_known_to_decide_nothing_is_asked_for() -> None:
    named = set(re.findall(r"\.([a-z_]+)", inspect.getsource(fingerprint)))
    facts = {name for made in RECORDS for name in made.__slots__} | {*vars(marked().ledger)}
    assert facts - named == COUNTS_ONLY
