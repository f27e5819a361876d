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
from .costs import step_clock
from .faults import RowRefused
from .phases import Phases
from .tenancies import judge_open
from .windows import Tenancy, Window, Windows

log = structlog.get_logger()
ReportRow = wire.Emitted | wire.Seeded | wire.Scrubbed | wire.RowFault


class Runner:
    """Runs commands one after another on the windows of `phases`."""

    def __init__(self, phases: Phases, *, session: int, vocab_size: int) -> None:
        self.phases, self.session, self.vocab_size = phases, session, vocab_size
        self.windows: Windows = phases.windows
        self._clock = step_clock(phases.windows.device)

    @torch.inference_mode()
    def run(self, step: wire.Step) -> wire.Report:
        """Run one command. Raises only before its commit, with every slot as it was."""
        began, cpu_began, cost_began = time.monotonic_ns(), time.thread_time_ns(), self._clock()
        jobs, staged, faults, tenancies = self._check_all(step.rows)
        details = {slot: (window.held, window.confidence) for slot, window in staged.items()}
        answers: dict[int, ReportRow] = dict(faults)
        self.windows.open(tenancies)
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
            cost_ns=self._clock() - cost_began,
            lost=lost,
        )

    def _draft(self, jobs: list[Job]) -> str | None:
        """Draft for the rows that want it. A fault here is after the commit: it costs the drafts alone."""
        try:
            self.phases.draft(jobs)
        except StepFailed:  # the worker's watch over itself (`paranoid.py`): more is wrong than a draft
            raise
        except Exception as error:
            log.exception("drafter_failed", session=self.session)
            for job in jobs:
                self.windows.table[job.slot].held = []
            return f"the drafter failed: {type(error).__name__}: {error}"
        return None

    def _check_all(
        self, rows: list[Any]
    ) -> tuple[list[Job], dict[int, Window], dict[int, wire.RowFault], list[Tenancy]]:
        """Every row against the windows as they are before the step. Changes nothing."""
        jobs: list[Job] = []
        tenancies: list[Tenancy] = []
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
                tenancy = self._tenancy_of(row)
                window = self._window_of(row) if tenancy is None else tenancy.window
                jobs.append(self._seed(row, window) if type(row) is wire.Seed else self._decode(row, window))
                staged[row.slot] = window
                tenancies += [tenancy] if tenancy is not None else []
            except RowRefused as refused:
                log.warning("row_refused", session=self.session, slot=row.slot, code=refused.code, reason=str(refused))
                faults[row.slot] = wire.RowFault(row.slot, row.epoch, refused.code, str(refused))
        return jobs, staged, faults, tenancies

    def _tenancy_of(self, row: Any) -> Tenancy | None:
        """The tenancy that the row opens, if it is a first Seed."""
        opens = row.opens if type(row) is wire.Seed else None
        return None if opens is None else judge_open(self.windows, row, opens)

    def _window_of(self, row: Any) -> Window:
        """The window that the row goes on with, of a tenancy that an earlier step opened."""
        window: Window = self.windows.table[row.slot]
        if window.epoch != row.epoch:
            raise RowRefused("EPOCH", f"slot {row.slot}: the row says epoch {row.epoch}, it has {window.epoch}")
        return window

    def _seed(self, row: wire.Seed, window: Window) -> Job:
        end = row.start_pos + len(row.token_ids)
        if row.start_pos != window.length or window.anchor is not None:
            raise RowRefused("POSITION", f"chunk at {row.start_pos}, the window holds {window.length}")
        if not row.token_ids or end > self.windows.shape.max_model_len:
            raise RowRefused("LIMIT", f"{len(row.token_ids)} tokens to position {end}")
        for token_id in row.token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise RowRefused("TOKEN", f"token id {token_id}: expected 0..{self.vocab_size - 1}")
        self._check_propose(row, window, end)
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
        self._check_propose(row, window, window.length + 1)
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

    def _check_propose(self, row: Any, window: Window, start: int) -> None:
        """start: where the block's anchor will stand, or stand at least."""
        shape = self.windows.shape
        if not 0 <= row.propose_len <= shape.block_len:
            raise RowRefused("LIMIT", f"propose_len {row.propose_len}: expected 0..{shape.block_len}")
        first = max(0, start - shape.drafter_window)
        if row.propose_len > 0 and first < window.context_start:
            raise RowRefused(
                "CONTEXT",
                f"a draft at {start} reads context from {first} on, the ring has it from {window.context_start}",
            )

    def _held_confidence(self, slot: int) -> list[float] | None:
        """Of the draft that the slot holds now, for a scheduler that decides by it; absent with the draft."""
        proposer, window = self.phases.proposer, self.windows.table[slot]
        return window.confidence if proposer is not None and proposer.confidences and window.held else None

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
            held_confidence_logits=self._held_confidence(job.slot),
        )
