"""What metrics are made of: what the core counts anyway, and the times and rows that only the loop sees.

Owns the watching of turns and the readings, immutable snapshots that other threads may look at; never a socket, and
nothing here decides. `loop.py` calls `took`, `obeyed` and `end_turn`; `metrics_server.py` asks for readings.
"""

import queue
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..core import events, results
from ..core.handle import Core
from .clients import ClientEdge
from .distribution import Distribution
from .workers import WorkerEdge

SUMS = ("seed_rows", "decode_rows", "scrub_rows", "seed_tokens", "draft_tokens", "prefix_hits")
STEP_BOUNDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
TURN_BOUNDS = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)
FIRST_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
GAP_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


@attrs.frozen
class Reading:
    """One moment between two turns. `stats` are those of the core, `sums` and `ended` those of the loop."""

    taken_ns: int
    stats: Mapping[str, Any]
    healthy: bool
    fired: Sequence[Sequence[int]]  # by machine, by row of its table
    sums: Mapping[str, int]
    ended: Mapping[tuple[str, str], int]  # by (state, reason)
    distributions: Mapping[str, Distribution]
    worker_times: Mapping[str, int]
    refused_at_door: Mapping[str, int]  # by code: what never reached the core
    dropped: Mapping[str, int]  # frames, by edge
    early_len: int


