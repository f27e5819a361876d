"""Equal fingerprints behave alike: on random walks, whatever two histories agree in, their futures agree in too.

Walks start over with the same prompts whenever nothing is live, so that equal situations come back with other ids of
steps, epochs, orders, sessions and times.
"""

import random
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.ledger import Ledger
from dsparkd.scheduler.proof.scope import TROUBLES, Scope
from dsparkd.scheduler.proof.world import EngineWorld

WALKED = Scope(
    name="walked",
    num_requests=3,
    num_slots=3,
    max_tokens=4,
    prompt_len=2,
    max_step_tokens=4,  # somebody is left out, so that who waited longest matters
    wants=(0, 2),
    restart_budget=2,
    deadlines=frozenset({1}),
    troubles=dict.fromkeys([name for name in TROUBLES if name not in ("drain", "stop", "shrunk")], 10**9),
)


def key(world: EngineWorld) -> tuple[Any, ...]:
    """What decides, without the explorer's own budgets."""
    epochs = [one.epoch for one in world.core.ledger.slots]
    return world.core.ledger.fingerprint(), world.reference.key(epochs), world.next_serial


def shown(outputs: list[results.Output], ledger: Ledger) -> list[Any]:
    """Outputs without what is only a name: sessions, step ids, epochs."""
    told: list[Any] = []
    for output in outputs:
        fields = attrs.asdict(output, recurse=False)  # type: ignore[arg-type]
        for name in ("session", "step_id", "counts", "transitions", "message", "reason"):
            fields.pop(name, None)
        if isinstance(output, results.Command):
            fields["rows"] = [
                repr(attrs.evolve(row, epoch=0)) if hasattr(row, "epoch") else repr(row) for row in output.rows
            ]
        told.append((type(output).__name__, fields))
    return told


def walk(seed: int, length: int, seen: dict[Any, EngineWorld]) -> int:
    """Take `length` random moves; wherever an earlier world had the same key, compare all futures of both."""
    chance = random.Random(seed)
    world, compared = EngineWorld(WALKED), 0
    for _ in range(length):
        known = seen.setdefault(hash(key(world)), world)
        if known is not world and known.core.ledger.next_order != world.core.ledger.next_order:
            compared += 1
            compare(known, world)
        moves = [move for move in world.moves() if move[0] != "shrunk"]
        calm = world.calm()
        world = world.after(calm if calm is not None and chance.random() < 0.6 else chance.choice(moves))
        if not world.reference.intents and world.reference.flying is None:
            world.next_serial = 0
            world.reference.windows = [None] * WALKED.num_slots  # they name requests whose names come back now
        if world.reference.given_up:
            world = EngineWorld(WALKED)
    return compared


def compare(one: EngineWorld, other: EngineWorld) -> None:
    assert key(one) == key(other)
    assert one.moves() == other.moves()
    for move in one.moves():
        here, there = one.after(move), other.after(move)
        assert shown(here.outputs, here.core.ledger) == shown(there.outputs, there.core.ledger), move
        assert key(here) == key(there), move


@pytest.mark.parametrize("seed", range(4))
def test_equal_fingerprints_behave_alike(seed: int) -> None:
    print(f"seed {seed}")
    seen: dict[Any, EngineWorld] = {}
    compared = sum(walk(seed * 1000 + number, 300, seen) for number in range(6))
    assert compared > 60


def test_a_fork_shares_nothing_that_changes() -> None:
    chance = random.Random(7)
    world = EngineWorld(WALKED)
    for _ in range(200):
        before = key(world)
        for move in world.moves():
            world.after(move)
            assert key(world) == before, move
        calm = world.calm()
        world = world.after(calm if calm is not None and chance.random() < 0.5 else chance.choice(world.moves()))
        if world.reference.given_up:
            world = EngineWorld(WALKED)


def rich_ledger() -> Ledger:
    """A step of two decode rows and a chunk in flight, one request queued, a client away, a deadline to come."""
    scope = attrs.evolve(WALKED, num_requests=4, max_tokens=8, max_step_tokens=8, clients=(0, 1))
    world = EngineWorld(scope)
    for move in (("submit", 0), ("submit", 1), ("tick", (2,)), ("report", (0, 0), False), ("tick", (2,))):
        world.act(move)
    world.act(("report", (1, 0), False))
    for move in (("submit", 2), ("submit", 3), ("client_away", 1), ("tick", (0, 2, 2))):
        world.act(move)
    return world.core.ledger


def seed_in_flight(ledger: Ledger) -> Any:
    assert ledger.step is not None
    return next(row for row in ledger.step.rows if isinstance(row, events.Seed))


def swap_waiting(ledger: Ledger) -> None:
    first, second, *_ = sorted(ledger.seated.values(), key=lambda one: (one.last_step_id, one.order))
    second.last_step_id = first.last_step_id - 1


DECIDING: dict[str, Any] = {
    "who waited longest": swap_waiting,
    "where a chunk ends": lambda ledger: seed_in_flight(ledger).token_ids.append(1),
    "whether a chunk is the last": lambda ledger: setattr(seed_in_flight(ledger), "last", None),
    "what a row proposes": lambda ledger: setattr(ledger.step.rows[0], "propose_len", 1),
    "a request's options": lambda ledger: setattr(ledger.requests[0], "options", events.Options(max_tokens=99)),
    "what a request held": lambda ledger: setattr(ledger.requests[0], "held_len", 1),
    "what it was charged": lambda ledger: setattr(ledger.requests[0], "restarts", 1),
    "how often it may restart": lambda ledger: setattr(ledger.requests[0], "max_restarts", 9),
    "what it emitted": lambda ledger: ledger.requests[0].output.append(1),
    "its client": lambda ledger: setattr(ledger.requests[0], "client", 1),
    "the queue": lambda ledger: ledger.queue.clear(),
    "the suspects": lambda ledger: ledger.suspects.append(1),
    "the epoch of a slot in flight": lambda ledger: setattr(ledger.slots[0], "epoch", 9),
    "how often a worker was tried": lambda ledger: setattr(ledger.worker, "fruitless_respawns", 1),
    "what the worker can do": lambda ledger: setattr(ledger.worker, "capacity", None),
    "what the worker lost": lambda ledger: ledger.worker.lost.append("graphs"),
    "when a timer is due": lambda ledger: ledger.timers.update({(0, 0): (20, 3)}),
    "a deadline": lambda ledger: ledger.deadlines.clear(),
    "the free slots": lambda ledger: ledger.free.append(5),
}


@pytest.mark.parametrize("fact", DECIDING)
def test_what_decides_is_in_the_fingerprint(fact: str) -> None:
    ledger = rich_ledger()
    before = ledger.fingerprint()
    DECIDING[fact](ledger)
    assert ledger.fingerprint() != before


def test_names_are_not_in_the_fingerprint() -> None:
    ledger = rich_ledger()
    before = ledger.fingerprint()
    assert ledger.step is not None
    for held in ledger.slots:
        held.epoch += 40
        held.content_epoch += 40
    for row in ledger.step.rows:
        row.epoch += 40  # type: ignore[union-attr]
    for one in ledger.requests.values():
        one.last_step_id += 40
        one.order += 40
    ledger.step.id += 40
    ledger.worker.session += 40
    ledger.worker.last_step_id += 40
    ledger.now_ns += 40
    ledger.timers = {key: (delay, None if due is None else due + 40) for key, (delay, due) in ledger.timers.items()}
    ledger.deadlines = [(due + 40, order + 40, key) for due, order, key in ledger.deadlines]
    assert ledger.fingerprint() == before
