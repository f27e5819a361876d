"""What the core shows of itself: statistics and health, read from the ledger when somebody asks.

Owns presentation only; nothing decides by it.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from ...statemachine import engine, step, worker
from .events import CommandRow, Decode
from .ledger import Slot
from .step_costs import Kind
from .tables import Machine

if TYPE_CHECKING:
    from .handle import Core


def describe_stats(core: "Core") -> dict[str, Any]:
    """Every number by its name: totals, states of live things, how often each transition was taken."""
    from .handle import transitions

    ledger = core.ledger
    return {
        **core.totals.values(ledger.requests.values()),
        "requests": dict(Counter(one.state.name for one in ledger.requests.values())),
        "slots": dict(Counter(one.state.name for one in ledger.slots)),
        "slot_list": describe_slots(core),
        "clients": dict(Counter(one.state.name for one in ledger.clients.values())),
        "queue_len": len(ledger.queue),
        "engine": ledger.engine.state.name,
        "worker": ledger.worker.state.name,
        "session": ledger.worker.session,
        "respawns": ledger.worker.respawns,
        "cost_table": describe_costs(core),
        "cost_factors": {kind.name: factor for kind, factor in zip(Kind, ledger.step_costs.factors(), strict=True)},
        "transitions": {machine.name: transitions(core.tables[machine], core.fired[machine]) for machine in Machine},
    }


def describe_slots(core: "Core") -> list[dict[str, Any]]:
    """What each slot does now; `request` is the core's number, and `draft_len` what the step in flight verifies."""
    ledger = core.ledger
    flying = {} if ledger.step is None else {row.slot: row for row in ledger.step.rows}
    return [_describe_slot(core, one, flying.get(one.id)) for one in ledger.slots]


def _describe_slot(core: "Core", one: Slot, row: CommandRow | None) -> dict[str, Any]:
    about: dict[str, Any] = {"slot": one.id, "state": one.state.name, "epoch": one.epoch, "window_len": one.window_len}
    if row is not None:
        about["row"] = type(row).__name__
    if isinstance(row, Decode):
        about["draft_len"] = row.draft_len
    if one.owner is None:
        return about
    tenant = core.ledger.requests[one.owner]
    counts = core.totals.counts_of(tenant)
    return {
        **about,
        "request": tenant.id,
        "request_state": tenant.state.name,
        "held_len": tenant.held_len,
        "prompt_len": len(tenant.prompt),
        "output_len": len(tenant.output),
        "max_tokens": tenant.options.max_tokens,
        "drafting_passes": counts.num_passes - counts.num_zero_passes,
        "emitted_drafting": counts.num_emitted_drafting,
    }


def describe_costs(core: "Core") -> dict[str, Any] | None:
    """The adopted table as a file holds it, and each time that was corrected: (rows, width or 0, measured, used)."""
    capacity = core.ledger.worker.capacity
    if capacity is None or capacity.costs is None:
        return None
    table = capacity.costs
    return {
        "fingerprint": dict(table.fingerprint),
        "context_len": table.context_len,
        "rows": list(table.rows),
        "widths": list(table.widths),
        "target_ns": [list(line) for line in table.target_ns],
        "draft_ns": list(table.draft_ns),
        "corrections": [list(one) for one in table.corrections],
    }


def describe_health(core: "Core") -> tuple[bool, str, str, list[str]]:
    """Healthy is: the engine is open, the worker serves with all that was asked for, no step is late."""
    ledger = core.ledger
    reasons = [f"the worker serves without {one}" for one in ledger.worker.lost]
    if ledger.worker.state not in worker.SERVING:
        last = f" (last one: {ledger.worker.reason})" if ledger.worker.reason else ""
        reasons.append(f"the worker is {ledger.worker.state.name}{last}")
    if ledger.engine.state is not engine.State.OPEN:
        reasons.append(f"the engine is {ledger.engine.state.name}")
    if ledger.step is not None and ledger.step.state is step.State.OVERDUE:
        reasons.append(f"step {ledger.step.id} is overdue")
    if core.totals.internal_errors:
        reasons.append(f"{core.totals.internal_errors} request(s) failed by an internal error")
    return not reasons, ledger.engine.state.name, ledger.worker.state.name, reasons