class Metrics:
    """Watches one loop. Only `ask` may be called from other threads."""

    def __init__(self, core: Core, clients: ClientEdge, worker: WorkerEdge) -> None:
        self._core, self._clients, self._worker = core, clients, worker
        self._taken: list[tuple[events.Input, list[results.Output]]] = []
        self._asked: deque[queue.SimpleQueue[Reading]] = deque()  # appending and popping need no lock
        self._arrived_ns: dict[int, int] = {}  # of accepted requests that were told nothing yet
        self._told_ns: dict[int, int] = {}  # when a request was told its newest tokens, if not by the last step that
        self._last_told: list[int] = []  # told these requests something,
        self._last_told_ns = 0  # at this time
        self._sent_ns = self._flown_ns = 0  # when the step in flight left, and the one that has come back
        self._sums = dict.fromkeys(SUMS, 0)
        self._ended: Counter[tuple[str, str]] = Counter()
        self._step = Distribution(STEP_BOUNDS)
        self._command, self._turn = Distribution(TURN_BOUNDS), Distribution(TURN_BOUNDS)
        self._first, self._gap = Distribution(FIRST_BOUNDS), Distribution(GAP_BOUNDS)
        self._closed = False
        self.newest = self._read()

    # ---- for the loop -------------------------------------------------------------------------------------------

    def took(self, event: events.Input, outputs: list[results.Output]) -> None:
        """The core has handled `event`. It is looked at when the worker has its command."""
        self._taken.append((event, outputs))
        if type(event) is events.Report and self._core.ledger.step is None:
            self._flown_ns, self._sent_ns = self._sent_ns, 0

    def obeyed(self, began_ns: int) -> None:
        """What the turn has for the worker is sent; `began_ns` is when its poll returned."""
        outputs = self._taken[-1][1]  # of the turn's last event, which is its Tick
        if outputs and type(outputs[-1]) is results.Command:
            self._sent_ns = time.monotonic_ns()
            self._command.add((self._sent_ns - began_ns) / 1e9)

    def end_turn(self, began_ns: int) -> None:
        """Count what the turn took, and hand a reading to who asked for one."""
        if self._flown_ns:
            self._step.add((began_ns - self._flown_ns) / 1e9)
            self._turn.add((time.monotonic_ns() - began_ns) / 1e9)
            self._flown_ns = 0
        for event, outputs in self._taken:
            if outputs and type(event) is not events.Resume:  # it repeats what was counted
                self._count(outputs, began_ns)
        self._taken.clear()
        if self._asked:
            self.newest = self._read()
            self._hand_out()

    def close(self) -> None:
        """Nobody ends a turn any more, perhaps because the core broke: who asks gets the last reading at once."""
        self._closed = True
        self._hand_out()

    # ---- for other threads --------------------------------------------------------------------------------------

    def ask(self) -> "queue.SimpleQueue[Reading]":
        """Return where the reading of the next turn's end will be. The loop sleeps until somebody wakes it."""
        place: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._asked.append(place)
        if self._closed:
            place.put(self.newest)
        return place

    # ---- counting -----------------------------------------------------------------------------------------------

    def _count(self, outputs: Sequence[results.Output], now_ns: int) -> None:
        tokens = [output for output in outputs if type(output) is results.Tokens]
        if tokens:
            self._count_tokens(tokens, now_ns)
        if len(tokens) == len(outputs):
            return
        for output in outputs:
            if type(output) is results.Command:
                self._count_rows(output.rows)
            elif type(output) is results.Accepted:
                self._arrive(output.request, now_ns)
            elif type(output) is results.Ended:
                self._ended[output.state, output.reason] += 1
                self._arrived_ns.pop(output.request, None)
                self._write_back()
                self._told_ns.pop(output.request, None)

    def _count_tokens(self, tokens: Sequence[results.Tokens], now_ns: int) -> None:
        """Mostly the rows of a step are those of the step before: then one time serves them all."""
        told = [output.request for output in tokens]
        lens = [len(output.token_ids) for output in tokens]
        if told == self._last_told:
            since_ns = now_ns - self._last_told_ns
            for num_tokens in set(lens):
                self._gap.add(since_ns / num_tokens / 1e9, lens.count(num_tokens) * num_tokens)
        else:
            self._write_back()
            for request, num_tokens in zip(told, lens, strict=True):
                last_ns = self._told_ns.get(request)
                if last_ns is not None:
                    self._gap.add((now_ns - last_ns) / num_tokens / 1e9, num_tokens)
                elif request in self._arrived_ns:  # else an earlier process told its first token
                    self._first.add((now_ns - self._arrived_ns.pop(request)) / 1e9)
        self._last_told, self._last_told_ns = told, now_ns

    def _write_back(self) -> None:
        """Note for each request of the last step when it was told."""
        for request in self._last_told:
            self._told_ns[request] = self._last_told_ns
        self._last_told = []

    def _arrive(self, request: int, now_ns: int) -> None:
        """From when the client waits: a request may have waited for the first READY before the core heard of it."""
        record = self._clients.translate.records.get(request)
        self._arrived_ns[request] = now_ns if record is None else record.arrived_ns

    def _count_rows(self, rows: Sequence[events.CommandRow]) -> None:
        """Decode rows come first in a command, chunks behind them; scrubs are alone."""
        sums, num_decode = self._sums, len(rows)
        for row in reversed(rows):
            if type(row) is events.Decode:
                break
            num_decode -= 1
            if type(row) is events.Scrub:
                sums["scrub_rows"] += 1
                continue
            seed: Any = row
            opens: events.Open | None = seed.opens
            sums["seed_rows"] += 1
            sums["seed_tokens"] += len(seed.token_ids)
            sums["prefix_hits"] += int(opens is not None and opens.keep_len > 0)
        decode: Any = rows if num_decode == len(rows) else rows[:num_decode]
        sums["decode_rows"] += num_decode
        sums["draft_tokens"] += sum([row.draft_len for row in decode])

    # ---- readings -----------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while self._asked:
            self._asked.popleft().put(self.newest)

    def _read(self) -> Reading:
        return Reading(
            taken_ns=time.monotonic_ns(),
            stats=self._core.stats(),
            healthy=self._core.health()[0],
            fired=[counts.copy() for counts in self._core.fired],
            sums=self._sums.copy(),
            ended=self._ended.copy(),
            distributions={
                "step": self._step.copy(),
                "command": self._command.copy(),
                "turn": self._turn.copy(),
                "first": self._first.copy(),
                "gap": self._gap.copy(),
            },
            worker_times=self._worker.times.copy(),
            refused_at_door=self._clients.refused.copy(),
            dropped={"client": self._clients.drops.count, "worker": self._worker.drops.count},
            early_len=len(self._clients.early),
        )
