"""The engine as a pure world: the real core, driven by every interleaving that its scope allows, under the reference.

Owns the execution of a move: the input that it means, what the reference expects, and the comparison. After each
input the ledger's invariants hold, the outputs are exactly the expected ones, and timers moved only for a reason.
"""

from typing import Any

from ..core import results
from ..core.handle import Core
from ..core.invariants import check
from ..core.ledger import Timer
from ..core.policies.told import Told
from ..core.tables import TABLES, Machine, Tables
from . import moves as enumeration
from .commands import Contradiction, take
from .inputs import INPUTS, costs
from .moves import SPENDING, Move
from .records import Record, Wants, apply
from .reference import DEAD, GONE, LOADING, SERVING, SPAWNED, WARMING, Expected, Reference
from .scope import Scope

PROGRESS = (Timer.PROGRESS, 0)


class EngineWorld:
    """One state. `after` forks; `story`, when it is a list, collects every input for people to read and paste."""

    __slots__ = ("core", "left", "mark", "next_serial", "outputs", "reference", "scope", "story")

    def __init__(self, scope: Scope, *, tables: Tables = TABLES, story: list[Record] | None = None) -> None:
        self.scope = scope
        self.core = Core(scope.limits(), Told(), tables=tables)
        self.reference = Reference(scope)
        self.left = scope.budget()
        self.next_serial = 0
        self.story = story
        self.mark: tuple[int, results.Command | None] = (self.reference.phase, None)
        self.outputs: list[results.Output] = self.core.start()
        if self.outputs != [results.SpawnWorker(1)]:
            raise Contradiction(f"a core starts with {self.outputs}")
        for client in sorted(set(scope.clients)):
            self.act(("client_hello", client))
        for word in ("hello", "loaded", "ready") if scope.booted else ():
            self.act(("word", word))
        self.act(("tick", (0,)))

    # ---- what the explorer asks -----------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        return list(enumeration.moves(self))

    def calm(self) -> Move | None:
        return enumeration.calm(self)

    def after(self, move: Move) -> "EngineWorld":
        twin = self.fork()
        twin.act(move)
        return twin

    def key(self) -> tuple[Any, ...]:
        ledger = self.core.ledger
        epochs = [one.epoch for one in ledger.slots]
        return (ledger.fingerprint(), self.reference.key(epochs), self.left, self.next_serial)

    # ---- what the enumeration asks --------------------------------------------------------------------------

    def all_free(self) -> bool:
        return len(self.core.ledger.free) == self.scope.num_slots

    def unarmed(self) -> bool:
        """Whether a timer still waits for a Tick to count from."""
        return any(due is None for _, due in self.core.ledger.timers.values())

    def progress_ran(self) -> bool:
        delay, due = self.core.ledger.timers.get(PROGRESS, (0, None))
        return due is not None and due - self.core.ledger.now_ns < delay

    # ---- executing ------------------------------------------------------------------------------------------

    def fork(self, *, tables: Tables | None = None) -> "EngineWorld":
        """A world that goes on from here on its own, with other tables when they are given."""
        twin = object.__new__(EngineWorld)
        twin.scope, twin.left, twin.next_serial, twin.outputs = self.scope, self.left, self.next_serial, []
        twin.core, twin.reference, twin.story = self.core.fork(counting=False), self.reference.copy(), self.story
        twin.mark = self.mark
        if tables is not None:
            twin.core.tables = [tables[machine] for machine in Machine]
        return twin

    def act(self, move: Move) -> None:
        for trouble, count in costs(self, move):
            if count:
                index = SPENDING[trouble]
                self.left = (*self.left[:index], self.left[index] - count, *self.left[index + 1 :])
        self.outputs = []
        INPUTS[move[0]](self, *move[1:])

    def feed(self, record: Record, expected: Expected, *, beaten: bool = False) -> None:
        """One input, judged in everything that it caused. `beaten` says that it renews an idle worker's time."""
        before = dict(self.core.ledger.timers)
        if self.story is not None:
            self.story.append(record)
        self._judge(apply(self.core, record), expected)
        self._judge_timers(before, self.core.limits.heartbeat_deadline_ns if beaten else self._fresh())
        self.mark = (self.reference.phase, self.reference.flying)

    def phase_stands(self) -> bool:
        """Whether the worker is still in the phase that it was in after the last input."""
        return self.reference.phase == self.mark[0]

    def _fresh(self) -> int | None:
        """The delay that the progress timer must have been started with by what has just happened, or None."""
        limits, (phase, flying) = self.core.limits, self.mark
        now_phase, now_flying = self.reference.phase, self.reference.flying
        if now_phase in (DEAD, GONE):
            return None
        if now_flying is not None and now_flying is not flying:
            return limits.step_deadline_ns
        if now_phase != phase:
            return {SPAWNED: limits.load_deadline_ns, LOADING: limits.load_deadline_ns}.get(
                now_phase, limits.warm_deadline_ns if now_phase == WARMING else limits.heartbeat_deadline_ns
            )
        return limits.heartbeat_deadline_ns if flying is not None and now_flying is None else None

    def tell(self, wants: tuple[int, ...]) -> None:
        """What the policy wants from here on; the next input is the Tick that asks it."""
        record = Wants(wants)
        if self.story is not None:
            self.story.append(record)
        apply(self.core, record)

    def _judge(self, outputs: list[results.Output], expected: Expected) -> None:
        check(self.core.ledger)
        self.outputs += outputs
        said = []
        for output in outputs:
            if type(output) is results.Command:
                take(self.reference, output)
            else:
                said.append(_shown(output))
        if self.reference.phase == GONE and self.reference.stopped:
            expected = [*expected, ("EngineStopped",)]
        if said != expected:
            raise Contradiction(f"the core said {said}, expected {expected}")
        self._compare()

    def _compare(self) -> None:
        """The ledger and the intents agree on who is live, what was emitted and what was charged."""
        ledger, reference = self.core.ledger, self.reference
        live = {one.id: (one.client, one.output, one.restarts) for one in reference.intents.values()}
        known = {key: (one.client, tuple(one.output), one.restarts) for key, one in ledger.requests.items()}
        if live != known:
            raise Contradiction(f"the ledger knows {known}, expected {live}")
        if set(ledger.condemned) != reference.dirty:
            raise Contradiction(f"slots {ledger.condemned} wait for a scrub, expected {sorted(reference.dirty)}")
        if (ledger.step is None) != (reference.flying is None):
            raise Contradiction(f"the ledger's step is {ledger.step}, in flight is {reference.flying}")
        if reference.phase == SERVING and bool(ledger.worker.lost) != reference.lost:
            raise Contradiction(f"the worker has lost {ledger.worker.lost}, expected {reference.lost}")
        if reference.phase == GONE and (ledger.worker.state.name == "ABANDONED") != reference.given_up:
            raise Contradiction(f"the worker is {ledger.worker.state.name}, given up is {reference.given_up}")

    def _judge_timers(self, before: dict[Any, Any], fresh: int | None) -> None:
        now, timers = self.core.ledger.now_ns, self.core.ledger.timers
        if fresh is not None and timers.get(PROGRESS) not in ((fresh, None), (fresh, now + fresh)):
            raise Contradiction(f"the progress timer is {timers.get(PROGRESS)}, expected to be started with {fresh}")
        for key, (delay, due) in before.items():
            after = timers.get(key, (delay, due))
            moved = after != (delay, due) and not (due is None and after == (delay, now + delay))
            if moved and not (key == PROGRESS and fresh is not None):
                raise Contradiction(f"timer {key} moved from {(delay, due)} to {after} for no reason")


def _shown(output: results.Output) -> tuple[Any, ...]:
    name = type(output).__name__
    if type(output) is results.Tokens:
        return (name, output.request, output.index, tuple(output.token_ids), output.accepted_len, output.draft_len)
    if type(output) is results.Ended:
        return (name, output.request, output.state, output.reason, output.output_len)
    if type(output) is results.Refusal:
        return (name, output.request, output.code)
    if type(output) is results.CancelAck:
        return (name, output.request, output.live)
    for field in ("session", "request", "client"):
        if hasattr(output, field):
            return (name, getattr(output, field))
    return (name,)
