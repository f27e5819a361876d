"""Situations that an exploration must reach, by name: what went wrong in similar engines, and what is easy to forget.

Owns the names and how each is recognised in one move; never judges whether the engine did right (the reference does).
A property that nothing reaches fails `dsparkd check`: the proof would be silent about it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ...statemachine import request, slot, step
from ..core import events, results
from .moves import FAULT, STOPS, Move
from .reference import DEAD, LEAVING, Reference
from .world import EngineWorld

Property = Callable[[EngineWorld, Move, EngineWorld], bool]


class Sometimes:
    """Collects which properties were reached; those that were cost nothing any more."""

    def __init__(self) -> None:
        self.reached: dict[str, bool] = {name: False for named in PROPERTIES.values() for name in named}
        self._open = {kind: dict(named) for kind, named in PROPERTIES.items()}

    def watch(self, before: EngineWorld, move: Move, after: EngineWorld) -> None:
        still_open = self._open.get(move[0])
        if not still_open:
            return
        for name in [name for name, holds in still_open.items() if holds(before, move, after)]:
            self.reached[name] = True
            del still_open[name]

    def missing(self) -> list[str]:
        return [name for name, reached in self.reached.items() if not reached]


# ---- how to see things ------------------------------------------------------------------------------------------


def rows_of(world: EngineWorld) -> list[Any]:
    return [] if world.reference.flying is None else list(world.reference.flying.rows)


def row_of(world: EngineWorld, serial: int) -> Any:
    """The row in flight of a request, or None."""
    return next((row for row in rows_of(world) if world.reference.tenant(row.slot) == serial), None)


def num_tenants(world: EngineWorld) -> int:
    return sum(world.reference.tenant(row.slot) is not None for row in rows_of(world))


def record(world: EngineWorld, serial: int) -> Any:
    return world.core.ledger.requests[world.reference.intents[serial].id]


def ends(world: EngineWorld, reason: str) -> bool:
    return any(type(one) is results.Ended and one.reason == reason for one in world.outputs)


def says(world: EngineWorld, kind: type) -> bool:
    return any(type(one) is kind for one in world.outputs)


def between_chunks(world: EngineWorld, serial: int) -> bool:
    one = record(world, serial)
    return one.state is request.State.SEED_READY and one.seeded_len > 0


def to_go(reference: Reference, serial: int) -> int:
    return reference.scope.max_tokens - len(reference.intents[serial].output)


def decodes(before: EngineWorld, after: EngineWorld) -> list[tuple[Any, Any]]:
    """(row, window) of each Decode row that a tick has sent."""
    rows = [row for row in rows_of(after) if before.reference.flying is None and type(row) is events.Decode]
    return [(row, before.reference.windows[row.slot]) for row in rows]


# ---- the properties, by the kind of move that shows them ----------------------------------------------------------


def cancelled_in_last_block(before: EngineWorld, move: Move, after: EngineWorld) -> bool:
    row = row_of(before, move[1])
    return type(row) is events.Decode and row.draft_len > 0 and to_go(before.reference, move[1]) <= row.draft_len + 1


def retiring_row_faults(before: EngineWorld, move: Move, after: EngineWorld) -> bool:
    slots = before.core.ledger.slots
    pairs = zip(rows_of(before), move[1], strict=True)
    return any(got == FAULT and slots[row.slot].state is slot.State.RETIRING for row, got in pairs)


def retired_slot_serves_again(before: EngineWorld, move: Move, after: EngineWorld) -> bool:
    olds = [before.reference.windows[row.slot] for row in rows_of(after) if type(row) is events.Seed]
    return before.reference.flying is None and any(old is not None and old.retired for old in olds)


def reused(before: EngineWorld, after: EngineWorld, *, in_place: bool) -> bool:
    opens = [(row.slot, row.opens) for row in rows_of(after) if type(row) is events.Seed and row.opens is not None]
    kept = [slot == one.source_slot for slot, one in opens if one.keep_len]
    return before.reference.flying is None and in_place in kept


def poison(before: EngineWorld, move: Move, after: EngineWorld) -> bool:
    return (
        before.core.ledger.worker.fruitless_respawns == 2
        and ends(after, "WORKER_LOST")
        and bool(after.reference.intents)
    )


def zero_phase_left(before: EngineWorld, move: Move, after: EngineWorld) -> bool:
    pairs = decodes(before, after)
    return any(row.draft_len == 0 < row.propose_len and held.held_len == 0 for row, held in pairs)


def zero_phase_entered(before: EngineWorld, move: Move, after: EngineWorld) -> bool:
    pairs = decodes(before, after)
    return any(
        row.draft_len > 0 == row.propose_len and to_go(before.reference, held.serial) > row.draft_len + 2
        for row, held in pairs
    )


PROPERTIES: Mapping[str, Mapping[str, Property]] = {
    "cancel": {
        "a request is cancelled while its last block is verified": cancelled_in_last_block,
        "a request is cancelled between two chunks": lambda b, m, a: between_chunks(b, m[1]),
        "a queued request is cancelled after a worker died under it": lambda b, m, a: (
            record(b, m[1]).state is request.State.QUEUED and record(b, m[1]).restarts > 0
        ),
    },
    "die": {
        "a worker dies with two requests in one step": lambda b, m, a: num_tenants(b) == 2,
        "a worker dies between two chunks": lambda b, m, a: any(between_chunks(b, one) for one in b.reference.intents),
        "a worker dies while the engine drains": lambda b, m, a: b.reference.draining and a.reference.phase == DEAD,
        "a worker that was asked to leave dies with a step in flight": lambda b, m, a: (
            b.reference.phase == LEAVING and b.reference.flying is not None
        ),
        "a poison request kills three workers and its neighbour lives": poison,
        "a scrub is lost with its worker": lambda b, m, a: any(type(row) is events.Scrub for row in rows_of(b)),
    },
    "report": {
        "a fault hits the row of a retiring slot": retiring_row_faults,
        "an overdue step is reported": lambda b, m, a: b.core.ledger.step.state is step.State.OVERDUE,  # type: ignore[union-attr]
        "a drafter fault costs only drafts": lambda b, m, a: m[2] and says(a, results.Tokens),
        "a stop among accepted drafts ends a request": lambda b, m, a: (
            any(outcome > STOPS for outcome in m[1]) and ends(a, "stop")
        ),
        "what a cancelled request still emits is discarded": lambda b, m, a: (
            num_tenants(b) < len(rows_of(b)) and not b.reference.dirty
        ),
        "a request that a step was charged to emits again": lambda b, m, a: (
            any(one.restarts for one in b.reference.intents.values()) and says(a, results.Tokens)
        ),
    },
    "step_fault": {
        "a step that takes over a prefix faults": lambda b, m, a: any(
            type(row) is events.Seed and row.opens is not None and row.opens.keep_len > 0 for row in rows_of(b)
        ),
        "a whole step of two requests faults": lambda b, m, a: num_tenants(b) == 2,
        "a suspect faults alone": lambda b, m, a: len(rows_of(b)) == 1 and bool(b.reference.suspects),
        "a step of one live and one retired row faults": lambda b, m, a: num_tenants(b) == 1 < len(rows_of(b)),
    },
    "tick": {
        "a retired slot is given to another request": retired_slot_serves_again,
        "a prompt takes over the prefix that its slot still holds": lambda b, m, a: reused(b, a, in_place=True),
        "a prompt copies a prefix from another slot": lambda b, m, a: reused(b, a, in_place=False),
        "a zero-draft phase is left": zero_phase_left,
        "a zero-draft phase is entered with a draft held": zero_phase_entered,
        "a held draft is dropped for want of room": lambda b, m, a: any(
            row.draft_len == 0 < held.held_len for row, held in decodes(b, a)
        ),
        "a request is seeded again with what it has emitted": lambda b, m, a: any(
            type(row) is events.Seed and row.output_len > 0 for row in rows_of(a)
        ),
        "suspects run one by one": lambda b, m, a: len(b.reference.suspects) == 2 and len(rows_of(a)) == 1,
        "a chunk shares its step with a verified draft": lambda b, m, a: (
            {type(row) for row in rows_of(a)} == {events.Seed, events.Decode}
        ),
    },
    "wait": {
        "a stalled worker is killed with a step in flight": lambda b, m, a: (
            b.reference.flying is not None and a.reference.phase == DEAD
        ),
        "a deadline passes in flight": lambda b, m, a: ends(a, "DEADLINE") and b.reference.flying is not None,
        "a drain deadline passes in flight": lambda b, m, a: (
            ends(a, "DRAIN_DEADLINE") and b.reference.flying is not None
        ),
        "a client is given up with its request in flight": lambda b, m, a: (
            ends(a, "client_gone") and b.reference.flying is not None
        ),
        "the last worker is given up with requests live": lambda b, m, a: (
            a.reference.given_up and ends(a, "WORKER_LOST")
        ),
    },
    "late": {
        "a cancel comes in the poll in which its request has finished": lambda b, m, a: (
            m[1] == "cancel" and any(type(one) is results.Ended and one.state == "FINISHED" for one in b.outputs)
        ),
        "a report of an earlier worker comes while a step is in flight": lambda b, m, a: (
            m[1] == "session" and b.reference.session > 1 and b.reference.flying is not None
        ),
        "a report comes twice": lambda b, m, a: m[1] == "step" and b.reference.last_step_id > 0,
        "a worker that is given up speaks again": lambda b, m, a: m[1] == "words" and b.reference.given_up,
    },
    "mislabelled": {
        "a report names another epoch": lambda b, m, a: m[1] == "epoch",
        "a report names a step of the future": lambda b, m, a: m[1] == "future",
    },
    "client_hello": {"a client comes back within its grace": lambda b, m, a: bool(b.reference.away.get(m[1]))},
    "shrunk": {"a restarted worker is smaller than the first": lambda b, m, a: b.reference.session > 1},
    "drain": {"a drain comes while no worker lives": lambda b, m, a: b.reference.phase == DEAD},
    "stop": {"a stop comes with a step in flight": lambda b, m, a: b.reference.flying is not None},
    "bug": {"our own illegal transition hits a request in flight": lambda b, m, a: row_of(b, m[1]) is not None},
    "submit": {
        "a request comes while the engine drains": lambda b, m, a: b.reference.draining,
        "an id is used again before its old deadline": lambda b, m, a: (
            a.scope.reuse_ids and bool(b.core.ledger.deadlines)
        ),
    },
}
