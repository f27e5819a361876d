"""What must be true of the ledger between two inputs, across machines; a violation is our bug, so a `LocalError`.

Owns the judgement only. Tests, the explorer and paranoid services call `check` after each input.
"""

from collections.abc import Iterator

from ...statemachine import client, engine, request, slot, step, worker
from ...statemachine.errors import LocalError
from .events import Decode, Scrub, Seed
from .ledger import Ledger, Timer
from .untold import told_len

SERVING = worker.SERVING
AT_WORK = SERVING | {worker.State.DRAINING}
WITHOUT_PROGRESS = worker.FINALS | {worker.State.DEAD}
HOLDING = (request.State.DRAFT_READY, request.State.VERIFYING)
IN_FLIGHT, OVER = request.IN_FLIGHT, request.FINALS
QUEUED, HELD, FREE = request.State.QUEUED, slot.State.HELD, slot.State.FREE


def check(ledger: Ledger) -> None:
    """Raise `LocalError` listing every broken invariant."""
    named = frozenset() if ledger.step is None else frozenset(row.slot for row in ledger.step.rows)
    broken = [
        *_requests(ledger, named),
        *_orders(ledger),
        *_slots(ledger, named),
        *_step(ledger, named),
        *_worker(ledger),
        *_clients(ledger),
        *_timers(ledger),
    ]
    if broken:
        raise LocalError("ledger: " + "; ".join(broken))


def _requests(ledger: Ledger, named: frozenset[int]) -> Iterator[str]:
    for key, one in ledger.requests.items():
        state, held = one.state, one.slot
        name = f"request {key} ({state.name})"
        if state in OVER:
            yield f"{name} is over but still in the ledger"
        if (held is None) != (state is QUEUED):
            yield f"{name} holds slot {held}"
        if (key in ledger.seated) != (held is not None):
            yield f"{name} is{'' if key in ledger.seated else ' not'} among the seated with slot {held}"
        if (one.held_len > 0) != (state in HOLDING) and state is not request.State.STEPPING:
            yield f"{name} holds {one.held_len} drafts"
        if len(one.output) > one.options.max_tokens:
            yield f"{name} has {len(one.output)} tokens of at most {one.options.max_tokens}"
        if one.untold and told_len(one) != one.untold[0].index:
            yield f"{name} has {len(one.output)} tokens, those from {one.untold[0].index} on are not all untold"
        if held is not None and ledger.slots[held].owner != key:
            yield f"{name} and slot {held} disagree on the owner ({ledger.slots[held].owner})"
        if (state in IN_FLIGHT) != (held in named):
            yield f"{name} and the step in flight disagree"


def _orders(ledger: Ledger) -> Iterator[str]:
    """The queue holds every queued request once, in the order of their places; whoever is seated is live."""
    waiting = sorted([one.place for one in ledger.requests.values() if one.state is QUEUED])
    queued, expected = [one.order for one in ledger.queue], [order for *_, order in waiting]
    if queued != expected:
        yield f"the queue is {queued}, expected {expected} (accept order within priority, the requeued before all)"
    for key in ledger.seated:
        if key not in ledger.requests:
            yield f"request {key} is seated but over"


def _slots(ledger: Ledger, named: frozenset[int]) -> Iterator[str]:
    for one in ledger.slots:
        state = one.state
        name = f"slot {one.id} ({state.name})"
        if (one.owner is not None) != (state is HELD):
            yield f"{name} has owner {one.owner}"
        if one.owner is not None and one.owner not in ledger.requests:
            yield f"{name} is held by request {one.owner}, which is over"
        if (one.id in ledger.free) != (state is FREE):
            yield f"{name} and the free list disagree"
        if (one.id in ledger.condemned) != (state is slot.State.QUARANTINED):
            yield f"{name} and the condemned list disagree"
        if state is slot.State.RETIRING and one.id not in named:
            yield f"{name} waits for a step that does not name it"
    for listed in (ledger.free, ledger.condemned):
        if len(set(listed)) < len(listed):
            yield f"a slot is listed twice: {listed}"


def _step(ledger: Ledger, named: frozenset[int]) -> Iterator[str]:
    flying = ledger.step
    if flying is None:
        return
    if flying.state not in (step.State.SENT, step.State.OVERDUE):
        yield f"step {flying.id} is {flying.state.name} but still in flight"
    if ledger.worker.state not in AT_WORK:
        yield f"step {flying.id} is in flight while the worker is {ledger.worker.state.name}"
    if not named or len(named) < len(flying.rows):
        yield f"step {flying.id} names slots {[row.slot for row in flying.rows]}"
    for row in flying.rows:
        if not isinstance(row, Scrub):
            yield from _row(ledger, flying.id, row)


def _row(ledger: Ledger, step_id: int, row: Seed | Decode) -> Iterator[str]:
    held = ledger.slots[row.slot]
    if row.epoch != held.epoch:
        yield f"step {step_id} names slot {row.slot} epoch {row.epoch}, the ledger has {held.epoch}"
    if held.owner not in ledger.requests:
        return
    doing = request.State.SEEDING
    if type(row) is Decode:
        doing = request.State.VERIFYING if row.draft_len > 0 else request.State.STEPPING
    if ledger.requests[held.owner].state is not doing:
        yield f"step {step_id}: request {held.owner} is {ledger.requests[held.owner].state.name}, expected {doing.name}"


def _worker(ledger: Ledger) -> Iterator[str]:
    one = ledger.worker
    if one.state in SERVING and one.capacity is None:
        yield "the worker serves, but what it can do is not known"
    if one.state in SERVING and bool(one.lost) != (one.state is worker.State.DEGRADED):
        yield f"the worker is {one.state.name} and has lost {one.lost}"
    if ledger.seated and one.state not in SERVING:
        yield f"requests {list(ledger.seated)} hold slots of a worker that is {one.state.name}"
    if ledger.condemned and one.state not in AT_WORK:
        yield f"slots {ledger.condemned} wait for a scrub by a worker that is {one.state.name}"
    if ledger.engine.state is engine.State.STOPPED and ledger.requests:
        yield f"the engine is STOPPED and requests {list(ledger.requests)} are live"
    if ledger.engine.state is engine.State.DRAINING and not ledger.requests:
        yield "the engine is DRAINING and no request is live"


def _clients(ledger: Ledger) -> Iterator[str]:
    for key, one in ledger.clients.items():
        strangers = [r for r in one.requests if r not in ledger.requests or ledger.requests[r].client != key]
        if strangers:
            yield f"client {key} lists requests {strangers} that are not live or not its own"
    for live in ledger.requests.values():
        owner = ledger.clients.get(live.client)
        if owner is None or live.id not in owner.requests:
            yield f"request {live.id} belongs to client {live.client}, which does not list it"


def _timers(ledger: Ledger) -> Iterator[str]:
    """A timer runs exactly while the state that it is for lasts."""
    expected = {(Timer.GRACE, key) for key, one in ledger.clients.items() if one.state is client.State.AWAY}
    if ledger.worker.state not in WITHOUT_PROGRESS:
        expected.add((Timer.PROGRESS, 0))
    if ledger.worker.state is worker.State.DEAD:
        expected.add((Timer.RESPAWN, 0))
    if ledger.step is not None and ledger.step.state is step.State.SENT:
        expected.add((Timer.OVERDUE, 0))
    if ledger.engine.state is engine.State.DRAINING:
        expected.add((Timer.DRAIN, 0))
    if expected != ledger.timers.keys():
        yield f"timers run for {sorted(ledger.timers)}, expected {sorted(expected)}"
