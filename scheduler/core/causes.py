"""Causality between the machines: which effect of one machine enqueues which event of another.

Owns the summary; the effects' handlers, `settle.py` and `timers.py` are the truth, and a test observes that they do
exactly this. `cli/docs.py` prints it. Inputs and timers start each chain; no effect steps its own machine.
"""

from enum import IntEnum

from ...statemachine import client, engine, request, slot, step, worker
from .tables import Machine

Cause = tuple[Machine, IntEnum, Machine, IntEnum]

CAUSES: tuple[Cause, ...] = (
    (Machine.WORKER, worker.Effect.LOSE_ALL, Machine.STEP, step.Event.WORKER_LOST),
    (Machine.WORKER, worker.Effect.LOSE_ALL, Machine.REQUEST, request.Event.WORKER_LOST),
    (Machine.WORKER, worker.Effect.LOSE_ALL, Machine.SLOT, slot.Event.LOST),
    (Machine.WORKER, worker.Effect.GIVE_UP, Machine.REQUEST, request.Event.ABANDON),
    (Machine.STEP, step.Effect.SETTLE, Machine.REQUEST, request.Event.SEEDED),
    (Machine.STEP, step.Effect.SETTLE, Machine.REQUEST, request.Event.EMITTED),
    (Machine.STEP, step.Effect.SETTLE, Machine.REQUEST, request.Event.ROW_FAULT),
    (Machine.STEP, step.Effect.SETTLE, Machine.SLOT, slot.Event.STEP_OVER),
    (Machine.STEP, step.Effect.SETTLE, Machine.SLOT, slot.Event.FAULT),
    (Machine.STEP, step.Effect.SETTLE, Machine.SLOT, slot.Event.SCRUBBED),
    (Machine.STEP, step.Effect.UNDO, Machine.REQUEST, request.Event.UNDONE),
    (Machine.STEP, step.Effect.UNDO, Machine.REQUEST, request.Event.ROW_FAULT),
    (Machine.STEP, step.Effect.UNDO, Machine.SLOT, slot.Event.STEP_OVER),
    (Machine.STEP, step.Effect.UNDO, Machine.SLOT, slot.Event.FAULT),
    (Machine.STEP, step.Effect.LOSE, Machine.REQUEST, request.Event.WORKER_LOST),
    (Machine.STEP, step.Effect.LOSE, Machine.SLOT, slot.Event.STEP_OVER),
    (Machine.REQUEST, request.Effect.SEAT, Machine.SLOT, slot.Event.TAKE),
    (Machine.REQUEST, request.Effect.RELEASE_SLOT, Machine.SLOT, slot.Event.RELEASE),
    (Machine.REQUEST, request.Effect.RETIRE_SLOT, Machine.SLOT, slot.Event.RETIRE),
    (Machine.REQUEST, request.Effect.FAULT_SLOT, Machine.SLOT, slot.Event.FAULT),
    (Machine.REQUEST, request.Effect.LOSE_SLOT, Machine.SLOT, slot.Event.LOST),
    (Machine.REQUEST, request.Effect.END, Machine.ENGINE, engine.Event.IDLE),
    (Machine.CLIENT, client.Effect.CANCEL_ALL, Machine.REQUEST, request.Event.CANCEL),
    (Machine.ENGINE, engine.Effect.FAIL_REST, Machine.REQUEST, request.Event.ABANDON),
    (Machine.ENGINE, engine.Effect.DRAIN_WORKER, Machine.WORKER, worker.Event.DRAIN),
)
