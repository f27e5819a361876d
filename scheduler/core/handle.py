"""The pure core: `core.handle(event) -> outputs`. No clock, socket, thread or randomness; the ledger is its only store.

Owns the cascade: an input passes its door (`doors.py`), machines step by their tables, effects enqueue further events,
until nothing is left. The service calls it for each frame and ends each poll with a Tick; only a Tick plans.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from ...statemachine import engine, request, worker
from ...statemachine.errors import LocalError
from ...statemachine.table import IllegalTransition
from . import doors, timers
from .admission import judge
from .effects import HANDLERS
from .engine_view import describe_health, describe_stats
from .events import Input, Submit
from .ledger import Ledger, Record, Timer
from .limits import Limits
from .policies import Policy
from .results import EngineStopped, Output, SpawnWorker
from .settle import Ending
from .tables import TABLES, Machine, Tables
from .totals import Totals

REQUEST = Machine.REQUEST  # bound once: looking an enum's member up costs as much as a small function
Watch = Callable[[Machine, Record, Any, int], None]  # machine, record, event, index of the row that applies
CASCADE_LIMIT = 1_000_000  # far above what any input can cause; a loop between machines is our bug


class Core:
    """All lifecycle decisions of one engine. Tables, policy and limits are arguments."""

    def __init__(self, limits: Limits, policy: Policy, *, tables: Tables = TABLES) -> None:
        self.limits = limits
        self.policy = policy
        self.learns = bool(getattr(policy, "learns", False))  # else nothing is remembered of what stood
        self.needs_confidence = bool(getattr(policy, "needs_confidence", False))
        self.tables = [tables[machine] for machine in Machine]
        self.handlers = [self.tables[machine].bind(HANDLERS[machine]) for machine in Machine]
        self.ledger = Ledger(num_slots=limits.num_slots, restart_budget=limits.restart_budget)
        self.totals = Totals()
        self.fired = [[0] * len(table.listing) for table in self.tables]
        self.watch: Watch | None = None  # hears of each transition before it happens, for logs
        self._outputs: list[Output] = []
        self._pending: deque[tuple[Machine, Any, Any, Any, Any]] = deque()

    def start(self) -> list[Output]:
        """Return what must happen before any input: the first worker is spawned."""
        self.ledger.start_timer(Timer.PROGRESS, self.limits.load_deadline_ns)
        return [SpawnWorker(self.ledger.worker.session)]

    def handle(self, event: Input) -> list[Output]:
        """Take one input and return everything that it causes, in order.

        Raises `LocalError` for a broken engine (the process should stop); bad input never raises, it is answered.
        """
        self._outputs = []
        doors.DOORS[type(event)](self, event)
        self.settle_cascade()
        if self.at_rest:
            self._outputs.append(EngineStopped())
        return self._outputs

    def next_timer(self) -> int | None:
        """When the next Tick is due at the latest, in ns of the Ticks' clock; None while no timer runs."""
        return timers.next_due(self.ledger)

    @property
    def at_rest(self) -> bool:
        return self.ledger.engine.state is engine.State.STOPPED and self.ledger.worker.state in worker.FINALS

    def stats(self) -> dict[str, Any]:
        return describe_stats(self)

    def health(self) -> tuple[bool, str, str, list[str]]:
        """Return (ok, engine state, worker state, reasons why it is not ok)."""
        return describe_health(self)

    def fork(self, *, counting: bool = True) -> "Core":
        """A core that goes on from here on its own; tables, policy and limits are shared.

        Without `counting` the numbers that decide nothing are shared too, which explorers want for speed.
        """
        twin = object.__new__(Core)
        twin.__dict__.update(self.__dict__)
        twin.ledger = self.ledger.fork()
        if counting:
            twin.totals = self.totals.copy()
            twin.fired = [counts.copy() for counts in self.fired]
        twin.watch = None
        twin._outputs, twin._pending = [], deque()
        return twin

    # ---- what doors and effects may use ---------------------------------------------------------------------

    def send(self, machine: Machine, record: Record, event: Any, data: Any = None, *, facts: Any = None) -> None:
        """Enqueue an event; `facts` classify it (the record itself when they are not given)."""
        self._pending.append((machine, record, event, data, record if facts is None else facts))

    def emit(self, output: Output) -> None:
        self._outputs.append(output)

    def judge(self, submit: Submit) -> engine.Verdict:
        return judge(self.ledger, self.limits, submit)

    def transitions_of(self, one: Any) -> dict[str, int]:
        return transitions(self.tables[Machine.REQUEST], one.fired)

    # ---- the cascade ----------------------------------------------------------------------------------------

    def settle_cascade(self) -> None:
        pending, tables, fired, watch = self._pending, self.tables, self.fired, self.watch
        for _ in range(CASCADE_LIMIT):
            if not pending:
                return
            machine, record, event, data, facts = pending.popleft()
            try:
                step = tables[machine].step(record.state, event, facts)
            except IllegalTransition as wrong:
                self._fail_internally(machine, record, event, wrong)
                continue
            if watch is not None:
                watch(machine, record, event, step.index)
            record.state = step.next
            fired[machine][step.index] += 1
            if machine is REQUEST:
                record.fired[step.index] += 1
            if step.effects:
                handlers = self.handlers[machine]
                for effect in step.effects:
                    handlers[effect](self, record, data)
        raise LocalError(f"an input caused more than {CASCADE_LIMIT} transitions")

    def _fail_internally(self, machine: Machine, record: Any, event: Any, wrong: IllegalTransition) -> None:
        """Our own illegal transition costs one request; anywhere else it is a broken engine."""
        if machine is not Machine.REQUEST or event is request.Event.INTERNAL or record.state in request.FINALS:
            raise LocalError(f"{machine.name} {getattr(record, 'id', '')}: {wrong}") from wrong
        self.totals.internal_errors += 1
        self.send(Machine.REQUEST, record, request.Event.INTERNAL, Ending("INTERNAL", str(wrong)))


def transitions(table: Any, fired: list[int]) -> dict[str, int]:
    """Fold counts by row into counts by "STATE>STATE", ignored cells left out."""
    counts: dict[str, int] = {}
    for name, count in zip(table.ways, fired, strict=False):
        if count:
            counts[name] = counts.get(name, 0) + count
    return counts
