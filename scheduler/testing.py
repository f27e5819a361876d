"""A bench for the core: the real `Core` and the scripted worker, driven by hand, one input at a time.

Owns the simulated clock and what was seen; never a socket or a real clock. For tests of the core, of policies and of
changed tables: every input is followed by the ledger's invariants, and outputs are collected by request. With
Hypothesis installed, `testing_rules.py` drives a bench through whatever can happen; docs/testing-kit.md shows both.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..statemachine import worker
from .core import events, results
from .core.costs import CostTable
from .core.handle import Core
from .core.invariants import check
from .core.limits import Limits
from .core.policies import Policy, parse_policy
from .core.tables import TABLES, Tables
from .proof.records import Record, Wants, apply, write
from .trace.scripted import Faults, ScriptedFault, ScriptedModel

MILLISECOND_NS = 1_000_000


class RowWorker(Protocol):
    """What runs rows: the scripted worker, or a real one behind an adapter."""

    block_len: int
    lost: str | None

    def run_rows(self, rows: Sequence[Any]) -> list[events.ReportRow]: ...


class Bench:
    """One engine in one process. `tick()` plans, `answer()` lets the worker run what is in flight.

    `model` options (vocab_size, mean, acceptance, target, propose, faults, ...) are those of `ScriptedModel`; with
    `worker` another thing that runs rows takes its place (it is called for each new worker). `costs` is what each
    worker has measured, for policies that need it.
    """

    def __init__(
        self,
        policy: Policy | str = "fixed:7",
        *,
        limits: Limits | None = None,
        tables: Tables = TABLES,
        block_len: int = 7,
        worker: Callable[[], RowWorker] | None = None,
        costs: CostTable | None = None,
        **model: Any,
    ) -> None:
        self.limits = limits or Limits(num_slots=2, max_model_len=256)
        self.core = Core(self.limits, parse_policy(policy) if isinstance(policy, str) else policy, tables=tables)
        self._make = worker or (
            lambda: ScriptedModel(
                num_slots=self.limits.num_slots,
                max_model_len=self.limits.max_model_len,
                block_len=block_len,
                **model,
            )
        )
        self.costs = costs
        self.now_ns = 0
        self.records: list[Record] = []  # everything that went in, for `dump`
        self.in_flight: results.Command | None = None
        self.commands: list[results.Command] = []
        self.reports: list[events.Report | events.StepFault] = []
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, list[results.Ended]] = {}
        self.refused: dict[int, list[results.Refusal]] = {}
        self.outputs: list[results.Output] = []
        self._take(self.core.start())
        self.boot()

    def boot(self) -> None:
        """A fresh worker says hello, loads and is ready."""
        self.worker = self._make()
        session = self.core.ledger.worker.session
        self.send(events.WorkerHello(session))
        self.send(events.WorkerLoaded(session))
        self.send(
            events.WorkerReady(
                session,
                self.limits.num_slots,
                self.limits.max_model_len,
                self.worker.block_len,
                costs=self.costs,
                drafter_window=getattr(self.worker, "drafter_window", self.limits.max_model_len),
                has_confidence=getattr(self.worker, "has_confidence", False),
            )
        )

    def send(self, event: events.Input) -> list[results.Output]:
        """One input; the ledger is checked after it."""
        self.records.append(event)
        outputs = self.core.handle(event)
        check(self.core.ledger)
        self._take(outputs)
        return outputs

    def want(self, *lens: int) -> None:
        """Tell the policy (a `Told`) what to want from here on."""
        wants = Wants(lens)
        self.records.append(wants)
        apply(self.core, wants)

    def dump(self, path: Path) -> None:
        """Write what went in as a file that `proof.records.replay` runs again."""
        write(path, self.limits, self.records)

    def submit(
        self, request: int, prompt: Sequence[int], *, client: int = 0, deadline_ns: int | None = None, **options: Any
    ) -> list[results.Output]:
        if client not in self.core.ledger.clients:
            self.send(events.ClientHello(client))
        return self.send(events.Submit(client, request, tuple(prompt), events.Options(**options), deadline_ns))

    def tick(self, milliseconds: int = 1) -> list[results.Output]:
        self.now_ns += milliseconds * MILLISECOND_NS
        return self.send(events.Tick(self.now_ns))

    def answer(self) -> list[results.Output]:
        """The worker runs the step in flight and its report arrives."""
        if self.in_flight is None:
            return []
        command, self.in_flight = self.in_flight, None
        report: events.Report | events.StepFault
        try:
            rows = self.worker.run_rows(command.rows)
            report = events.Report(command.session, command.step_id, rows, self.worker.lost)
        except ScriptedFault as fault:
            report = events.StepFault(command.session, command.step_id, fault.code, str(fault))
        self.reports.append(report)
        return self.send(report)

    def lose_worker(self, reason: str = "killed") -> None:
        """The worker dies with whatever it was doing."""
        self.in_flight = None
        self.send(events.WorkerDied(self.core.ledger.worker.session, reason))

    def revive(self) -> None:
        """Wait for the back-off and boot the next worker; none comes when the engine stops meanwhile."""
        while self.core.ledger.worker.state is worker.State.DEAD:
            self.tick(milliseconds=100)
        if self.core.ledger.worker.state is worker.State.SPAWNED:
            self.boot()

    def run(self, *, max_steps: int = 10_000) -> None:
        """Tick and answer until no request is live and nothing is in flight."""
        for _ in range(max_steps):
            self.tick()
            if self.in_flight is None and not self.core.ledger.requests:
                return
            self.answer()
        raise TimeoutError(f"requests are still live after {max_steps} steps: {list(self.core.ledger.requests)}")

    def solo(self, prompt: Sequence[int], length: int, **params: Any) -> list[int]:
        """What plain decoding of `prompt` emits: the reference for every test."""
        if not isinstance(self.worker, ScriptedModel):
            raise TypeError("only the scripted worker knows what plain decoding emits")
        return self.worker.continuation(list(prompt), length, params=events.Params(**params))

    def _take(self, outputs: list[results.Output]) -> None:
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, results.Command):
                self.in_flight = output
                self.commands.append(output)
            elif isinstance(output, results.Tokens):
                seen = self.tokens.setdefault(output.request, [])
                if output.index != len(seen):
                    raise AssertionError(f"request {output.request}: tokens at {output.index} after {len(seen)}")
                seen += output.token_ids
            elif isinstance(output, results.Ended):
                self.ended.setdefault(output.request, []).append(output)
            elif isinstance(output, results.Refusal):
                self.refused.setdefault(output.request, []).append(output)
            elif isinstance(output, results.KillWorker):
                self.in_flight = None


__all__ = ["Bench", "Faults", "RowWorker"]
