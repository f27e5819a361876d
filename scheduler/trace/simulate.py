"""What if: recorded or made-up arrivals through the real core in virtual time, under one policy after another.

Owns the clock that is none and what users would have seen. The worker is `simulated.py`, a step takes what `step_times`
says; nothing sleeps and nothing is drawn but by hashes of a seed, so a run is the same every time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ...statemachine.errors import LocalError, Refused
from ..core import events, results
from ..core.handle import Core
from ..core.limits import Limits
from ..core.policies import Policy
from .arrivals import Arrival
from .simulated import Acceptance, SimulatedWorker
from .step_times import StepTimes

VOCAB = 1 << 40
SECOND_NS = 1_000_000_000
CLIENT = 1
NEVER_NS = 1 << 63


@attrs.define
class Seen:
    """What one user saw: times in ns; `gaps_ns` has one entry for each token after the first."""

    at_ns: int
    seated_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    num_tokens: int = 0
    gaps_ns: list[float] = attrs.field(factory=list)
    counts: results.Counts | None = None


@attrs.frozen
class StepSeen:
    """One step, for pictures: when it ran, its rows, and how many tokens of each kind."""

    begin_ns: int
    end_ns: int
    num_rows: int
    num_decodes: int
    num_chunk_tokens: int
    num_verified: int
    num_emitted: int


@attrs.define
class Run:
    """Everything of one policy's run."""

    policy: str
    requests: list[Seen]
    totals: dict[str, Any]
    end_ns: int = 0
    busy_ns: int = 0
    slot_ns: int = 0  # seated requests times time
    on_step: Callable[[StepSeen], Any] | None = None


def simulate(
    arrivals: Sequence[Arrival],
    policy: Policy,
    *,
    name: str,
    limits: Limits,
    times: StepTimes,
    acceptance: Acceptance,
    seed: int = 0,
    on_step: Callable[[StepSeen], Any] | None = None,
) -> Run:
    """Run all arrivals to their ends and return what was seen. Limits must hold the longest arrival."""
    engine = _Engine(arrivals, policy, limits=limits, times=times, acceptance=acceptance, seed=seed)
    run = Run(name, engine.seen, {}, on_step=on_step)
    engine.boot()
    while engine.turn(run):
        pass
    run.totals = engine.core.totals.values(())
    run.end_ns = engine.now_ns
    return run


def limits_for(arrivals: Sequence[Arrival], *, num_slots: int, max_step_tokens: int, block_len: int) -> Limits:
    """Limits as long as the longest arrival; nothing is refused and no deadline ever passes."""
    longest = max(one.prompt_len + one.output_len for one in arrivals)
    return Limits(
        num_slots=num_slots,
        max_model_len=longest,
        max_step_tokens=max(max_step_tokens, block_len + 2),
        max_queue=len(arrivals) + 1,
        load_deadline_ns=NEVER_NS,
        warm_deadline_ns=NEVER_NS,
        step_deadline_ns=NEVER_NS,
        heartbeat_deadline_ns=NEVER_NS,
    )


class _Engine:
    def __init__(
        self,
        arrivals: Sequence[Arrival],
        policy: Policy,
        *,
        limits: Limits,
        times: StepTimes,
        acceptance: Acceptance,
        seed: int,
    ) -> None:
        self.arrivals, self.times, self.limits = arrivals, times, limits
        self.core = Core(limits, policy)
        self.worker = SimulatedWorker(limits.num_slots, acceptance, seed=seed)
        self.block_len = len(acceptance.chances)
        self.seen = [Seen(one.at_ns) for one in arrivals]
        self.now_ns = self.next = 0
        self.command: results.Command | None = None

    def boot(self) -> None:
        self.core.start()
        self.core.handle(events.ClientHello(CLIENT))
        self.core.handle(events.WorkerHello(1))
        self.core.handle(events.WorkerLoaded(1))
        ready = events.WorkerReady(
            1, self.limits.num_slots, self.limits.max_model_len, self.block_len, costs=self.times.costs
        )
        self.core.handle(attrs.evolve(ready, has_confidence=False))
        if self.core.ledger.worker.capacity is None:
            raise Refused("BAD_CONFIG", f"policy {self.core.policy.name}: {'; '.join(self.core.health()[3])}")

    def turn(self, run: Run) -> bool:
        """Until the next report, or the next arrival when nothing runs; False at the end."""
        if self.command is None:
            if self.next >= len(self.arrivals):
                return False
            self.now_ns = max(self.now_ns, self.arrivals[self.next].at_ns)
            self._arrive(self.now_ns)
        else:
            command, begin_ns = self.command, self.now_ns
            took_ns = self.times.step_ns(command.rows)
            self.now_ns = begin_ns + took_ns
            self._arrive(self.now_ns - 1)
            rows = self.worker.run_rows(command.rows)
            self.command = None
            run.busy_ns += took_ns
            run.slot_ns += took_ns * len(self.core.ledger.seated)
            report = events.Report(1, command.step_id, rows, cost_ns=took_ns)
            self._take(self.core.handle(report))
            if run.on_step is not None:
                run.on_step(_shown(command, rows, begin_ns, self.now_ns))
            self._arrive(self.now_ns)
        self._take(self.core.handle(events.Tick(self.now_ns)))
        return True

    def _arrive(self, until_ns: int) -> None:
        while self.next < len(self.arrivals) and self.arrivals[self.next].at_ns <= until_ns:
            serial, one = self.next, self.arrivals[self.next]
            options = events.Options(max_tokens=one.output_len, params=events.Params(seed=serial))
            prompt = one.prompt(serial, vocab_size=VOCAB)
            self._take(self.core.handle(events.Submit(CLIENT, serial, prompt, options)))
            self.next += 1

    def _take(self, outputs: Sequence[results.Output]) -> None:
        for output in outputs:
            kind = type(output)
            if kind is results.Tokens:
                self._tokens(output)  # type: ignore[arg-type]
            elif kind is results.Command:
                self.command = output  # type: ignore[assignment]
                for row in output.rows:  # type: ignore[union-attr]
                    owner = self.core.ledger.slots[row.slot].owner
                    if type(row) is events.Seed and row.opens is not None and owner is not None:
                        self.seen[owner].seated_ns = self.now_ns
            elif kind is results.Ended:
                self.seen[output.request].counts = output.counts  # type: ignore[union-attr]
            elif kind is results.Refusal:
                raise LocalError(f"a simulated request was refused: {output}")

    def _tokens(self, output: results.Tokens) -> None:
        seen, count = self.seen[output.request], len(output.token_ids)
        if seen.num_tokens == 0:
            seen.first_ns = self.now_ns
            more = count - 1
        else:
            more = count
        if more > 0:
            seen.gaps_ns += [(self.now_ns - (seen.last_ns or self.now_ns)) / more] * more
        seen.last_ns = self.now_ns
        seen.num_tokens += count


def _shown(command: results.Command, rows: Sequence[Any], begin_ns: int, end_ns: int) -> StepSeen:
    decodes = [row.draft_len for row in command.rows if type(row) is events.Decode]
    chunks = sum(len(row.token_ids) for row in command.rows if type(row) is events.Seed)
    emitted = sum(len(row.token_ids) for row in rows if type(row) is events.Emitted)
    return StepSeen(begin_ns, end_ns, len(command.rows), len(decodes), chunks, sum(decodes), emitted)
