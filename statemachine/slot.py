"""SLOT: who holds one seat of the running set, and when its window may be given to somebody else.

Owns tenancy; never touches the window's memory (the worker does). REQUEST's effects and a step's end drive it.
"""

from enum import IntEnum

from .rows import Bond, Declaration, Row
from .table import Table


class State(IntEnum):
    FREE = 0  # nobody's; what it holds may serve a later prompt
    HELD = 1  # one request's window
    RETIRING = 2  # its request ended while a step in flight names it
    QUARANTINED = 3  # a fault left its window in doubt; only a scrub may follow


class Event(IntEnum):
    TAKE = 0
    RELEASE = 1
    RETIRE = 2
    FAULT = 3
    STEP_OVER = 4  # the step that named it is returned or lost
    SCRUBBED = 5
    LOST = 6  # the window died with the worker


class Effect(IntEnum):
    NEW_EPOCH = 0  # count the tenancy: late results of the old one can no longer be mistaken
    VACATE = 1  # back among the free slots
    CONDEMN = 2  # to be scrubbed by the next plan


PAGE = Declaration(
    name="SLOT",
    states=State,
    events=Event,
    effects=Effect,
    initial=State.FREE,
    finals=frozenset(),
    home=State.FREE,
    rows=(
        Row(State.FREE, Event.TAKE, State.HELD, effects=(Effect.NEW_EPOCH,)),
        Row(State.HELD, Event.RELEASE, State.FREE, effects=(Effect.VACATE,)),
        Row(State.HELD, Event.RETIRE, State.RETIRING),
        Row(State.HELD, Event.FAULT, State.QUARANTINED, effects=(Effect.CONDEMN,)),
        Row(State.HELD, Event.LOST, State.FREE, effects=(Effect.VACATE,)),
        Row(State.RETIRING, Event.STEP_OVER, State.FREE, effects=(Effect.VACATE,)),
        Row(State.RETIRING, Event.FAULT, State.QUARANTINED, effects=(Effect.CONDEMN,)),
        Row(State.QUARANTINED, Event.SCRUBBED, State.FREE, effects=(Effect.VACATE,)),
        Row(State.QUARANTINED, Event.LOST, State.FREE, effects=(Effect.VACATE,)),
    ),
    bonds=(
        Bond(Effect.NEW_EPOCH, into=frozenset({State.HELD})),
        Bond(Effect.VACATE, into=frozenset({State.FREE})),
        Bond(Effect.CONDEMN, into=frozenset({State.QUARANTINED})),
    ),
)
TABLE = Table(PAGE)
