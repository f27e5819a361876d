"""The door of each input: judged before any machine moves, then turned into events for the machines.

Owns what a message must fit to (session, step, client); stale ones are dropped and counted, impossible ones break the
worker's contract. `handle.py` calls it; a Tick also plans here.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...statemachine import client, engine, request, step, worker
from ...statemachine.errors import LocalError
from . import events, prefix, results, timers
from .costs import cost_problems
from .ledger import Client, StepInFlight, Timer
from .plan import plan, scrubs
from .policies import unfit
from .settle import Ending, WorkerNews, impossible
from .tables import Machine
from .untold import told_len

if TYPE_CHECKING:
    from .handle import Core

SERVING = worker.SERVING
REQUEST = Machine.REQUEST  # bound once for the path of every row

# ---- clients ----------------------------------------------------------------------------------------------------


def client_hello(core: "Core", event: events.ClientHello) -> None:
    one = core.ledger.clients.setdefault(event.client, Client(event.client))
    core.send(Machine.CLIENT, one, client.Event.HELLO)


def client_unreachable(core: "Core", event: events.ClientUnreachable) -> None:
    one = core.ledger.clients.get(event.client)
    if one is not None:
        core.send(Machine.CLIENT, one, client.Event.UNREACHABLE)


def client_goodbye(core: "Core", event: events.ClientGoodbye) -> None:
    one = core.ledger.clients.get(event.client)
    if one is not None:
        core.send(Machine.CLIENT, one, client.Event.GOODBYE)


def submit(core: "Core", event: events.Submit) -> None:
    verdict = core.judge(event)
    core.send(Machine.ENGINE, core.ledger.engine, engine.Event.SUBMIT, event, facts=verdict)


def recover(core: "Core", event: events.Recover) -> None:
    """Accepted once is accepted: limits that may have become narrower since are not applied."""
    submit = event.submit
    if submit.request in core.ledger.requests or submit.client not in core.ledger.clients:
        raise LocalError(f"request {submit.request} of client {submit.client} cannot be recovered into this ledger")
    core.send(Machine.ENGINE, core.ledger.engine, engine.Event.SUBMIT, event, facts=engine.Verdict())


def cancel(core: "Core", event: events.Cancel) -> None:
    """Idempotent: cancelling what is over or unknown is acknowledged as such."""
    one = core.ledger.requests.get(event.request)
    live = one is not None and one.client == event.client
    core.emit(results.CancelAck(event.client, event.request, live))
    if one is not None and live:
        core.send(Machine.REQUEST, one, request.Event.CANCEL, Ending("cancelled"))


def resume(core: "Core", event: events.Resume) -> None:
    one = core.ledger.requests.get(event.request)
    if one is None or one.client != event.client:
        core.emit(
            results.Refusal(event.client, event.request, "UNKNOWN_REQUEST", "no live request of this id at this client")
        )
    elif not 0 <= event.from_index <= told_len(one):
        message = f"from_index = {event.from_index}: expected 0..{told_len(one)}"
        core.emit(results.Refusal(event.client, event.request, "BAD_INDEX", message))
    elif event.from_index < told_len(one):
        core.emit(
            results.Tokens(
                client=one.client,
                request=one.id,
                index=event.from_index,
                token_ids=one.output[event.from_index : told_len(one)],
                accepted_len=0,
                draft_len=None,
                start_pos=len(one.prompt) + event.from_index - 1,
            )
        )


# ---- the worker -------------------------------------------------------------------------------------------------


def _worker_event(core: "Core", session: int, event: worker.Event, news: WorkerNews, *, facts: Any = None) -> None:
    """A word of an earlier worker, or of one that is dead or gone, changes nothing."""
    one = core.ledger.worker
    gone = one.state is worker.State.DEAD or one.state in worker.FINALS
    if session == one.session and (not gone or event is worker.Event.DIED):
        core.send(Machine.WORKER, one, event, news, facts=facts)
    else:
        core.totals.reports_dropped += 1


def _in_order(core: "Core", session: int, event: worker.Event, news: WorkerNews, *, state: worker.State) -> None:
    """Handshake words have one lawful moment; out of turn they break the contract."""
    one = core.ledger.worker
    if session == one.session and one.state not in (state, worker.State.DEAD, *worker.FINALS):
        broke(core, f"{event.name} in state {one.state.name}")
    else:
        _worker_event(core, session, event, news, facts=news)


def worker_hello(core: "Core", event: events.WorkerHello) -> None:
    _in_order(core, event.session, worker.Event.HELLO, WorkerNews(), state=worker.State.SPAWNED)


def worker_loaded(core: "Core", event: events.WorkerLoaded) -> None:
    _in_order(core, event.session, worker.Event.LOADED, WorkerNews(), state=worker.State.LOADING)


def worker_ready(core: "Core", event: events.WorkerReady) -> None:
    """The first READY must carry the limits and the policy; a later worker must not be smaller than the first."""
    wrong = [] if event.costs is None else [f"its cost table: {one}" for one in cost_problems(event.costs)]
    if 0 < event.block_len >= event.drafter_window:
        wrong.append(f"drafter_window = {event.drafter_window}: expected more than a block of {event.block_len}")
    if wrong:
        if event.session == core.ledger.worker.session:
            broke(core, "; ".join(wrong))
        return
    limits, first = core.limits, core.ledger.worker.capacity
    drafts = (0, 0) if first is None else (first.block_len, first.drafter_window if first.block_len else 0)
    need = (limits.num_slots, limits.max_model_len, *drafts)
    have = (event.num_slots, event.max_model_len, event.block_len, event.drafter_window)
    small = any(mine < its for mine, its in zip(have, need, strict=True))
    reason = f"its (num_slots, max_model_len, block_len, drafter_window) = {have} is below {need}" if small else ""
    costs = event.costs if first is None or first.costs is None else first.costs
    fault = unfit(
        core.policy,
        event.block_len,
        max_draft_len=limits.max_draft_len,
        has_confidence=event.has_confidence,
        costs=costs,
    )
    reason = fault or reason
    news = WorkerNews(reason, ready=event, lost=event.lost, unfit=reason != "")
    _in_order(core, event.session, worker.Event.READY, news, state=worker.State.WARMING)


def worker_died(core: "Core", event: events.WorkerDied) -> None:
    _worker_event(core, event.session, worker.Event.DIED, WorkerNews(event.reason))


def worker_refused(core: "Core", event: events.WorkerRefused) -> None:
    """It may refuse while it starts; later it has accepted what it was told."""
    one = core.ledger.worker
    starting = one.state in (worker.State.LOADING, worker.State.WARMING)
    state = one.state if starting else worker.State.LOADING
    _in_order(core, event.session, worker.Event.REFUSED, WorkerNews(event.reason), state=state)


def worker_broke(core: "Core", event: events.WorkerBroke) -> None:
    if event.session == core.ledger.worker.session:
        broke(core, event.reason)


def worker_beat(core: "Core", event: events.WorkerBeat) -> None:
    """Alive is not progressing: a beat renews the timer of an idle worker only."""
    one = core.ledger.worker
    if event.session == one.session and one.state in SERVING and core.ledger.step is None:
        core.ledger.start_timer(Timer.PROGRESS, core.limits.heartbeat_deadline_ns)


def broke(core: "Core", reason: str) -> None:
    one = core.ledger.worker
    if one.state is not worker.State.DEAD and one.state not in worker.FINALS:
        core.send(Machine.WORKER, one, worker.Event.BROKE_CONTRACT, WorkerNews(reason))


def _in_flight(core: "Core", session: int, step_id: int) -> StepInFlight | None:
    """Return the step that this answers, or None after dropping or punishing it."""
    one, flying = core.ledger.worker, core.ledger.step
    if session == one.session and flying is not None and step_id == flying.id:
        return flying
    newest = one.last_step_id if flying is None else flying.id
    if session == one.session and step_id > newest:
        broke(core, f"it reports step {step_id}, the last one sent is {newest}")
    else:
        core.totals.reports_dropped += 1
    return None


def report(core: "Core", event: events.Report) -> None:
    flying = _in_flight(core, event.session, event.step_id)
    if flying is None:
        return
    wrong = impossible(flying.rows, event) or (_unsaid(event) if core.needs_confidence else None)
    if wrong is not None:
        broke(core, f"step {event.step_id}: {wrong}")
        return
    core.send(Machine.STEP, flying, step.Event.REPORTED, event)
    if event.lost is not None:
        if event.lost not in core.ledger.worker.lost:
            core.ledger.worker.lost.append(event.lost)
        core.send(Machine.WORKER, core.ledger.worker, worker.Event.DEGRADE, WorkerNews(event.lost))


def _unsaid(event: events.Report) -> str | None:
    """A policy that decides by confidences gets them with every draft; absence means that nothing is held."""
    for row in event.rows:
        if type(row) is events.Emitted and row.held_len > 0 and row.held_confidence_logits is None:
            return f"slot {row.slot} holds {row.held_len} drafts without held_confidence_logits"
    return None


def step_fault(core: "Core", event: events.StepFault) -> None:
    flying = _in_flight(core, event.session, event.step_id)
    if flying is None:
        return
    core.totals.step_faults += 1
    if all(type(row) is events.Scrub for row in flying.rows):
        broke(core, f"it cannot scrub: {event.code}: {event.message}")
        return
    core.send(Machine.STEP, flying, step.Event.FAULTED, event)


# ---- the engine -------------------------------------------------------------------------------------------------


def drain(core: "Core", event: events.Drain) -> None:
    core.send(Machine.ENGINE, core.ledger.engine, engine.Event.DRAIN)
    if not core.ledger.requests:
        core.send(Machine.ENGINE, core.ledger.engine, engine.Event.IDLE)


def stop(core: "Core", event: events.Stop) -> None:
    ending = Ending("ENGINE_STOPPED", "the engine was told to stop")
    core.send(Machine.ENGINE, core.ledger.engine, engine.Event.STOP, ending)


def tick(core: "Core", event: events.Tick) -> None:
    """Fire what is due, seat who waits, plan the next step: all in this order, so that a plan sees the present."""
    core.ledger.now_ns = max(core.ledger.now_ns, event.now_ns)
    timers.fire(core)
    if core.ledger.worker.state not in SERVING or core.ledger.step is not None:
        return
    for one in core.ledger.queue[: len(core.ledger.free)]:
        core.send(Machine.REQUEST, one, request.Event.ADMIT)
    core.settle_cascade()
    _send_step(core)


def _send_step(core: "Core") -> None:
    ledger = core.ledger
    rows: list[events.CommandRow] = list(scrubs(ledger))
    step_id = ledger.worker.last_step_id + 1
    if not rows:
        for one, planned, row, kept_short in plan(ledger, core.limits, core.policy):
            one.last_step_id = step_id
            if kept_short:
                core.totals.count_short(kept_short)
            if type(row) is events.Seed:
                prefix.sent(ledger.slots[row.slot], row, ledger)
            core.send(REQUEST, one, planned)
            rows.append(row)
    if not rows:
        return
    ledger.step = StepInFlight(step_id, rows=rows)
    ledger.start_timer(Timer.PROGRESS, core.limits.step_deadline_ns)
    ledger.start_timer(Timer.OVERDUE, core.limits.step_deadline_ns // 2)
    timers.arm(ledger)  # a step counts from now, not from the next Tick
    core.totals.steps += 1
    core.totals.step_rows += len(rows)
    core.emit(results.Command(ledger.worker.session, step_id, rows))


DOORS: Mapping[type, Callable[["Core", Any], None]] = {
    events.ClientHello: client_hello,
    events.ClientUnreachable: client_unreachable,
    events.ClientGoodbye: client_goodbye,
    events.Submit: submit,
    events.Recover: recover,
    events.Cancel: cancel,
    events.Resume: resume,
    events.WorkerHello: worker_hello,
    events.WorkerLoaded: worker_loaded,
    events.WorkerReady: worker_ready,
    events.WorkerBeat: worker_beat,
    events.WorkerDied: worker_died,
    events.WorkerRefused: worker_refused,
    events.WorkerBroke: worker_broke,
    events.Report: report,
    events.StepFault: step_fault,
    events.Drain: drain,
    events.Stop: stop,
    events.Tick: tick,
}
