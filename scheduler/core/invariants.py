"""What must be true of the ledger between two inputs, across machines; a violation is our bug, so a `LocalError`.

Owns the judgement only. Tests, the explorer and paranoid services call `check` after each input.
"""

from collections.abc import Iterator

from ...statemachine import request, slot, step, worker
from ...statemachine.errors import LocalError
from .events import Scrub
from .ledger import Ledger

SERVING = frozenset({worker.State.READY, worker.State.DEGRADED})
UNSEATED = frozenset({request.State.QUEUED})


def check(ledger: Ledger) -> None:
    """Raise `LocalError` listing every broken invariant."""
    broken = [*_requests(ledger), *_slots(ledger), *_step(ledger), *_clients(ledger)]
    if broken:
        raise LocalError("ledger: " + "; ".join(broken))


def _requests(ledger: Ledger) -> Iterator[str]:
    for key, one in ledger.requests.items():
        name = f"request {key} ({one.state.name})"
        if one.state in request.FINALS:
            yield f"{name} is over but still in the ledger"
        if (one.slot is None) != (one.state in UNSEATED):
            yield f"{name} holds slot {one.slot}"
        if (key in ledger.seated) != (one.slot is not None):
            yield f"{name} is{'' if key in ledger.seated else ' not'} among the seated with slot {one.slot}"
        if (one in ledger.queue) != (one.state is request.State.QUEUED):
            yield f"{name} and the queue disagree"
        if (one.held_len > 0) != (one.state in (request.State.DRAFT_READY, request.State.VERIFYING)) and (
            one.state is not request.State.STEPPING
        ):
            yield f"{name} holds {one.held_len} drafts"
        if len(one.output) > one.options.max_tokens:
            yield f"{name} has {len(one.output)} tokens of at most {one.options.max_tokens}"
        if one.slot is not None and ledger.slots[one.slot].owner != key:
            yield f"{name} and slot {one.slot} disagree on the owner ({ledger.slots[one.slot].owner})"
        in_flight = ledger.step is not None and any(row.slot == one.slot for row in ledger.step.rows)
        if (one.state in request.IN_FLIGHT) != in_flight:
            yield f"{name} and the step in flight disagree"
    orders = [one.order for one in ledger.queue]
    if orders != sorted(set(orders)):
        yield f"the queue is out of accept order: {orders}"


def _slots(ledger: Ledger) -> Iterator[str]:
    for one in ledger.slots:
        name = f"slot {one.id} ({one.state.name})"
        if (one.owner is not None) != (one.state is slot.State.HELD):
            yield f"{name} has owner {one.owner}"
        if one.owner is not None and one.owner not in ledger.requests:
            yield f"{name} is held by request {one.owner}, which is over"
        if (one.id in ledger.free) != (one.state is slot.State.FREE):
            yield f"{name} and the free list disagree"
        if (one.id in ledger.condemned) != (one.state is slot.State.QUARANTINED):
            yield f"{name} and the condemned list disagree"
        named = ledger.step is not None and any(row.slot == one.id for row in ledger.step.rows)
        if one.state is slot.State.RETIRING and not named:
            yield f"{name} waits for a step that does not name it"
    for listed in (ledger.free, ledger.condemned):
        if len(set(listed)) < len(listed):
            yield f"a slot is listed twice: {listed}"


def _step(ledger: Ledger) -> Iterator[str]:
    if ledger.step is None:
        return
    if ledger.step.state not in (step.State.SENT, step.State.OVERDUE):
        yield f"step {ledger.step.id} is {ledger.step.state.name} but still in flight"
    if ledger.worker.state not in SERVING | {worker.State.DRAINING}:
        yield f"step {ledger.step.id} is in flight while the worker is {ledger.worker.state.name}"
    named = [row.slot for row in ledger.step.rows]
    if not named or len(set(named)) < len(named):
        yield f"step {ledger.step.id} names slots {named}"
    for row in ledger.step.rows:
        held = ledger.slots[row.slot]
        if not isinstance(row, Scrub) and row.epoch != held.epoch:
            yield f"step {ledger.step.id} names slot {row.slot} epoch {row.epoch}, the ledger has {held.epoch}"


def _clients(ledger: Ledger) -> Iterator[str]:
    for key, one in ledger.clients.items():
        strangers = [r for r in one.requests if r not in ledger.requests or ledger.requests[r].client != key]
        if strangers:
            yield f"client {key} lists requests {strangers} that are not live or not its own"
    for live in ledger.requests.values():
        owner = ledger.clients.get(live.client)
        if owner is None or live.id not in owner.requests:
            yield f"request {live.id} belongs to client {live.client}, which does not list it"
