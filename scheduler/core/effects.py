"""What the effects of the tables do: one strict handler for each, total over the enums (checked when a core is built).

Owns every change of ledger facts that follows a transition: of REQUEST, SLOT and STEP here, of the peers in
`peer_effects.py`. A handler runs after the new state is stored, never steps its own machine, and enqueues events for
others with `core.send`; nothing to act on is a `LocalError`.
"""

from bisect import insort
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...statemachine import engine, request, slot, step
from ...statemachine.errors import LocalError
from . import events, prefix, results, untold
from .ledger import Request, Slot, StepInFlight, Timer
from .peer_effects import CLIENT_HANDLERS, ENGINE_HANDLERS, WORKER_HANDLERS, Handler
from .settle import Ending, Outcome, lose, settle, undo
from .strict import given, take_out
from .tables import Machine

if TYPE_CHECKING:
    from .handle import Core

# ---- REQUEST ----------------------------------------------------------------------------------------------------


def seat(core: "Core", one: Request, data: Any) -> None:
    if not core.ledger.free:
        raise LocalError(f"request {one.id}: no free slot to take")
    take_out(one, core.ledger.queue, "SEAT")
    chosen = prefix.choose_slot(one, core.ledger, core.limits)
    core.ledger.free.remove(chosen.id)
    one.slot, chosen.owner, one.front = chosen.id, one.id, True
    one.seeded_len = one.held_len = 0
    one.held_confidence = one.past_confidence = None
    core.ledger.seated[one.id] = one
    core.send(Machine.SLOT, chosen, slot.Event.TAKE)


def unqueue(core: "Core", one: Request, data: Any) -> None:
    take_out(one, core.ledger.queue, "UNQUEUE")


def requeue(core: "Core", one: Request, data: Any) -> None:
    core.ledger.enqueue(one)


def deliver(core: "Core", one: Request, data: Any) -> None:
    outcome = given(data, Outcome, "DELIVER")
    index = len(one.output)
    one.output += outcome.token_ids
    core.ledger.worker.fruitless_respawns = 0  # what killed the ones before, this one got past
    one.held_len = outcome.held_len
    if one.held_confidence is not None:
        one.past_confidence = one.held_confidence
    one.held_confidence = outcome.held_confidence
    one.num_drafted += outcome.held_len
    if core.learns and outcome.draft_len is not None:
        one.acceptance = one.acceptance.after(outcome.draft_len, outcome.accepted_len)
        core.ledger.acceptance = core.ledger.acceptance.after(outcome.draft_len, outcome.accepted_len)
    row = results.Tokens(
        client=one.client,
        request=one.id,
        index=index,
        token_ids=outcome.token_ids,
        accepted_len=outcome.accepted_len,
        draft_len=outcome.draft_len,
        start_pos=len(one.prompt) + index - 1,
        detail=outcome.detail,
    )
    if one.untold or outcome.hold_len or outcome.keep_len is not None:
        untold.take(core, one, row, outcome)
    else:
        untold.count(one, row)
        core.emit(row)


def advance(core: "Core", one: Request, data: Any) -> None:
    row = given(data, events.Seed, "ADVANCE")
    one.seeded_len = row.start_pos + len(row.token_ids)


def forgive(core: "Core", one: Request, data: Any) -> None:
    one.restarts = 0


def charge(core: "Core", one: Request, data: Any) -> None:
    one.restarts += 1
    one.num_restarts += 1


def _leave_slot(event: slot.Event) -> Handler:
    def handler(core: "Core", one: Request, data: Any) -> None:
        if one.slot is None:
            raise LocalError(f"request {one.id} ({one.state.name}) holds no slot to {event.name}")
        held = core.ledger.slots[one.slot]
        if event is slot.Event.RELEASE or event is slot.Event.RETIRE:
            prefix.left(held, one, core.ledger, core.limits)
        one.slot = held.owner = None
        one.held_len = one.seeded_len = 0
        one.held_confidence = one.past_confidence = None
        del core.ledger.seated[one.id]
        if one.id in core.ledger.suspects:
            core.ledger.suspects.remove(one.id)
        core.send(Machine.SLOT, held, event)

    return handler


