"""What the effects of the tables do: one strict handler for each, total over the enums (checked when a core is built).

Owns every change of ledger facts that follows a transition. A handler runs after the new state is stored, never steps
its own machine, and enqueues events for others with `core.send`; nothing to act on is a `LocalError`.
"""

from bisect import insort
from collections.abc import Callable, Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Any

from ...statemachine import client, engine, request, slot, step, worker
from ...statemachine.errors import LocalError
from . import events
from .ledger import Client, Engine, Request, Slot, StepInFlight, Timer, Worker
from .settle import Ending, Outcome, WorkerNews, lose, settle, undo
from .tables import Machine

if TYPE_CHECKING:
    from .handle import Core

Handler = Callable[..., None]


# ---- REQUEST ----------------------------------------------------------------------------------------------------


def seat(core: "Core", one: Request, data: Any) -> None:
    if not core.ledger.free:
        raise LocalError(f"request {one.id}: no free slot to take")
    core.ledger.queue.remove(one)
    chosen = core.ledger.slots[core.ledger.free.pop(0)]
    one.slot, chosen.owner = chosen.id, one.id
    one.seeded_len = one.held_len = 0
    core.ledger.seated[one.id] = one
    core.send(Machine.SLOT, chosen, slot.Event.TAKE)


def unqueue(core: "Core", one: Request, data: Any) -> None:
    core.ledger.queue.remove(one)


def requeue(core: "Core", one: Request, data: Any) -> None:
    core.ledger.enqueue(one)


def deliver(core: "Core", one: Request, outcome: Outcome) -> None:
    index = len(one.output)
    one.output += outcome.token_ids
    one.held_len = outcome.held_len
    outcome.count(one)
    core.emit(
        events.Tokens(
            client=one.client,
            request=one.id,
            index=index,
            token_ids=outcome.token_ids,
            accepted_len=outcome.accepted_len,
            draft_len=outcome.draft_len,
            start_pos=len(one.prompt) + index - 1,
            detail=outcome.detail,
        )
    )


def advance(core: "Core", one: Request, row: events.Seed) -> None:
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
        one.slot = held.owner = None
        one.held_len = one.seeded_len = 0
        del core.ledger.seated[one.id]
        if one.id in core.ledger.suspects:
            core.ledger.suspects.remove(one.id)
        core.send(Machine.SLOT, held, event)

    return handler


