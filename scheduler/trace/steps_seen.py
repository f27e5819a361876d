"""Every step of a replayed run as columns of numbers, and how long users waited: the charts of the report.

Owns the columns; reads a replay as it goes by. A step runs from the Tick that sent its command to the one after its
report, as inputs carry no time of their own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...statemachine.errors import Refused
from ..core import events, results
from ..core.handle import Core
from .columns import packed


class StepColumns:
    def __init__(self) -> None:
        self.begin: list[float] = []
        self.took: list[float] = []  # hundredths of a ms
        self.rows: list[int] = []
        self.chunk: list[int] = []
        self.verified: list[int] = []
        self.emitted: list[int] = []
        self.decodes: list[int] = []
        self.queue: list[int] = []
        self.first = 0
        self.first_ms: list[float] = []
        self.gaps_ms: list[float] = []
        self.latency_ms: list[float] = []  # of finished requests, to their last token
        self._sent: tuple[results.Command, float] | None = None
        self._report: events.Report | None = None
        self._asked: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._early: list[int] = []
        self._told: list[results.Tokens | results.Ended] = []

    def tick(self, now_ns: int, core: Core) -> None:
        """A Tick is about to be handled: what came before it has happened by now."""
        now = now_ns / 1e6
        for request in self._early:
            self._asked[request] = now
        self._early.clear()
        for told in self._told:
            self._hear(told, now)
        self._told.clear()
        if self._report is not None and self._sent is not None:
            self._add(*self._sent, self._report, now, queue_len=len(core.ledger.queue))
            self._sent = self._report = None

    def take(self, now_ns: int, one: events.Input, outputs: Sequence[results.Output]) -> None:
        if type(one) is events.Submit:
            self._early.append(one.request)
        elif type(one) is events.Report and self._sent is not None and one.step_id == self._sent[0].step_id:
            self._report = one
        for output in outputs:
            if type(output) is results.Command:
                self.first = self.first or output.step_id
                self._sent = (output, now_ns / 1e6)
            elif type(output) is results.Tokens or type(output) is results.Ended:
                self._told.append(output)

    def refuse_none(self, path: Path) -> None:
        if not self.begin:
            raise Refused("BAD_FILE", f"{path}: expected a trace with at least one step")

    def columns(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "begin": packed("f64", self.begin),
            "took": packed("u32", self.took),
            **{name: packed("u16", getattr(self, name)) for name in _COUNTS},
        }

    def _add(self, command: results.Command, sent: float, report: events.Report, now: float, *, queue_len: int) -> None:
        decodes = [row for row in command.rows if type(row) is events.Decode]
        self.begin.append(sent)
        self.took.append((now - sent) * 100)
        self.rows.append(len(command.rows))
        self.chunk.append(sum(len(row.token_ids) for row in command.rows if type(row) is events.Seed))
        self.verified.append(sum(row.draft_len for row in decodes))
        self.emitted.append(sum(len(row.token_ids) for row in report.rows if type(row) is events.Emitted))
        self.decodes.append(len(decodes))
        self.queue.append(queue_len)

    def _hear(self, told: results.Tokens | results.Ended, now: float) -> None:
        if type(told) is results.Ended:
            asked = self._asked.pop(told.request, None)
            self._heard.pop(told.request, None)
            if asked is not None and told.state == "FINISHED":
                self.latency_ms.append(now - asked)
            return
        count = len(told.token_ids)  # type: ignore[union-attr]
        last = self._heard.get(told.request)
        if told.index == 0 and told.request in self._asked:  # type: ignore[union-attr]
            self.first_ms.append(now - self._asked[told.request])
        elif last is not None:
            self.gaps_ms += [(now - last) / count] * count
        self._heard[told.request] = now


_COUNTS = ("rows", "chunk", "verified", "emitted", "decodes", "queue")