def end(core: "Core", one: Request, data: Any) -> None:
    if core.ledger.requests.pop(one.id, None) is None:
        raise LocalError(f"request {one.id} has ended already")
    owner = core.ledger.clients.get(one.client)
    if owner is not None:
        owner.requests.remove(one.id)
    reason = data.reason if isinstance(data, Ending) else given(data, Outcome, "END").ending
    if reason is None:
        raise LocalError(f"request {one.id} ends without a reason")
    if one.untold:
        untold.drop(one)
    core.totals.count_end(one)
    core.emit(
        results.Ended(
            client=one.client,
            request=one.id,
            state=one.state.name,
            reason=reason,
            message=data.message if isinstance(data, Ending) else "",
            prompt_len=len(one.prompt),
            output_len=len(one.output),
            counts=core.totals.counts_of(one),
            transitions=core.transitions_of(one),
        )
    )
    if not core.ledger.requests:
        core.send(Machine.ENGINE, core.ledger.engine, engine.Event.IDLE)


# ---- SLOT -------------------------------------------------------------------------------------------------------


def new_epoch(core: "Core", one: Slot, data: Any) -> None:
    one.epoch += 1


def vacate(core: "Core", one: Slot, data: Any) -> None:
    if one.id in core.ledger.free:
        raise LocalError(f"slot {one.id} is free already")
    if one.id in core.ledger.condemned:
        core.ledger.condemned.remove(one.id)
    insort(core.ledger.free, one.id)


def condemn(core: "Core", one: Slot, data: Any) -> None:
    prefix.forget(one)
    core.ledger.condemned.append(one.id)


# ---- STEP -------------------------------------------------------------------------------------------------------


def close(core: "Core", one: StepInFlight, data: Any) -> None:
    core.ledger.step = None
    core.ledger.worker.last_step_id = one.id
    core.ledger.stop_timer(Timer.OVERDUE)


def await_beat(core: "Core", one: StepInFlight, data: Any) -> None:
    core.ledger.start_timer(Timer.PROGRESS, core.limits.heartbeat_deadline_ns)


REQUEST_HANDLERS: Mapping[request.Effect, Handler] = {
    request.Effect.SEAT: seat,
    request.Effect.UNQUEUE: unqueue,
    request.Effect.REQUEUE: requeue,
    request.Effect.DELIVER: deliver,
    request.Effect.ADVANCE: advance,
    request.Effect.FORGIVE: forgive,
    request.Effect.CHARGE: charge,
    request.Effect.RELEASE_SLOT: _leave_slot(slot.Event.RELEASE),
    request.Effect.RETIRE_SLOT: _leave_slot(slot.Event.RETIRE),
    request.Effect.FAULT_SLOT: _leave_slot(slot.Event.FAULT),
    request.Effect.LOSE_SLOT: _leave_slot(slot.Event.LOST),
    request.Effect.END: end,
}
SLOT_HANDLERS: Mapping[slot.Effect, Handler] = {
    slot.Effect.NEW_EPOCH: new_epoch,
    slot.Effect.VACATE: vacate,
    slot.Effect.CONDEMN: condemn,
}
STEP_HANDLERS: Mapping[step.Effect, Handler] = {
    step.Effect.SETTLE: settle,
    step.Effect.UNDO: undo,
    step.Effect.LOSE: lose,
    step.Effect.CLOSE: close,
    step.Effect.AWAIT_BEAT: await_beat,
}
HANDLERS: Mapping[Machine, Mapping[Any, Handler]] = {
    Machine.REQUEST: REQUEST_HANDLERS,
    Machine.SLOT: SLOT_HANDLERS,
    Machine.STEP: STEP_HANDLERS,
    Machine.WORKER: WORKER_HANDLERS,
    Machine.CLIENT: CLIENT_HANDLERS,
    Machine.ENGINE: ENGINE_HANDLERS,
}
