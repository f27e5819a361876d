"""Effects of WORKER, CLIENT and ENGINE: the peers' lives and what they mean for everybody else.

Owns those handlers; `effects.py` holds the others and the whole map. The same rules: strict, after the new state is
stored, never stepping their own machine.
"""

from collections.abc import Callable, Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Any

import attrs

from ...statemachine import client, engine, request, slot, step, worker
from ...statemachine.errors import LocalError
from . import events, prefix, results
from .costs import monotone
from .ledger import Client, Engine, Request, Timer, Worker
from .settle import Ending, WorkerNews
from .strict import given
from .tables import Machine

if TYPE_CHECKING:
    from .handle import Core

Handler = Callable[..., None]

# ---- WORKER -----------------------------------------------------------------------------------------------------


def send_init(core: "Core", one: Worker, data: Any) -> None:
    core.emit(results.SendInit(one.session))


def adopt(core: "Core", one: Worker, data: Any) -> None:
    news = given(data, WorkerNews, "ADOPT")
    if news.ready is None:
        raise LocalError("WORKER is ready without saying what it can do")
    if one.capacity is None:
        measured = news.ready.costs
        one.capacity = news.ready if measured is None else attrs.evolve(news.ready, costs=monotone(measured))
    one.lost = list(news.ready.lost)


def kill(core: "Core", one: Worker, data: Any) -> None:
    news = given(data, WorkerNews, "KILL")
    one.reason = news.reason
    core.ledger.stop_timer(Timer.PROGRESS)
    core.emit(results.KillWorker(one.session, news.reason))


def arm(core: "Core", one: Worker, data: Any) -> None:
    core.ledger.start_timer(Timer.PROGRESS, core.limits.progress_ns(one.state))


def lose_all(core: "Core", one: Worker, data: Any) -> None:
    ledger = core.ledger
    if ledger.step is not None:
        core.send(Machine.STEP, ledger.step, step.Event.WORKER_LOST)
    for seated in list(ledger.seated.values()):
        if seated.state not in request.IN_FLIGHT:
            core.send(Machine.REQUEST, seated, request.Event.WORKER_LOST, Ending("WORKER_LOST", one.reason))
    for held in ledger.slots:
        prefix.forget(held)
    for condemned in ledger.condemned:
        core.send(Machine.SLOT, ledger.slots[condemned], slot.Event.LOST)


def back_off(core: "Core", one: Worker, data: Any) -> None:
    """Twice as long each time that nothing was emitted between, up to 32 times."""
    core.ledger.start_timer(Timer.RESPAWN, core.limits.respawn_delay_ns * 2 ** min(one.fruitless_respawns, 5))


def spawn(core: "Core", one: Worker, data: Any) -> None:
    one.respawns += 1
    one.fruitless_respawns += 1
    one.session += 1
    one.last_step_id = 0
    core.emit(results.SpawnWorker(one.session))


def call_off(core: "Core", one: Worker, data: Any) -> None:
    if (Timer.RESPAWN, 0) not in core.ledger.timers:
        raise LocalError(f"WORKER ({one.state.name}): no next spawn to call off")
    core.ledger.stop_timer(Timer.RESPAWN)


def give_up(core: "Core", one: Worker, data: Any) -> None:
    for live in list(core.ledger.requests.values()):
        core.send(Machine.REQUEST, live, request.Event.ABANDON, Ending("WORKER_LOST", one.reason))


def ask_to_leave(core: "Core", one: Worker, data: Any) -> None:
    core.emit(results.SendDrain(one.session))


# ---- CLIENT and ENGINE ------------------------------------------------------------------------------------------


def welcome(core: "Core", one: Client, data: Any) -> None:
    core.ledger.stop_timer(Timer.GRACE, one.id)
    core.emit(results.Welcome(one.id))


def start_grace(core: "Core", one: Client, data: Any) -> None:
    core.ledger.start_timer(Timer.GRACE, core.limits.client_grace_ns, subject=one.id)


def cancel_all(core: "Core", one: Client, data: Any) -> None:
    for key in sorted(one.requests):
        core.send(Machine.REQUEST, core.ledger.requests[key], request.Event.CANCEL, Ending("client_gone"))


def forget(core: "Core", one: Client, data: Any) -> None:
    core.ledger.stop_timer(Timer.GRACE, one.id)
    if core.ledger.clients.pop(one.id, None) is None:
        raise LocalError(f"client {one.id} is forgotten already")
    core.emit(results.ForgetClient(one.id))


def accept(core: "Core", one: Engine, data: Any) -> None:
    recovered = data.token_ids if isinstance(data, events.Recover) else ()
    submit = given(data.submit if isinstance(data, events.Recover) else data, events.Submit, "ACCEPT")
    ledger = core.ledger
    made = Request(
        submit.request, client=submit.client, prompt=submit.prompt, options=submit.options, order=ledger.next_order
    )
    ledger.next_order += 1
    if submit.deadline_ns is not None:
        heappush(ledger.deadlines, (submit.deadline_ns, made.order, made.id))
    made.max_restarts = core.limits.max_restarts
    made.fired = [0] * len(core.tables[Machine.REQUEST].listing)
    made.output, made.front = list(recovered), bool(recovered)
    ledger.requests[made.id] = made
    ledger.clients[made.client].requests.add(made.id)
    ledger.enqueue(made)
    core.totals.accepted += 1
    core.emit(results.Accepted(made.client, made.id))


def refuse(core: "Core", one: Engine, data: Any) -> None:
    submit = given(data, events.Submit, "REFUSE")
    verdict = core.judge(submit)
    if verdict.code is None:
        raise LocalError(f"request {submit.request} is refused without a reason")
    core.totals.refused[verdict.code] = core.totals.refused.get(verdict.code, 0) + 1
    core.emit(results.Refusal(submit.client, submit.request, verdict.code, verdict.message))


def start_drain_timer(core: "Core", one: Engine, data: Any) -> None:
    core.ledger.start_timer(Timer.DRAIN, core.limits.drain_deadline_ns)


def fail_rest(core: "Core", one: Engine, data: Any) -> None:
    ending = given(data, Ending, "FAIL_REST")
    for live in list(core.ledger.requests.values()):
        core.send(Machine.REQUEST, live, request.Event.ABANDON, ending)


def drain_worker(core: "Core", one: Engine, data: Any) -> None:
    core.ledger.stop_timer(Timer.DRAIN)
    core.send(Machine.WORKER, core.ledger.worker, worker.Event.DRAIN, WorkerNews("the engine is done"))


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
