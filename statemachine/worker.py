"""WORKER: one worker after another, from spawn to READY to its death and the next spawn.

Owns the worker's life and so the progress timer (one deadline per state). Both sides run this table: the scheduler's
core with effects, the worker itself to know what it may say. Causality starts here: WORKER -> STEP -> REQUEST -> SLOT.
"""

from enum import IntEnum
from typing import Protocol

from .rows import Bond, Classifier, Declaration, Escape, Ignore, Row
from .table import Table


class State(IntEnum):
    SPAWNED = 0  # the process was started, no word yet
    LOADING = 1  # it has its settings and reads weights
    WARMING = 2  # it allocates, warms up and measures
    READY = 3
    DEGRADED = 4  # it serves without something that was asked for; health says what
    DRAINING = 5  # no request is live; it was asked to leave
    STOPPED = 6
    DEAD = 7  # a next one may be spawned after the back-off
    ABANDONED = 8  # no further worker will be tried


class Event(IntEnum):
    HELLO = 0
    LOADED = 1
    READY = 2
    DEGRADE = 3  # a report says that something was lost in flight
    DIED = 4  # process exit, goodbye out of turn, or a closed channel
    STALLED = 5  # the progress deadline of its state passed
    BROKE_CONTRACT = 6  # it sent what no lawful worker sends
    RESPAWN = 7  # the back-off is over
    DRAIN = 8  # the engine is done with it
    REFUSED = 9  # it cannot serve these settings, and a next one could not either


class Readiness(IntEnum):
    """Cases of READY."""

    FULL = 0
    PARTIAL = 1
    UNFIT = 2


class Budget(IntEnum):
    """Cases of RESPAWN."""

    AGAIN = 0
    EXHAUSTED = 1


class Effect(IntEnum):
    SEND_INIT = 0
    ADOPT = 1  # take over its limits; the first READY's bind all later ones
    KILL = 2  # make sure that the process is gone; its progress timer stops
    LOSE_ALL = 3  # steps in flight, seated requests and quarantined slots hear of it
    BACK_OFF = 4  # start the timer of the next spawn
    SPAWN = 5
    GIVE_UP = 6  # fail every live request
    ASK_TO_LEAVE = 7
    ARM = 8  # start the progress timer of the new state
    CALL_OFF = 9  # no next spawn: its timer stops


class ReadinessFacts(Protocol):
    """What READY is classified by."""

    lost: tuple[str, ...]  # what was asked for and is missing
    unfit: bool  # its capacity is below the first READY's, or the policy wants more than its block


class BudgetFacts(Protocol):
    """What RESPAWN is classified by: the worker's record in the ledger."""

    fruitless_respawns: int  # in a row, with no token between
    restart_budget: int


def classify_readiness(facts: ReadinessFacts) -> Readiness:
    if facts.unfit:
        return Readiness.UNFIT
    return Readiness.PARTIAL if facts.lost else Readiness.FULL


def classify_budget(facts: BudgetFacts) -> Budget:
    return Budget.AGAIN if facts.fruitless_respawns < facts.restart_budget else Budget.EXHAUSTED


_EARLY_DEATH = (Effect.KILL, Effect.BACK_OFF)  # it never served, so nothing can be lost
_DEATH = (Effect.KILL, Effect.LOSE_ALL, Effect.BACK_OFF)
_LEFT = (Effect.KILL, Effect.LOSE_ALL)  # a step of retired rows may still be in flight


def _dies(state: State, *, effects: tuple[Effect, ...] = _DEATH) -> list[Row[State, Event, Effect]]:
    return [
        Row(state, Event.DIED, State.DEAD, effects=effects),
        Row(state, Event.STALLED, State.DEAD, effects=effects),
        Row(state, Event.BROKE_CONTRACT, State.DEAD, effects=effects),
    ]


def _leaves_early(state: State) -> Row[State, Event, Effect]:
    """It never served, so there is nothing to drain."""
    return Row(state, Event.DRAIN, State.STOPPED, effects=(Effect.KILL,))


def _refuses(state: State) -> Row[State, Event, Effect]:
    return Row(state, Event.REFUSED, State.ABANDONED, effects=(Effect.KILL, Effect.GIVE_UP))


