"""CLIENT: one client identity, present or away, until nobody may come back for its requests.

Owns presence; never knows sockets. The service tells the core what the socket said.
"""

from enum import IntEnum

from .rows import Bond, Declaration, Escape, Ignore, Row
from .table import Table


class State(IntEnum):
    CONNECTED = 0
    AWAY = 1  # unreachable; its requests go on until the grace time is over
    GONE = 2


class Event(IntEnum):
    HELLO = 0  # it came (back)
    UNREACHABLE = 1
    GOODBYE = 2
    GRACE_OVER = 3


class Effect(IntEnum):
    WELCOME = 0
    START_GRACE = 1
    CANCEL_ALL = 2  # nobody will read its streams
    FORGET = 3


_GONE = (Effect.CANCEL_ALL, Effect.FORGET)

PAGE = Declaration(
    name="CLIENT",
    states=State,
    events=Event,
    effects=Effect,
    initial=State.CONNECTED,
    finals=frozenset({State.GONE}),
    rows=(
        Row(State.CONNECTED, Event.HELLO, State.CONNECTED, effects=(Effect.WELCOME,)),
        Row(State.CONNECTED, Event.UNREACHABLE, State.AWAY, effects=(Effect.START_GRACE,)),
        Row(State.CONNECTED, Event.GOODBYE, State.GONE, effects=_GONE),
        Row(State.AWAY, Event.HELLO, State.CONNECTED, effects=(Effect.WELCOME,)),
        Row(State.AWAY, Event.GRACE_OVER, State.GONE, effects=_GONE),
        Row(State.AWAY, Event.GOODBYE, State.GONE, effects=_GONE),
    ),
    ignores=(Ignore(State.AWAY, Event.UNREACHABLE, why="it is known to be away; the grace time runs"),),
    laws=(Escape(Event.GOODBYE, to=frozenset({State.GONE})),),
    bonds=(
        Bond(Effect.WELCOME, into=frozenset({State.CONNECTED})),
        Bond(Effect.START_GRACE, into=frozenset({State.AWAY})),
        Bond(Effect.CANCEL_ALL, into=frozenset({State.GONE})),
        Bond(Effect.FORGET, into=frozenset({State.GONE})),
    ),
)
TABLE = Table(PAGE)
