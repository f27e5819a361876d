"""ENGINE: whether new requests are taken, and how the engine comes to rest.

Owns admission as a whole (each request's own limits are judged in `core/admission.py`). The service's signals drive it.
"""

from enum import IntEnum

from .rows import Bond, Classifier, Declaration, Ignore, Row
from .table import Table


class State(IntEnum):
    OPEN = 0
    DRAINING = 1  # live requests are finished, new ones refused
    STOPPED = 2


class Event(IntEnum):
    SUBMIT = 0
    DRAIN = 1
    IDLE = 2  # no request is live
    DRAIN_DEADLINE = 3
    STOP = 4  # now


class Admission(IntEnum):
    """Cases of SUBMIT."""

    FITS = 0
    UNFIT = 1


class Effect(IntEnum):
    ACCEPT = 0
    REFUSE = 1
    START_DRAIN_TIMER = 2
    FAIL_REST = 3  # what is not finished by now will not be
    DRAIN_WORKER = 4


class Verdict:
    """What SUBMIT is classified by: the code and message of a refusal, or none."""

    __slots__ = ("code", "message")

    def __init__(self, code: str | None = None, message: str = "") -> None:
        self.code = code
        self.message = message


def classify_admission(facts: Verdict) -> Admission:
    return Admission.FITS if facts.code is None else Admission.UNFIT


PAGE = Declaration(
    name="ENGINE",
    states=State,
    events=Event,
    effects=Effect,
    initial=State.OPEN,
    finals=frozenset({State.STOPPED}),
    classifiers={Event.SUBMIT: Classifier(Admission, classify_admission)},
    rows=(
        Row(State.OPEN, Event.SUBMIT, State.OPEN, Admission.FITS, (Effect.ACCEPT,)),
        Row(State.OPEN, Event.SUBMIT, State.OPEN, Admission.UNFIT, (Effect.REFUSE,)),
        Row(State.OPEN, Event.DRAIN, State.DRAINING, effects=(Effect.START_DRAIN_TIMER,)),
        Row(State.OPEN, Event.STOP, State.STOPPED, effects=(Effect.FAIL_REST, Effect.DRAIN_WORKER)),
        Row(State.DRAINING, Event.SUBMIT, State.DRAINING, effects=(Effect.REFUSE,)),
        Row(State.DRAINING, Event.IDLE, State.STOPPED, effects=(Effect.DRAIN_WORKER,)),
        Row(State.DRAINING, Event.DRAIN_DEADLINE, State.DRAINING, effects=(Effect.FAIL_REST,)),
        Row(State.DRAINING, Event.STOP, State.STOPPED, effects=(Effect.FAIL_REST, Effect.DRAIN_WORKER)),
        Row(State.STOPPED, Event.SUBMIT, State.STOPPED, effects=(Effect.REFUSE,)),
    ),
    ignores=(
        Ignore(State.OPEN, Event.IDLE, why="an open engine waits for requests"),
        Ignore(State.DRAINING, Event.DRAIN, why="it drains already"),
        Ignore(State.STOPPED, Event.DRAIN, why="it is at rest"),
        Ignore(State.STOPPED, Event.STOP, why="it is at rest"),
        Ignore(State.STOPPED, Event.IDLE, why="it is at rest"),
    ),
    bonds=(
        Bond(Effect.START_DRAIN_TIMER, into=frozenset({State.DRAINING})),
        Bond(Effect.DRAIN_WORKER, into=frozenset({State.STOPPED})),
    ),
)
TABLE = Table(PAGE)
