"""A core as plain values and back: what a rotated trace begins with, so that it replays without what came before.

Owns the spelling of every record of the ledger, of the totals and of the counts of fired rows. `trace_writer.py`
freezes, `trace/replay.py` thaws; a core that is thawed goes on exactly as the frozen one did.
"""

from collections.abc import Callable
from typing import Any

import attrs
import msgspec

from ...statemachine import client, engine, request, slot, step, worker
from ...statemachine.errors import Refused
from ..core.handle import Core
from ..core.ledger import Client, Record, Request, Slot, StepInFlight, Timer
from .packing import TEXT_FIELDS, Packing, pack, unpack

STATES: dict[str, Any] = {
    "Request": request.State,
    "Slot": slot.State,
    "StepInFlight": step.State,
    "Worker": worker.State,
    "Client": client.State,
    "Engine": engine.State,
}
_TOTALS: dict[type[Any], Any] = {int: int, list: list[int], dict: dict[str, int]}


def freeze(core: Core, *, redacting: Packing | None = None) -> Any:
    """`redacting` replaces token ids and clients' texts, for a redacted trace."""
    ledger = core.ledger
    packed = pack if redacting is None else redacting.pack

    def record(one: Record) -> dict[str, Any]:
        return {name: _plain(name, getattr(one, name), redacting) for name in one.__slots__}

    return {
        "now_ns": ledger.now_ns,
        "next_order": ledger.next_order,
        "num_left": ledger.num_left,
        "requests": [record(one) for one in ledger.requests.values()],
        "queue": [one.id for one in ledger.queue],
        "seated": list(ledger.seated),
        "slots": [record(one) for one in ledger.slots],
        "free": list(ledger.free),
        "condemned": list(ledger.condemned),
        "suspects": list(ledger.suspects),
        "step": None if ledger.step is None else record(ledger.step),
        "worker": record(ledger.worker),
        "acceptance": packed(ledger.acceptance),
        "step_costs": packed(ledger.step_costs),
        "clients": [record(one) for one in ledger.clients.values()],
        "engine": record(ledger.engine),
        "timers": [[int(timer), subject, *value] for (timer, subject), value in ledger.timers.items()],
        "deadlines": [list(one) for one in ledger.deadlines],
        "totals": dict(vars(core.totals)),
        "fired": core.fired,
    }


def thaw(core: Core, frozen: Any) -> None:
    """Make `core`, which is fresh and has the same limits and policy, what `freeze` was given. Raises `Refused`."""
    try:
        _thaw(core, frozen)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, msgspec.ValidationError) as error:
        raise Refused("BAD_FILE", f"a snapshot that does not fit: {type(error).__name__}: {error}") from error


def _thaw(core: Core, frozen: Any) -> None:
    ledger = core.ledger
    ledger.now_ns, ledger.next_order, ledger.num_left = (frozen[key] for key in ("now_ns", "next_order", "num_left"))
    requests: list[Request] = [_record(Request, one) for one in frozen["requests"]]
    ledger.requests = {one.id: one for one in requests}
    ledger.queue = [ledger.requests[key] for key in frozen["queue"]]
    ledger.seated = {key: ledger.requests[key] for key in frozen["seated"]}
    ledger.slots = [_record(Slot, one) for one in frozen["slots"]]
    ledger.free, ledger.condemned, ledger.suspects = frozen["free"], frozen["condemned"], frozen["suspects"]
    ledger.step = None if frozen["step"] is None else _record(StepInFlight, frozen["step"])
    ledger.worker = _record(type(ledger.worker), frozen["worker"])
    ledger.acceptance, ledger.step_costs = unpack(frozen["acceptance"]), unpack(frozen["step_costs"])
    clients: list[Client] = [_record(Client, one) for one in frozen["clients"]]
    ledger.clients = {one.id: one for one in clients}
    ledger.engine = _record(type(ledger.engine), frozen["engine"])
    ledger.timers = {(Timer(timer), subject): (delay, due) for timer, subject, delay, due in frozen["timers"]}
    ledger.deadlines = [(due, order, key) for due, order, key in frozen["deadlines"]]
    for name, known in vars(core.totals).items():  # older traces lack what was not counted yet
        setattr(core.totals, name, msgspec.convert(frozen["totals"].get(name, known), _TOTALS[type(known)]))
    fired = msgspec.convert(frozen["fired"], list[list[int]])
    if [len(counts) for counts in fired] != [len(counts) for counts in core.fired]:
        raise ValueError("counts of other tables' rows")
    core.fired = fired


def _plain(name: str, value: Any, redacting: Packing | None) -> Any:
    """Objects, tuples and sets say what they are; lists and plain values go as they are."""
    packed = pack if redacting is None else redacting.pack
    if redacting is not None and name in ("prompt", "output", "content"):
        value = redacting.renamed(value)
    if redacting is not None and name in TEXT_FIELDS:
        value = redacting.hidden(value)
    if attrs.has(type(value)):
        return {"object": packed(value)}
    if name in ("rows", "untold"):
        return {"objects": [packed(one) for one in value]}
    if isinstance(value, tuple):
        return {"tuple": list(value)}
    if isinstance(value, set):
        return {"set": sorted(value)}
    return int(value) if name == "state" else value


def _record(made: type[Any], values: dict[str, Any]) -> Any:
    one = object.__new__(made)
    for name in made.__slots__:
        setattr(one, name, STATES[made.__name__](values[name]) if name == "state" else _unplain(values[name]))
    return one


def _unplain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    readers: dict[str, Callable[[Any], Any]] = {
        "object": unpack,
        "objects": lambda many: [unpack(one) for one in many],
        "tuple": tuple,
        "set": set,
    }
    return readers[kind](inner)