def end(core: "Core", one: Request, data: Ending | Outcome) -> None:
    del core.ledger.requests[one.id]
    owner = core.ledger.clients.get(one.client)
    if owner is not None:
        owner.requests.remove(one.id)
    reason = data.reason if isinstance(data, Ending) else data.ending
    if reason is None:
        raise LocalError(f"request {one.id} ends without a reason")
    core.totals.count_end(one)
    core.emit(
        events.Ended(
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
    core.ledger.condemned.append(one.id)


# ---- STEP -------------------------------------------------------------------------------------------------------


def close(core: "Core", one: StepInFlight, data: Any) -> None:
    core.ledger.step = None
    core.ledger.worker.last_step_id = one.id
    core.ledger.stop_timer(Timer.OVERDUE)


def await_beat(core: "Core", one: StepInFlight, data: Any) -> None:
    core.ledger.start_timer(Timer.PROGRESS, core.limits.heartbeat_deadline_ns)


# ---- WORKER -----------------------------------------------------------------------------------------------------


def send_init(core: "Core", one: Worker, data: Any) -> None:
    core.emit(events.SendInit(one.session))


def adopt(core: "Core", one: Worker, news: WorkerNews) -> None:
    if news.ready is None:
        raise LocalError("WORKER is ready without saying what it can do")
    if one.capacity is None:
        one.capacity = news.ready
    one.lost = list(news.ready.lost)


def kill(core: "Core", one: Worker, news: WorkerNews) -> None:
    one.reason = news.reason
    core.ledger.stop_timer(Timer.PROGRESS)
    core.emit(events.KillWorker(one.session, news.reason))


def arm(core: "Core", one: Worker, data: Any) -> None:
    core.ledger.start_timer(Timer.PROGRESS, core.limits.progress_ns(one.state))


def lose_all(core: "Core", one: Worker, data: Any) -> None:
    ledger = core.ledger
    if ledger.step is not None:
        core.send(Machine.STEP, ledger.step, step.Event.WORKER_LOST)
    for seated in list(ledger.seated.values()):
        if seated.state not in request.IN_FLIGHT:
            core.send(Machine.REQUEST, seated, request.Event.WORKER_LOST, Ending("WORKER_LOST", one.reason))
    for condemned in ledger.condemned:
        core.send(Machine.SLOT, ledger.slots[condemned], slot.Event.LOST)


def back_off(core: "Core", one: Worker, data: Any) -> None:
    """Twice as long each time, up to 32 times."""
    core.ledger.start_timer(Timer.RESPAWN, core.limits.respawn_delay_ns * 2 ** min(one.respawns, 5))


def spawn(core: "Core", one: Worker, data: Any) -> None:
    one.respawns += 1
    one.session += 1
    one.last_step_id = 0
    core.emit(events.SpawnWorker(one.session))


def call_off(core: "Core", one: Worker, data: Any) -> None:
    if (Timer.RESPAWN, 0) not in core.ledger.timers:
        raise LocalError(f"WORKER ({one.state.name}): no next spawn to call off")
    core.ledger.stop_timer(Timer.RESPAWN)


def give_up(core: "Core", one: Worker, data: Any) -> None:
    for live in list(core.ledger.requests.values()):
        core.send(Machine.REQUEST, live, request.Event.ABANDON, Ending("WORKER_LOST", one.reason))


def ask_to_leave(core: "Core", one: Worker, data: Any) -> None:
    core.emit(events.SendDrain(one.session))


# ---- CLIENT and ENGINE ------------------------------------------------------------------------------------------


def welcome(core: "Core", one: Client, data: Any) -> None:
    core.ledger.stop_timer(Timer.GRACE, one.id)
    core.emit(events.Welcome(one.id))


def start_grace(core: "Core", one: Client, data: Any) -> None:
    core.ledger.start_timer(Timer.GRACE, core.limits.client_grace_ns, subject=one.id)


def cancel_all(core: "Core", one: Client, data: Any) -> None:
    for key in sorted(one.requests):
        core.send(Machine.REQUEST, core.ledger.requests[key], request.Event.CANCEL, Ending("client_gone"))


def forget(core: "Core", one: Client, data: Any) -> None:
    core.ledger.stop_timer(Timer.GRACE, one.id)
    del core.ledger.clients[one.id]
    core.emit(events.ForgetClient(one.id))


def accept(core: "Core", one: Engine, submit: events.Submit) -> None:
    ledger = core.ledger
    made = Request(
        submit.request, client=submit.client, prompt=submit.prompt, options=submit.options, order=ledger.next_order
    )
    ledger.next_order += 1
    if submit.deadline_ns is not None:
        heappush(ledger.deadlines, (submit.deadline_ns, made.order, made.id))
    made.max_restarts = core.limits.max_restarts
    made.fired = [0] * len(core.tables[Machine.REQUEST].listing)
    ledger.requests[made.id] = made
    ledger.clients[made.client].requests.add(made.id)
    ledger.enqueue(made)
    core.totals.accepted += 1
    core.emit(events.Accepted(made.client, made.id))


def refuse(core: "Core", one: Engine, submit: events.Submit) -> None:
    verdict = core.judge(submit)
    if verdict.code is None:
        raise LocalError(f"request {submit.request} is refused without a reason")
    core.totals.refused[verdict.code] = core.totals.refused.get(verdict.code, 0) + 1
    core.emit(events.Refusal(submit.client, submit.request, verdict.code, verdict.message))


def start_drain_timer(core: "Core", one: Engine, data: Any) -> None:
    core.ledger.start_timer(Timer.DRAIN, core.limits.drain_deadline_ns)


def fail_rest(core: "Core", one: Engine, ending: Ending) -> None:
    for live in list(core.ledger.requests.values()):
        core.send(Machine.REQUEST, live, request.Event.ABANDON, ending)


def drain_worker(core: "Core", one: Engine, data: Any) -> None:
    core.ledger.stop_timer(Timer.DRAIN)
    core.send(Machine.WORKER, core.ledger.worker, worker.Event.DRAIN, WorkerNews("the engine is done"))


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
WORKER_HANDLERS: Mapping[worker.Effect, Handler] = {
    worker.Effect.SEND_INIT: send_init,
    worker.Effect.ADOPT: adopt,
    worker.Effect.KILL: kill,
    worker.Effect.LOSE_ALL: lose_all,
    worker.Effect.BACK_OFF: back_off,
    worker.Effect.SPAWN: spawn,
    worker.Effect.GIVE_UP: give_up,
    worker.Effect.ASK_TO_LEAVE: ask_to_leave,
    worker.Effect.ARM: arm,
    worker.Effect.CALL_OFF: call_off,
}
CLIENT_HANDLERS: Mapping[client.Effect, Handler] = {
    client.Effect.WELCOME: welcome,
    client.Effect.START_GRACE: start_grace,
    client.Effect.CANCEL_ALL: cancel_all,
    client.Effect.FORGET: forget,
}
ENGINE_HANDLERS: Mapping[engine.Effect, Handler] = {
    engine.Effect.ACCEPT: accept,
    engine.Effect.REFUSE: refuse,
    engine.Effect.START_DRAIN_TIMER: start_drain_timer,
    engine.Effect.FAIL_REST: fail_rest,
    engine.Effect.DRAIN_WORKER: drain_worker,
}
HANDLERS: Mapping[Machine, Mapping[Any, Handler]] = {
    Machine.REQUEST: REQUEST_HANDLERS,
    Machine.SLOT: SLOT_HANDLERS,
    Machine.STEP: STEP_HANDLERS,
    Machine.WORKER: WORKER_HANDLERS,
    Machine.CLIENT: CLIENT_HANDLERS,
    Machine.ENGINE: ENGINE_HANDLERS,
}
