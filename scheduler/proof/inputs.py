"""What each move means: the core's input that it makes, and what the reference expects of it.

Owns the translation of moves; `world.py` feeds and compares. Messages that must change nothing are proved to here.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ...statemachine.errors import LocalError
from ..core import events, results
from ..core.ledger import Timer
from .late import late
from .moves import FAULT, NEXT_WORD, STOPS, Move, best
from .records import Misstep
from .reference import DEAD, GONE, Expected
from .scope import STOP_TOKEN

if TYPE_CHECKING:
    from .world import EngineWorld

ALONE = {
    "cancel": "cancel",
    "bug": "bug",
    "unfit": "unfit",
    "client_away": "away",
    "client_goodbye": "goodbye",
    "drain": "drain",
    "stop": "stop",
    "partial": "partial",
    "shrunk": "shrunk",
    "refused": "refused",
    "broke": "broken",
    "mislabelled": "broken",
    "die": "death",
    "wait": "wait",
    "step_fault": "step_fault",
}


def costs(world: "EngineWorld", move: Move) -> Iterator[tuple[str, int]]:
    """Which troubles the move takes from the budget; what is calm costs nothing."""
    kind = move[0]
    if kind in ALONE:
        if kind not in ("die", "wait") or move != world.calm():
            yield ALONE[kind], 1
    elif kind == "report":
        yield "row_fault", move[1].count(FAULT)
        yield "stop_token", sum(outcome >= STOPS for outcome in move[1])
        yield "drafter_fault", int(move[2])
    elif kind == "word" and world.reference.phase not in (DEAD, GONE):
        yield "broken", int(NEXT_WORD.get(world.reference.phase) != move[1])


# ---- requests, clients, the engine ------------------------------------------------------------------------------


def submit(world: "EngineWorld", serial: int) -> None:
    scope = world.scope
    world.next_serial = serial + 1
    deadline_ns = world.core.ledger.now_ns + 2 if serial in scope.deadlines else None
    expected = world.reference.submit(serial, deadline_ns)
    request_id, client = scope.request_id(serial), scope.client(serial)
    world.feed(events.Submit(client, request_id, scope.prompt(serial), scope.options(), deadline_ns), expected)


def unfit(world: "EngineWorld", code: str) -> None:
    """A submit that is refused whatever the engine does."""
    scope, reference = world.scope, world.reference
    serial = next(iter(reference.intents)) if code == "DUPLICATE_ID" else scope.num_requests
    one = events.Submit(scope.client(serial), serial, scope.prompt(serial), scope.options())
    changes: dict[str, dict[str, Any]] = {
        "EMPTY_PROMPT": {"prompt": ()},
        "PROMPT_TOO_LONG": {"prompt": (1,) * scope.max_model_len},
        "BAD_OPTION": {"options": attrs.evolve(scope.options(), max_tokens=0)},
        "UNKNOWN_CLIENT": {"client": 77},
        "DUPLICATE_ID": {"request": scope.request_id(serial)},
    }
    one = attrs.evolve(one, **changes[code])
    world.feed(one, reference.refuse(one.request, one.client, code))


def cancel(world: "EngineWorld", serial: int) -> None:
    one = world.reference.intents[serial]
    world.feed(events.Cancel(one.client, one.id), world.reference.cancel(one.id, one.client))


def bug(world: "EngineWorld", serial: int) -> None:
    request_id = world.reference.intents[serial].id
    slot = world.core.ledger.requests[request_id].slot
    expected = world.reference.fail_internally(serial, slot)
    world.feed(Misstep(request_id), [("CancelAck", -1, False), *expected])


def client_hello(world: "EngineWorld", client: int) -> None:
    world.feed(events.ClientHello(client), world.reference.hello(client))


def client_away(world: "EngineWorld", client: int) -> None:
    world.feed(events.ClientUnreachable(client), world.reference.unreachable(client))


def client_goodbye(world: "EngineWorld", client: int) -> None:
    world.feed(events.ClientGoodbye(client), world.reference.goodbye(client))


def drain(world: "EngineWorld") -> None:
    world.feed(events.Drain(), world.reference.drain())


def stop(world: "EngineWorld") -> None:
    world.feed(events.Stop(), world.reference.stop())


# ---- the worker -------------------------------------------------------------------------------------------------


def word(world: "EngineWorld", kind: str) -> None:
    session = world.reference.session
    message: events.WorkerHello | events.WorkerLoaded | events.WorkerReady = {  # type: ignore[assignment]
        "hello": events.WorkerHello(session),
        "loaded": events.WorkerLoaded(session),
        "ready": events.WorkerReady(session, world.scope.num_slots, world.scope.max_model_len, world.scope.block_len),
    }[kind]
    world.feed(message, world.reference.word(kind))


def partial(world: "EngineWorld") -> None:
    scope = world.scope
    message = events.WorkerReady(
        world.reference.session, scope.num_slots, scope.max_model_len, scope.block_len, lost=("graphs",)
    )
    world.feed(message, world.reference.word("ready", lost=True))


def shrunk(world: "EngineWorld") -> None:
    scope = world.scope
    message = events.WorkerReady(world.reference.session, scope.num_slots, scope.max_model_len - 1, scope.block_len)
    world.feed(message, world.reference.word("ready", shrunk=True))


def refused(world: "EngineWorld") -> None:
    world.feed(events.WorkerRefused(world.reference.session, "a bad checkpoint"), world.reference.decline())


def die(world: "EngineWorld") -> None:
    world.feed(events.WorkerDied(world.reference.session, "it died"), world.reference.die())


def broke(world: "EngineWorld") -> None:
    world.feed(events.WorkerBroke(world.reference.session, "junk"), world.reference.die())


def beat(world: "EngineWorld") -> None:
    idle = world.reference.beat()
    world.feed(events.WorkerBeat(world.reference.session, world.reference.last_step_id), [], beaten=idle)


# ---- steps ------------------------------------------------------------------------------------------------------


def report(world: "EngineWorld", outcomes: tuple[int, ...], lost: bool) -> None:
    flying = _flying(world)
    got = lawful_rows(world, outcomes, lost=lost)
    message = events.Report(flying.session, flying.step_id, got, "drafter" if lost else None)
    world.feed(message, world.reference.report(got, lost=lost))


def step_fault(world: "EngineWorld") -> None:
    flying = _flying(world)
    message = events.StepFault(flying.session, flying.step_id, "FAULT", "it raised")
    world.feed(message, world.reference.step_fault())


def mislabelled(world: "EngineWorld", kind: str) -> None:
    """A report that no lawful worker sends: another epoch, a step of the future, a row too few or too long."""
    flying = _flying(world)
    rows: list[Any] = lawful_rows(world, best(world), lost=False)
    step_id = flying.step_id + (kind == "future")
    if kind == "short":
        rows.pop()
    elif kind == "epoch":
        first = rows[0]
        rows[0] = events.Seeded(0, 1) if type(first) is events.Scrubbed else attrs.evolve(first, epoch=first.epoch + 1)
    elif kind == "too_long":
        rows[0] = events.Emitted(rows[0].slot, getattr(rows[0], "epoch", 1), [1] * 9, accepted_len=8, held_len=0)
    world.feed(events.Report(flying.session, step_id, rows), world.reference.die())


def lawful_rows(world: "EngineWorld", outcomes: tuple[int, ...], *, lost: bool) -> list[Any]:
    """What a worker reports that runs the step in flight with these outcomes."""
    rows: list[Any] = []
    for row, outcome in zip(_flying(world).rows, outcomes, strict=True):
        if type(row) is events.Scrub:
            rows.append(events.Scrubbed(row.slot))
        elif outcome == FAULT:
            rows.append(events.RowFault(row.slot, row.epoch, "FAULT", "it raised"))  # type: ignore[union-attr]
        elif type(row) is events.Seed and not row.last:
            rows.append(events.Seeded(row.slot, row.epoch))
        else:
            rows.append(_emitted(world, row, outcome, lost=lost))
    return rows


def _emitted(world: "EngineWorld", row: Any, outcome: int, *, lost: bool) -> events.Emitted:
    held = world.reference.windows[row.slot]
    if held is None:
        raise LocalError(f"slot {row.slot} holds nothing")
    ends = row.start_pos + len(row.token_ids) if type(row) is events.Seed else held.text_len
    accepted_len = outcome % STOPS
    token_ids = [world.scope.token(held.serial, ends + index) for index in range(accepted_len + 1)]
    if outcome >= STOPS:
        token_ids[0] = STOP_TOKEN
    return events.Emitted(row.slot, row.epoch, token_ids, accepted_len, 0 if lost else row.propose_len)


def _flying(world: "EngineWorld") -> results.Command:
    if world.reference.flying is None:
        raise LocalError("no step is in flight")
    return world.reference.flying


# ---- time -------------------------------------------------------------------------------------------------------


def tick(world: "EngineWorld", wants: tuple[int, ...]) -> None:
    """No time passes: timers are armed, whoever waits is seated, the next step is planned."""
    world.tell(wants)
    world.feed(events.Tick(world.core.ledger.now_ns), [])


def wait(world: "EngineWorld") -> None:
    """Time passes until the next timer is due; timers that were not armed yet count from then."""
    now = world.core.next_timer()
    if now is None:
        raise LocalError("there is no timer to wait for")
    world.tell((max(world.scope.wants),))
    due = sorted((due, key) for key, (_, due) in world.core.ledger.timers.items() if due is not None and due <= now)
    expected = [said for _, key in due for said in _rings(world, *key)]
    expected += world.reference.expire(now)
    world.feed(events.Tick(now), expected)


def _rings(world: "EngineWorld", timer: Timer, subject: int) -> Expected:
    """What a due timer means, unless an earlier one has taken its reason away."""
    reference = world.reference
    if timer is Timer.PROGRESS:
        return reference.die() if world.phase_stands() else []
    if timer is Timer.RESPAWN:
        return reference.respawn() if reference.phase == DEAD else []
    if timer is Timer.DRAIN:
        return [] if reference.stopped else reference.fail_all("DRAIN_DEADLINE")
    if timer is Timer.GRACE:
        return reference.goodbye(subject)
    return []


INPUTS: Mapping[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        submit,
        unfit,
        cancel,
        bug,
        client_hello,
        client_away,
        client_goodbye,
        drain,
        stop,
        word,
        partial,
        shrunk,
        refused,
        die,
        broke,
        beat,
        report,
        step_fault,
        mislabelled,
        tick,
        wait,
        late,
    )
}
