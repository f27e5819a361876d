"""STEP: one command that was sent to the worker, until it is reported or lost with its worker.

Owns nothing but that; the report's contents are judged row by row by the core. WORKER drives it, REQUEST follows.
"""

from enum import IntEnum

from .rows import Bond, Declaration, Escape, Row
from .table import Table


class State(IntEnum):
    SENT = 0
    OVERDUE = 1  # late, for health only: the worker's own progress timer decides its death
    RETURNED = 2
    LOST = 3


class Event(IntEnum):
    REPORTED = 0  # every row came back
    FAULTED = 1  # the whole step faulted before its commit
    LATE = 2  # the overdue timer fired
    WORKER_LOST = 3


class Effect(IntEnum):
    SETTLE = 0  # hand each row to its request or count it as discarded
    UNDO = 1  # put every row back, to be planned once more, alone
    LOSE = 2  # tell its requests that the worker died under them
    CLOSE = 3  # no step is in flight any more
    AWAIT_BEAT = 4  # the worker is idle: its progress timer now waits for a heartbeat


_BACK = (Effect.CLOSE, Effect.AWAIT_BEAT)

PAGE = Declaration(
    name="STEP",
    states=State,
    events=Event,
    effects=Effect,
    initial=State.SENT,
    finals=frozenset({State.RETURNED, State.LOST}),
    rows=(
        Row(State.SENT, Event.REPORTED, State.RETURNED, effects=(Effect.SETTLE, *_BACK)),
        Row(State.SENT, Event.FAULTED, State.RETURNED, effects=(Effect.UNDO, *_BACK)),
        Row(State.SENT, Event.LATE, State.OVERDUE),
        Row(State.SENT, Event.WORKER_LOST, State.LOST, effects=(Effect.LOSE, Effect.CLOSE)),
        Row(State.OVERDUE, Event.REPORTED, State.RETURNED, effects=(Effect.SETTLE, *_BACK)),
        Row(State.OVERDUE, Event.FAULTED, State.RETURNED, effects=(Effect.UNDO, *_BACK)),
        Row(State.OVERDUE, Event.WORKER_LOST, State.LOST, effects=(Effect.LOSE, Effect.CLOSE)),
    ),
    laws=(
        Escape(Event.REPORTED, to=frozenset({State.RETURNED})),
        Escape(Event.FAULTED, to=frozenset({State.RETURNED})),
        Escape(Event.WORKER_LOST, to=frozenset({State.LOST})),
    ),
    bonds=(
        Bond(Effect.CLOSE, into=frozenset({State.RETURNED, State.LOST})),
        Bond(Effect.AWAIT_BEAT, into=frozenset({State.RETURNED})),
        Bond(Effect.LOSE, into=frozenset({State.LOST})),
    ),
)
TABLE = Table(PAGE)