PAGE = Declaration(
    name="WORKER",
    states=State,
    events=Event,
    effects=Effect,
    initial=State.SPAWNED,
    finals=frozenset({State.STOPPED, State.ABANDONED}),
    classifiers={
        Event.READY: Classifier(Readiness, classify_readiness),
        Event.RESPAWN: Classifier(Budget, classify_budget),
    },
    rows=(
        Row(State.SPAWNED, Event.HELLO, State.LOADING, effects=(Effect.SEND_INIT, Effect.ARM)),
        *_dies(State.SPAWNED, effects=_EARLY_DEATH),
        _leaves_early(State.SPAWNED),
        _refuses(State.LOADING),
        Row(State.LOADING, Event.LOADED, State.WARMING, effects=(Effect.ARM,)),
        *_dies(State.LOADING, effects=_EARLY_DEATH),
        _leaves_early(State.LOADING),
        _refuses(State.WARMING),
        Row(State.WARMING, Event.READY, State.READY, Readiness.FULL, (Effect.ADOPT, Effect.ARM)),
        Row(State.WARMING, Event.READY, State.DEGRADED, Readiness.PARTIAL, (Effect.ADOPT, Effect.ARM)),
        Row(State.WARMING, Event.READY, State.ABANDONED, Readiness.UNFIT, (Effect.KILL, Effect.GIVE_UP)),
        *_dies(State.WARMING, effects=_EARLY_DEATH),
        _leaves_early(State.WARMING),
        Row(State.READY, Event.DEGRADE, State.DEGRADED),
        *_dies(State.READY),
        Row(State.READY, Event.DRAIN, State.DRAINING, effects=(Effect.ASK_TO_LEAVE, Effect.ARM)),
        *_dies(State.DEGRADED),
        Row(State.DEGRADED, Event.DRAIN, State.DRAINING, effects=(Effect.ASK_TO_LEAVE, Effect.ARM)),
        Row(State.DRAINING, Event.DIED, State.STOPPED, effects=_LEFT),
        Row(State.DRAINING, Event.STALLED, State.STOPPED, effects=_LEFT),
        Row(State.DRAINING, Event.BROKE_CONTRACT, State.STOPPED, effects=_LEFT),
        Row(State.DEAD, Event.RESPAWN, State.SPAWNED, Budget.AGAIN, (Effect.SPAWN, Effect.ARM)),
        Row(State.DEAD, Event.RESPAWN, State.ABANDONED, Budget.EXHAUSTED, (Effect.GIVE_UP,)),
        Row(State.DEAD, Event.DRAIN, State.STOPPED, effects=(Effect.CALL_OFF,)),
    ),
    ignores=(
        Ignore(State.DEGRADED, Event.DEGRADE, why="health lists each loss; the state is the same"),
        Ignore(State.DEAD, Event.DIED, why="the exit of a process that was already given up for dead"),
        Ignore(State.DRAINING, Event.DRAIN, why="it was asked already"),
        Ignore(State.DRAINING, Event.DEGRADE, why="it leaves; its last step may still say what it lost"),
        Ignore(State.STOPPED, Event.DIED, why="the exit that was asked for"),
        Ignore(State.ABANDONED, Event.DIED, why="the exit of the process that was killed"),
        Ignore(State.ABANDONED, Event.DRAIN, why="there is no worker left to ask"),
    ),
    laws=(
        Escape(Event.DIED, to=frozenset({State.DEAD, State.STOPPED}), stays=frozenset({State.DEAD})),
        Escape(Event.DRAIN, to=frozenset({State.DRAINING, State.STOPPED}), stays=frozenset({State.DRAINING})),
    ),
    bonds=(
        Bond(Effect.SEND_INIT, into=frozenset({State.LOADING})),
        Bond(Effect.ADOPT, into=frozenset({State.READY, State.DEGRADED}), always=False),
        Bond(Effect.KILL, into=frozenset({State.DEAD, State.STOPPED, State.ABANDONED}), always=False),
        Bond(Effect.LOSE_ALL, into=frozenset({State.DEAD, State.STOPPED}), always=False),
        Bond(Effect.BACK_OFF, into=frozenset({State.DEAD})),
        Bond(Effect.SPAWN, into=frozenset({State.SPAWNED})),
        Bond(Effect.GIVE_UP, into=frozenset({State.ABANDONED})),
        Bond(Effect.ASK_TO_LEAVE, into=frozenset({State.DRAINING})),
    ),
)
TABLE = Table(PAGE)

SERVING = frozenset({State.READY, State.DEGRADED})
FINALS = PAGE.finals
