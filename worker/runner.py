"""RunStep -> phases -> Report: the checks on entry, atomicity, and what becomes of a fault.

Owns the judgement of a command against the windows; never the arithmetic (`phases.py`). A row that does not fit is
answered with a typed fault and touches nothing; the others go on. `backend.py` calls `run`.
"""

import time
from typing import Any

import structlog
import torch

from ..scheduler.wire import messages as wire
from ..scheduler.wire.workerside import StepFailed
from .batch import Job
from .faults import RowRefused
from .phases import Phases
from .windows import Window, Windows

log = structlog.get_logger()
ReportRow = wire.Emitted | wire.Seeded | wire.Scrubbed | wire.RowFault


class Runner:
    """Runs commands one after another on the windows of `phases`."""

    def __init__(self, phases: Phases, *, session: int, vocab_size: int) -> None:
        self.phases, self.session, self.vocab_size = phases, session, vocab_size
        self.windows: Windows = phases.windows

    @torch.inference_mode()
    def run(self, step: wire.Step) -> wire.Report:
        """Run one command. Raises only before its commit, with every slot as it was."""
        began, cpu_began = time.monotonic_ns(), time.thread_time_ns()
        jobs, staged, faults = self._check_all(step.rows)
        details = {slot: (window.held, window.confidence) for slot, window in staged.items()}
        answers: dict[int, ReportRow] = dict(faults)
        if jobs:
            self.phases.verify(jobs, staged)
        for row in step.rows:
            if type(row) is wire.Scrub:
                self.windows.scrub(row.slot)
                answers[row.slot] = wire.Scrubbed(row.slot)
        drafting = time.monotonic_ns()
        lost = self._draft(jobs)
        ended = time.monotonic_ns()
        answers |= {job.slot: self._answer(job, details[job.slot]) for job in jobs}
        return wire.Report(
            session=self.session,
            step_id=step.step_id,
            rows=[answers[row.slot] for row in step.rows],
            target_ns=drafting - began,
            draft_ns=ended - drafting,
            cpu_ns=time.thread_time_ns() - cpu_began,
            lost=lost,
        )

    def _draft(self, jobs: list[Job]) -> str | None:
        """Draft for the rows that want it. A fault here is after the commit: it costs the drafts alone."""
        try:
            self.phases.draft(jobs)
        except Exception as error:
            log.exception("drafter_failed", session=self.session)
            for job in jobs:
                self.windows.table[job.slot].held = []
            return f"the drafter failed: {type(error).__name__}: {error}"
        return None

    def _check_all(self, rows: list[Any]) -> tuple[list[Job], dict[int, Window], dict[int, wire.RowFault]]:
        jobs: list[Job] = []
        staged: dict[int, Window] = {}
        faults: dict[int, wire.RowFault] = {}
        named = [row.slot for row in rows]
        if len(set(named)) < len(named) or not all(0 <= slot < self.windows.shape.num_slots for slot in named):
            raise StepFailed(
                "BAD_COMMAND", f"a command names slots {named}: each at most once, of {self.windows.shape.num_slots}"
            )
        for row in rows:
            if type(row) is wire.Scrub:
                continue
            try:
                window = self._window_of(row)
                jobs.append(self._seed(row, window) if type(row) is wire.Seed else self._decode(row, window))
                staged[row.slot] = window
            except RowRefused as refused:
                log.warning("row_refused", session=self.session, slot=row.slot, code=refused.code, reason=str(refused))
                faults[row.slot] = wire.RowFault(row.slot, row.epoch, refused.code, str(refused))
        return jobs, staged, faults

    def _window_of(self, row: Any) -> Window:
        """The window that the row goes on with; a new one, not yet in the table, when the row opens its tenancy."""
        opens = row.opens if type(row) is wire.Seed else None
        if opens is None:
            window: Window = self.windows.table[row.slot]
            if window.epoch != row.epoch:
                raise RowRefused("EPOCH", f"slot {row.slot}: the row says epoch {row.epoch}, it has {window.epoch}")
            return window
        if opens.source_slot is not None or opens.keep_len:
            raise RowRefused("OPEN", f"slot {row.slot}: this worker keeps no content from one tenancy to the next")
        return Window(row.epoch)

    def _seed(self, row: wire.Seed, window: Window) -> Job:
        end = row.start_pos + len(row.token_ids)
        if row.start_pos != window.length or window.anchor is not None:
            raise RowRefused("POSITION", f"chunk at {row.start_pos}, the window holds {window.length}")
        if not row.token_ids or end > self.windows.shape.max_model_len:
            raise RowRefused("LIMIT", f"{len(row.token_ids)} tokens to position {end}")
        for token_id in row.token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise RowRefused("TOKEN", f"token id {token_id}: expected 0..{self.vocab_size - 1}")
        self._check_propose(row)
        return Job(
            slot=row.slot,
            row=row,
            start=row.start_pos,
            token_ids=row.token_ids,
            samples=row.last,
            draft_len=None,
            propose_len=row.propose_len,
            params=row.params,
        )

    def _decode(self, row: wire.Decode, window: Window) -> Job:
        if window.anchor is None:
            raise RowRefused("POSITION", f"slot {row.slot} has no anchor: its prompt is not seeded to the end")
        if not 0 <= row.draft_len <= len(window.held):
            raise RowRefused("HELD", f"draft_len {row.draft_len}, the slot holds {len(window.held)}")
        if window.length + row.draft_len + 1 > self.windows.shape.max_model_len:
            raise RowRefused(
                "LIMIT", f"draft_len {row.draft_len} at {window.length} of {self.windows.shape.max_model_len}"
            )
        self._check_propose(row)
        return Job(
            slot=row.slot,
            row=row,
            start=window.length,
            token_ids=[window.anchor, *window.held[: row.draft_len]],
            samples=True,
            draft_len=row.draft_len,
            propose_len=row.propose_len,
            params=window.params,
        )

    def _check_propose(self, row: Any) -> None:
        if not 0 <= row.propose_len <= self.windows.shape.block_len:
            raise RowRefused("LIMIT", f"propose_len {row.propose_len}: expected 0..{self.windows.shape.block_len}")

    def _answer(self, job: Job, before: tuple[list[int], list[float] | None]) -> ReportRow:
        if not job.samples:
            return wire.Seeded(job.slot, job.row.epoch)
        held, confidence = before
        detailed = job.params.passes and job.draft_len is not None
        return wire.Emitted(
            slot=job.slot,
            epoch=job.row.epoch,
            token_ids=job.emitted,
            accepted_len=job.accepted_len,
            held_len=len(self.windows.table[job.slot].held),
            draft_token_ids=held[: job.draft_len] if detailed else None,
            confidence_logits=confidence[: job.draft_len] if detailed and confidence is not None else None,
            margins=job.margins,
        )
