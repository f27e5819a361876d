"""Time in the core: timers count from the Tick after they were started, and fire on the first Tick at or after.

Owns firing and the poll's time-out; what a timer means is the event that it sends. `doors.py` calls `fire` on a Tick.
"""

from typing import TYPE_CHECKING

from ...statemachine import client, engine, request, step, worker
from .ledger import Ledger, Timer
from .settle import Ending, WorkerNews
from .tables import Machine

if TYPE_CHECKING:
    from .handle import Core


def fire(core: "Core") -> None:
    """Fire every timer that is due, in their order, then let the ones just started count from now.

    Each is settled before the next: two timers that are due at once must not both see the state before either.
    """
    ledger = core.ledger
    now = ledger.now_ns
    due_keys = sorted((due, key) for key, (_, due) in ledger.timers.items() if due is not None and due <= now)
    for due, key in due_keys:
        if ledger.timers.get(key, (0, None))[1] == due:  # an earlier one may have stopped or restarted it
            del ledger.timers[key]
            _ring(core, *key)
            core.settle_cascade()
    while (deadline := ledger.next_deadline()) is not None and deadline[0] <= now:
        ending = Ending("DEADLINE", "its deadline_ms passed before it was done")
        core.send(Machine.REQUEST, ledger.requests[deadline[2]], request.Event.DEADLINE, ending)
        core.settle_cascade()
    arm(ledger)


def arm(ledger: Ledger) -> None:
    for key, (delay, due) in ledger.timers.items():
        if due is None:
            ledger.timers[key] = (delay, ledger.now_ns + delay)


def next_due(ledger: Ledger) -> int | None:
    """When the next timer or deadline is due, in ns; None when there is none."""
    dues = [due if due is not None else ledger.now_ns + delay for delay, due in ledger.timers.values()]
    deadline = ledger.next_deadline()
    if deadline is not None:
        dues.append(deadline[0])
    return min(dues, default=None)


def _ring(core: "Core", timer: Timer, subject: int) -> None:
    ledger = core.ledger
    if timer is Timer.PROGRESS:
        news = WorkerNews(f"no progress within the deadline of {ledger.worker.state.name}")
        core.send(Machine.WORKER, ledger.worker, worker.Event.STALLED, news)
    elif timer is Timer.OVERDUE and ledger.step is not None:
        core.send(Machine.STEP, ledger.step, step.Event.LATE)
    elif timer is Timer.RESPAWN:
        core.send(Machine.WORKER, ledger.worker, worker.Event.RESPAWN, WorkerNews())
    elif timer is Timer.DRAIN:
        ending = Ending("DRAIN_DEADLINE", "it was not done when the drain deadline passed")
        core.send(Machine.ENGINE, ledger.engine, engine.Event.DRAIN_DEADLINE, ending)
    elif timer is Timer.GRACE:
        core.send(Machine.CLIENT, ledger.clients[subject], client.Event.GRACE_OVER)
