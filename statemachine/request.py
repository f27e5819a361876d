"""REQUEST: the life of one accepted request, from the queue to its one terminal event.

Owns what a request may do next; never knows slots' memory, time or tokens: facts about them come in with the event.
The core steps it; SLOT follows it (causality runs WORKER -> STEP -> REQUEST -> SLOT).
"""

from enum import IntEnum
from typing import Protocol

from .rows import Bond, Classifier, Declaration, Escape, Ignore, Row
from .table import Table


class State(IntEnum):
    QUEUED = 0  # accepted, holds nothing on the worker
    SEED_READY = 1  # seated, prompt tokens left to seed, nothing in flight
    SEEDING = 2  # a chunk of its prompt is in flight
    DRAFT_READY = 3  # its slot holds a draft of one token or more
    ANCHOR_READY = 4  # its slot holds only the anchor
    VERIFYING = 5  # a draft is being verified
    STEPPING = 6  # the anchor alone is in flight
    FINISHED = 7  # a stop or a limit ended it
    CANCELLED = 8  # its client did
    FAILED = 9  # the engine or its deadline did


class Event(IntEnum):
    ADMIT = 0  # a slot is free for it
    PLAN_CHUNK = 1  # the plan took a chunk of its prompt
    PLAN_VERIFY = 2  # the plan took its anchor and a draft
    PLAN_ANCHOR = 3  # the plan took its anchor alone
    SEEDED = 4  # a chunk that was not the last came back
    EMITTED = 5  # tokens came back
    UNDONE = 6  # the whole step faulted before its commit: nothing moved
    ROW_FAULT = 7  # its own row faulted
    WORKER_LOST = 8  # the worker died
    CANCEL = 9
    DEADLINE = 10
    ABANDON = 11  # the engine gives up on it: no worker any more, or the drain deadline
    INTERNAL = 12  # our own illegal transition


class Emission(IntEnum):
    """Cases of EMITTED."""

    ENDS = 0
    DRAFT_LEFT = 1
    ANCHOR_LEFT = 2


class Restart(IntEnum):
    """Cases of ROW_FAULT and WORKER_LOST."""

    AGAIN = 0
    EXHAUSTED = 1


class Held(IntEnum):
    """Cases of UNDONE."""

    DRAFT = 0
    ANCHOR = 1


class Effect(IntEnum):
    SEAT = 0  # leave the queue, take a free slot
    UNQUEUE = 1  # leave the queue without a slot
    REQUEUE = 2  # to the front, in accept order, prompt + emitted as the new prompt
    DELIVER = 3  # append the tokens to the output and send them
    FORGIVE = 4  # a step emitted for it: clear its restart count
    CHARGE = 5  # count a restart
    RELEASE_SLOT = 6  # nothing in flight names it: free at once
    RETIRE_SLOT = 7  # a step in flight names it: free when that step is over
    FAULT_SLOT = 8  # its window is in doubt: scrub before anyone else gets it
    LOSE_SLOT = 9  # the window died with the worker
    ADVANCE = 10  # the chunk is in the window
    END = 11  # send the one terminal event and forget the request


class EmissionFacts(Protocol):
    """What EMITTED is classified by."""

    ending: str | None  # why the output ends here, or None when it goes on
    held_len: int  # drafted tokens that the slot holds now


class RestartFacts(Protocol):
    """What ROW_FAULT and WORKER_LOST are classified by: the request itself."""

    restarts: int
    max_restarts: int


class HeldFacts(Protocol):
    """What UNDONE is classified by: the request itself."""

    held_len: int


_ENDS, _DRAFT_LEFT, _ANCHOR_LEFT = Emission  # looking a member up by its class costs more than the classification


def classify_emission(facts: EmissionFacts) -> Emission:
    if facts.ending is not None:
        return _ENDS
    return _DRAFT_LEFT if facts.held_len > 0 else _ANCHOR_LEFT


def classify_restart(facts: RestartFacts) -> Restart:
    return Restart.AGAIN if facts.restarts < facts.max_restarts else Restart.EXHAUSTED


def classify_held(facts: HeldFacts) -> Held:
    return Held.DRAFT if facts.held_len > 0 else Held.ANCHOR


def _ends_queued() -> list[Row[State, Event, Effect]]:
    effects = (Effect.UNQUEUE, Effect.END)
    return [
        Row(State.QUEUED, Event.CANCEL, State.CANCELLED, effects=effects),
        Row(State.QUEUED, Event.DEADLINE, State.FAILED, effects=effects),
        Row(State.QUEUED, Event.ABANDON, State.FAILED, effects=effects),
        Row(State.QUEUED, Event.INTERNAL, State.FAILED, effects=effects),
    ]


def _ends_ready(state: State) -> list[Row[State, Event, Effect]]:
    """Seated with nothing in flight: the slot is free at once."""
    effects = (Effect.RELEASE_SLOT, Effect.END)
    return [
        Row(state, Event.CANCEL, State.CANCELLED, effects=effects),
        Row(state, Event.DEADLINE, State.FAILED, effects=effects),
        Row(state, Event.ABANDON, State.FAILED, effects=effects),
        Row(state, Event.INTERNAL, State.FAILED, effects=(Effect.FAULT_SLOT, Effect.END)),
        Row(state, Event.WORKER_LOST, State.QUEUED, effects=(Effect.LOSE_SLOT, Effect.REQUEUE)),
    ]


