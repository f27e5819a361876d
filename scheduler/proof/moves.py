"""Everything that may happen next in the engine's world, and what happens when nothing goes wrong any more.

Owns enumeration and its bounds; never executes a move. A move is a tuple: its kind, then plain values.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from ..core import events
from .reference import AT_WORK, DEAD, GONE, LEAVING, LOADING, SERVING, SPAWNED, WARMING
from .scope import TROUBLES

if TYPE_CHECKING:
    from .world import EngineWorld

Move = tuple[Any, ...]
FAULT = -1  # a row's outcome; 0, 1, ... are accepted lengths
STOPS = 100  # added to an accepted length: the first emitted token is a stop
NEXT_WORD = {SPAWNED: "hello", LOADING: "loaded", WARMING: "ready"}
SPENDING = {name: index for index, name in enumerate(TROUBLES)}


def calm(world: "EngineWorld") -> Move | None:
    """Answer, boot, plan; wait only for the next worker. None at rest."""
    reference = world.reference
    if not reference.intents and reference.flying is None and world.all_free() and not _leaves(world):
        return None
    if reference.phase == LEAVING:
        return ("die",)
    if reference.flying is not None:
        return ("report", best(world), False)
    if reference.phase in NEXT_WORD:
        return ("word", NEXT_WORD[reference.phase])
    if reference.phase == DEAD:
        return ("wait",)
    return ("tick", (max(world.scope.wants),))


def _leaves(world: "EngineWorld") -> bool:
    return world.reference.draining and world.reference.phase != GONE


def moves(world: "EngineWorld") -> Iterator[Move]:
    """Every move once, the calm one among them."""
    calm_move = calm(world)
    if calm_move is not None:
        yield calm_move
    for move in (*_requests(world), *_clients(world), *_engine(world), *_worker(world), *_steps(world), *_time(world)):
        if move != calm_move:
            yield move


def _has(world: "EngineWorld", trouble: str) -> bool:
    return world.left[SPENDING[trouble]] > 0


def _requests(world: "EngineWorld") -> Iterator[Move]:
    scope, reference = world.scope, world.reference
    fits = scope.reuse_ids is False or reference.live(0) is None
    if world.next_serial < scope.num_requests and scope.client(world.next_serial) in reference.away and fits:
        yield ("submit", world.next_serial)
    if _has(world, "unfit"):
        for code in ("EMPTY_PROMPT", "PROMPT_TOO_LONG", "BAD_OPTION", "UNKNOWN_CLIENT", "DUPLICATE_ID"):
            if code != "DUPLICATE_ID" or reference.intents:
                yield ("unfit", code)
    for serial in reference.intents:
        if _has(world, "cancel"):
            yield ("cancel", serial)
        if _has(world, "bug"):
            yield ("bug", serial)
    if scope.late_words:
        yield from (("late", kind) for kind in ("cancel", "other_cancel", "resume"))


def _clients(world: "EngineWorld") -> Iterator[Move]:
    for client in sorted(set(world.scope.clients)):
        away = world.reference.away.get(client)
        if away is None or away:
            yield ("client_hello", client)
        if away is not None and _has(world, "away"):
            yield ("client_away", client)
        if away is not None and _has(world, "goodbye"):
            yield ("client_goodbye", client)


def _engine(world: "EngineWorld") -> Iterator[Move]:
    ready = world.scope.idle_drain or world.next_serial == world.scope.num_requests
    if ready and _has(world, "drain"):
        yield ("drain",)
    if ready and _has(world, "stop"):
        yield ("stop",)


def _worker(world: "EngineWorld") -> Iterator[Move]:
    phase = world.reference.phase
    if phase in NEXT_WORD:
        yield ("word", NEXT_WORD[phase])
        if phase == WARMING and _has(world, "partial"):
            yield ("partial",)
        if phase == WARMING and _has(world, "shrunk"):
            yield ("shrunk",)
    if phase in (LOADING, WARMING) and _has(world, "refused"):
        yield ("refused",)
    if phase not in (DEAD, GONE) and _has(world, "death"):
        yield ("die",)
    if _has(world, "broken") and phase not in (DEAD, GONE):
        yield ("broke",)
        yield from (("word", word) for at, word in NEXT_WORD.items() if at != phase)
    if phase in AT_WORK and world.progress_ran():
        yield ("beat",)
    if world.scope.late_words:
        if phase in (DEAD, GONE):
            yield ("late", "words")
        yield from (("late", kind) for kind in ("session", "step", "fault", "beat"))


def _steps(world: "EngineWorld") -> Iterator[Move]:
    flying = world.reference.flying
    if flying is None:
        return
    faults, stops = world.left[SPENDING["row_fault"]], world.left[SPENDING["stop_token"]]
    for outcomes in product(*[list(_outcomes(world, row)) for row in flying.rows]):
        num_stops = sum(outcome >= STOPS for outcome in outcomes)
        if outcomes.count(FAULT) <= faults and num_stops <= stops:
            yield ("report", outcomes, False)
    if _has(world, "drafter_fault") and any(getattr(row, "propose_len", 0) for row in flying.rows):
        yield ("report", best(world), True)
    if _has(world, "step_fault"):
        yield ("step_fault",)
    if _has(world, "broken"):
        yield from (("mislabelled", kind) for kind in ("epoch", "future", "short", "too_long"))


def _outcomes(world: "EngineWorld", row: Any) -> Iterator[int]:
    """What a row may come back with. Of a request that is over, only whether its window is in doubt matters."""
    if type(row) is events.Scrub:
        yield 0
        return
    most = row.draft_len if type(row) is events.Decode else 0
    samples = type(row) is events.Decode or row.last
    owned = world.reference.tenant(row.slot) is not None
    yield most
    if owned and samples:
        for accepted in range(most) if world.scope.accepted is None else world.scope.accepted:
            if accepted < most:
                yield accepted
        if _has(world, "stop_token"):
            yield most + STOPS
    if _has(world, "row_fault"):
        yield FAULT


def best(world: "EngineWorld") -> tuple[int, ...]:
    flying = world.reference.flying
    assert flying is not None
    return tuple([row.draft_len if type(row) is events.Decode else 0 for row in flying.rows])


def _time(world: "EngineWorld") -> Iterator[Move]:
    scope, reference = world.scope, world.reference
    if reference.phase == SERVING and reference.flying is None:
        seats = min(scope.num_slots, len(reference.intents))
        lengths = product(scope.wants, repeat=seats) if seats else [(0,)]
        yield from (("tick", tuple(wants)) for wants in lengths if seats or world.unarmed())
    elif world.unarmed():
        yield ("tick", (max(scope.wants),))
    if _has(world, "wait") and world.core.next_timer() is not None:
        yield ("wait",)
