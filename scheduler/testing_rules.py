"""A rule machine over the core with the scripted worker: what may happen around requests, in any order, at length.

Owns the rules and what must hold after each; needs Hypothesis. People who change a table, add a policy or embed the
engine subclass `EngineRules`; a failure leaves its shortest example as a file that replays (`dump_path`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ..statemachine import engine, worker
from .core import events
from .core.limits import Limits
from .core.policies import Policy
from .core.policies.told import Told
from .core.tables import TABLES, Tables
from .testing import Bench
from .trace.scripted import ScriptedModel

VOCAB = 50
STEM = [(7 * index) % VOCAB for index in range(15)]  # what many prompts begin with
PROMPTS = st.builds(
    lambda shared, own: STEM[:shared] + own,
    st.sampled_from([0, 3, 9, 15]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
)


def register_profiles() -> None:
    """`dev` (a glance), `ci` (the same examples every time) and `nightly` (long, new examples)."""
    settings.register_profile("dev", max_examples=20, stateful_step_count=40, deadline=None)
    settings.register_profile("ci", max_examples=60, stateful_step_count=50, deadline=None, derandomize=True)
    settings.register_profile("nightly", max_examples=3000, stateful_step_count=120, deadline=None, print_blob=True)


class EngineRules(RuleBasedStateMachine):
    """Override `tables`, `policy` or `model` to test yours; add rules and invariants as to any rule machine."""

    tables: ClassVar[Tables] = TABLES
    policy: ClassVar[Callable[[], Policy]] = Told
    model: ClassVar[dict[str, Any]] = {"vocab_size": VOCAB, "mean": 3.4}
    dump_path: ClassVar[Path | None] = None

    bench: Bench

    @initialize(
        num_slots=st.integers(1, 4),
        max_step_tokens=st.integers(1, 40),
        max_queue=st.integers(1, 8),
        min_reuse_len=st.sampled_from([1, 4, None]),
    )
    def start(self, num_slots: int, max_step_tokens: int, max_queue: int, min_reuse_len: int | None) -> None:
        limits = Limits(
            num_slots=num_slots,
            max_model_len=64,
            max_step_tokens=max_step_tokens,
            max_queue=max_queue,
            min_reuse_len=min_reuse_len,
            max_restarts=10**6,
            restart_budget=10**6,
        )
        self.bench = Bench(type(self).policy(), limits=limits, tables=self.tables, **self.model)
        self.jobs: dict[int, tuple[list[int], int]] = {}
        self.cancelled: set[int] = set()
        self.mail: list[events.Report | events.StepFault] = []  # sent by workers, not delivered
        self.delivered: list[events.Report | events.StepFault] = []

    # ---- clients --------------------------------------------------------------------------------------------

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 25),
        client=st.integers(0, 2),
        most=st.none() | st.integers(0, 9),
        priority=st.integers(-1, 1),
    )
    def submit(self, prompt: list[int], max_tokens: int, client: int, most: int | None, priority: int = 0) -> None:
        number = len(self.jobs)
        self.jobs[number] = (prompt, max_tokens)
        options = {"max_tokens": max_tokens, "max_draft_len": most, "priority": priority}
        self._do(self.bench.submit, number, prompt, client=client, **options)

    @precondition(lambda self: self.bench.tokens)
    @rule(data=st.data(), own=st.lists(st.integers(0, VOCAB - 1), max_size=3), max_tokens=st.integers(1, 9))
    def go_on(self, data: Any, own: list[int], max_tokens: int) -> None:
        """The next turn of a chat: what was said so far, and something new."""
        number = data.draw(st.sampled_from(sorted(self.bench.tokens)), label="turn before")
        text = [*self.jobs[number][0], *self.bench.tokens[number], *own]
        if len(text) < self.bench.limits.max_model_len:
            self.submit(prompt=text, max_tokens=max_tokens, client=0, most=None)

    @precondition(lambda self: self.bench.core.ledger.requests)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.bench.core.ledger.requests)), label="request")
        self.cancelled.add(number)
        self._do(self.bench.send, events.Cancel(self.bench.core.ledger.requests[number].client, number))

    @rule(client=st.integers(0, 2), how=st.sampled_from([events.ClientUnreachable, events.ClientHello]))
    def come_or_go(self, client: int, how: Any) -> None:
        self._do(self.bench.send, how(client))

    # ---- time and the worker --------------------------------------------------------------------------------

    @rule(lens=st.lists(st.integers(0, 7), min_size=1, max_size=4), milliseconds=st.sampled_from([1, 1, 1, 200]))
    def tick(self, lens: list[int], milliseconds: int) -> None:
        if isinstance(self.bench.core.policy, Told):
            self._do(self.bench.want, *lens)
        self._do(self.bench.tick, milliseconds)

    @precondition(lambda self: self.bench.in_flight is not None)
    @rule(fault=st.sampled_from([False] * 7 + [True]), delivers=st.sampled_from([True, True, True, False]))
    def work(self, fault: bool, delivers: bool) -> None:
        """The worker runs the step in flight and posts its report, which may be read at once or later."""
        command, self.bench.in_flight = self.bench.in_flight, None
        assert command is not None
        if fault:
            assert isinstance(self.bench.worker, ScriptedModel)
            self.bench.worker.fail_rows(command.rows)
            self.mail.append(events.StepFault(command.session, command.step_id, "DRAWN", "a drawn fault"))
        else:
            rows = self.bench.worker.run_rows(command.rows)
            self.mail.append(events.Report(command.session, command.step_id, rows, self.bench.worker.lost))
        if delivers:
            self.delivered.append(self.mail.pop())
            self._do(self.bench.send, self.delivered[-1])

    @rule(num_steps=st.integers(1, 12))
    def calm(self, num_steps: int) -> None:
        """A stretch in which nothing goes wrong."""
        for _ in range(num_steps):
            self._do(self.bench.tick)
            self._do(self.bench.answer)

    @precondition(lambda self: self.mail)
    @rule(data=st.data())
    def deliver(self, data: Any) -> None:
        """Any of the reports, late ones of earlier workers included."""
        one = self.mail.pop(data.draw(st.integers(0, len(self.mail) - 1), label="which"))
        self.delivered.append(one)
        self._do(self.bench.send, one)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def repeat(self, data: Any) -> None:
        before = self.bench.core.ledger.fingerprint()
        self._do(self.bench.send, data.draw(st.sampled_from(self.delivered), label="which"))
        assert self.bench.core.ledger.fingerprint() == before, "a repeated report changed something"

    @rule(comes_back=st.sampled_from([True, True, False]))
    def die(self, comes_back: bool) -> None:
        self._do(self.bench.lose_worker)
        if comes_back and self.bench.core.ledger.worker.state is worker.State.DEAD:
            self._do(self.bench.revive)

    @precondition(lambda self: self.bench.core.ledger.worker.state is worker.State.DEAD)
    @rule()
    def come_back(self) -> None:
        self._do(self.bench.revive)

    @precondition(lambda self: len(self.jobs) > 5 and self.bench.core.ledger.engine.state is engine.State.OPEN)
    @rule()
    def drain(self) -> None:
        self._do(self.bench.send, events.Drain())

    # ---- what must hold -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once nothing goes wrong any more, everything ends: once each, and as plain decoding would have had it."""
        if hasattr(self, "bench"):
            self._do(self._heal)
            self._do(self._judge)

    def _heal(self) -> None:
        core = self.bench.core
        for one in self.mail:
            self.bench.send(one)
        if core.ledger.step is not None and self.bench.in_flight is None:
            self.bench.lose_worker("its report was lost")
        if core.ledger.worker.state is worker.State.DEAD:
            self.bench.revive()
        self.bench.run()
        if core.ledger.engine.state is engine.State.STOPPED and not core.at_rest:
            self.bench.send(events.WorkerDied(core.ledger.worker.session, "left"))
            assert core.at_rest

    def _judge(self) -> None:
        bench = self.bench
        faults = [row for one in (*self.delivered, *bench.reports) for row in getattr(one, "rows", ())]
        refused = [row for row in faults if isinstance(row, events.RowFault) and row.code != "SCRIPTED"]
        assert not refused, f"the worker refused rows: {refused}"
        for number, (prompt, max_tokens) in self.jobs.items():
            if number in bench.refused:
                assert number not in bench.ended, f"request {number} was refused and ended"
                continue
            (end,) = bench.ended[number]
            expected = bench.solo(prompt, min(max_tokens, 64 - len(prompt)))
            got = bench.tokens.get(number, [])
            assert got == expected[: len(got)], f"request {number}: {got}, expected {expected}"
            assert len(got) == end.output_len
            if end.state == "FINISHED":
                assert got == expected
            else:
                assert number in self.cancelled or end.reason in ("client_gone", "DRAIN_DEADLINE"), end
        assert bench.core.ledger.free == list(range(bench.limits.num_slots))

    def _do(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except Exception:
            if self.dump_path is not None:
                self.bench.dump(self.dump_path)  # the last one that is written is the shortest
            raise