def _ends_in_flight(state: State) -> list[Row[State, Event, Effect]]:
    """A step in flight names its (slot, epoch): the slot retires, and only this request is charged a restart."""
    effects = (Effect.RETIRE_SLOT, Effect.END)
    again = (Effect.CHARGE, Effect.REQUEUE)
    return [
        Row(state, Event.CANCEL, State.CANCELLED, effects=effects),
        Row(state, Event.DEADLINE, State.FAILED, effects=effects),
        Row(state, Event.ABANDON, State.FAILED, effects=effects),
        Row(state, Event.INTERNAL, State.FAILED, effects=(Effect.FAULT_SLOT, Effect.END)),
        Row(state, Event.WORKER_LOST, State.QUEUED, Restart.AGAIN, (Effect.LOSE_SLOT, *again)),
        Row(state, Event.WORKER_LOST, State.FAILED, Restart.EXHAUSTED, (Effect.LOSE_SLOT, Effect.END)),
        Row(state, Event.ROW_FAULT, State.QUEUED, Restart.AGAIN, (Effect.FAULT_SLOT, *again)),
        Row(state, Event.ROW_FAULT, State.FAILED, Restart.EXHAUSTED, (Effect.FAULT_SLOT, Effect.END)),
    ]


def _emits(state: State) -> list[Row[State, Event, Effect]]:
    goes_on = (Effect.DELIVER, Effect.FORGIVE)
    ends = (Effect.DELIVER, Effect.RELEASE_SLOT, Effect.END)
    return [
        Row(state, Event.EMITTED, State.DRAFT_READY, Emission.DRAFT_LEFT, goes_on),
        Row(state, Event.EMITTED, State.ANCHOR_READY, Emission.ANCHOR_LEFT, goes_on),
        Row(state, Event.EMITTED, State.FINISHED, Emission.ENDS, ends),
    ]


PAGE = Declaration(
    name="REQUEST",
    states=State,
    events=Event,
    effects=Effect,
    initial=State.QUEUED,
    finals=frozenset({State.FINISHED, State.CANCELLED, State.FAILED}),
    classifiers={
        Event.EMITTED: Classifier(Emission, classify_emission),
        Event.ROW_FAULT: Classifier(Restart, classify_restart),
        Event.WORKER_LOST: Classifier(Restart, classify_restart),
        Event.UNDONE: Classifier(Held, classify_held),
    },
    rows=(
        Row(State.QUEUED, Event.ADMIT, State.SEED_READY, effects=(Effect.SEAT,)),
        *_ends_queued(),
        Row(State.SEED_READY, Event.PLAN_CHUNK, State.SEEDING),
        *_ends_ready(State.SEED_READY),
        Row(State.SEEDING, Event.SEEDED, State.SEED_READY, effects=(Effect.ADVANCE,)),
        *_emits(State.SEEDING),
        Row(State.SEEDING, Event.UNDONE, State.SEED_READY),
        *_ends_in_flight(State.SEEDING),
        Row(State.DRAFT_READY, Event.PLAN_VERIFY, State.VERIFYING),
        # A limit can leave room for the extra token alone; the draft is dropped then.
        Row(State.DRAFT_READY, Event.PLAN_ANCHOR, State.STEPPING),
        *_ends_ready(State.DRAFT_READY),
        Row(State.ANCHOR_READY, Event.PLAN_ANCHOR, State.STEPPING),
        *_ends_ready(State.ANCHOR_READY),
        *_emits(State.VERIFYING),
        Row(State.VERIFYING, Event.UNDONE, State.DRAFT_READY),
        *_ends_in_flight(State.VERIFYING),
        *_emits(State.STEPPING),
        Row(State.STEPPING, Event.UNDONE, State.DRAFT_READY, Held.DRAFT),
        Row(State.STEPPING, Event.UNDONE, State.ANCHOR_READY, Held.ANCHOR),
        *_ends_in_flight(State.STEPPING),
    ),
    ignores=(Ignore(State.QUEUED, Event.WORKER_LOST, why="it holds nothing on the worker and waits for the next one"),),
    laws=(
        Escape(Event.CANCEL, to=frozenset({State.CANCELLED})),
        Escape(Event.DEADLINE, to=frozenset({State.FAILED})),
        Escape(Event.ABANDON, to=frozenset({State.FAILED})),
        Escape(Event.INTERNAL, to=frozenset({State.FAILED})),
        Escape(Event.WORKER_LOST, to=frozenset({State.QUEUED, State.FAILED}), stays=frozenset({State.QUEUED})),
    ),
    bonds=(
        Bond(Effect.END, into=frozenset({State.FINISHED, State.CANCELLED, State.FAILED})),
        Bond(Effect.REQUEUE, into=frozenset({State.QUEUED})),
        Bond(Effect.CHARGE, into=frozenset({State.QUEUED}), always=False),
        Bond(Effect.SEAT, into=frozenset({State.SEED_READY}), always=False),
        Bond(Effect.FORGIVE, into=frozenset({State.DRAFT_READY, State.ANCHOR_READY}), always=False),
    ),
)
TABLE = Table(PAGE)

IN_FLIGHT = frozenset({State.SEEDING, State.VERIFYING, State.STEPPING})
FINALS = PAGE.finals
