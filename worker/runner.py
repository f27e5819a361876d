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
from .faults import RowRefused, is_out_of_memory
from .masks import free_pos
from .phases import Phases
from .tenancies import judge_open
from .windows import Tenancy, Window, Windows

log = structlog.get_logger()
ReportRow = wire.Emitted | wire.Seeded | wire.Scrubbed | wire.RowFault
Detail = tuple[list[int], list[float] | None]


class Runner:
    """Runs commands one after another on the windows of `phases`."""

    def __init__(self, phases: Phases, *, session: int, vocab_size: int) -> None:
        self.phases, self.session, self.vocab_size = phases, session, vocab_size
        self.windows: Windows = phases.windows
        self._clock = step_clock(phases.windows.device)
        self._broken: StepFailed | None = None

    @torch.inference_mode()
    def run(self, step: wire.Step) -> wire.Report:
        """Run one command. Raises only before its commit, with every slot as it was."""
        if self._broken is not None:
            raise self._broken
        began, cpu_began, cost_began = time.monotonic_ns(), time.thread_time_ns(), self._clock()
        uncaptured = self.phases.runner.num_uncaptured
        jobs, staged, faults, tenancies = self._check_all(step.rows)
        details = {slot: (window.held, window.confidence) for slot, window in staged.items()}
        answers: dict[int, ReportRow] = dict(faults)
        self._verify(jobs, staged, tenancies, scrubs=[row.slot for row in step.rows if type(row) is wire.Scrub])
        answers |= {row.slot: wire.Scrubbed(row.slot) for row in step.rows if type(row) is wire.Scrub}
        answers |= {job.slot: self._faulted(job) for job in jobs if job.fault is not None}
        jobs = [job for job in jobs if job.fault is None]
        drafting = time.monotonic_ns()
        drafts_lost, lost = self._draft(jobs)
        ended = time.monotonic_ns()
        found, report_lost = self._answers(jobs, details)
        answers |= found
        return wire.Report(
            session=self.session,
            step_id=step.step_id,
            rows=[answers[row.slot] for row in step.rows],
            target_ns=drafting - began,
            draft_ns=ended - drafting,
            cpu_ns=time.thread_time_ns() - cpu_began,
            cost_ns=self._clock() - cost_began,
            lost=lost or report_lost,
            drafts_lost=drafts_lost,
            passes_uncaptured=self.phases.runner.num_uncaptured - uncaptured,
        )

    def _verify(
        self, jobs: list[Job], staged: dict[int, Window], tenancies: list[Tenancy], *, scrubs: list[int]
    ) -> None:
        """All that may fail and move nothing. A scrubbed slot is nobody's: it may go whatever becomes of the step."""
        try:
            self.windows.open(tenancies)
            for slot in scrubs:
                self.windows.scrub(slot)
            if jobs:
                self.phases.verify(jobs, staged)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self.windows.device.type == "cuda":
                torch.cuda.empty_cache()  # what is cached in other sizes may be all that the next, smaller step needs
            raise StepFailed("OUT_OF_MEMORY", f"{type(error).__name__}: {error}") from error

    # ---- after the commit: a raise costs the drafts alone -------------------------------------------------------

    def _draft(self, jobs: list[Job]) -> tuple[int, str | None]:
        """Draft for the rows that want it. Returns how many drafts were not finite, and what failed altogether."""
        try:
            return self.phases.draft(jobs), None
        except StepFailed:  # the worker's watch over itself (`paranoid.py`): more is wrong than a draft
            raise
        except Exception as error:
            log.exception("drafter_failed", session=self.session)
            self._drop_drafts(jobs)
            return 0, f"the drafter failed: {type(error).__name__}: {error}"

    def _answers(self, jobs: list[Job], details: dict[int, Detail]) -> tuple[dict[int, ReportRow], str | None]:
        """What was committed is told, come what may: without details and drafts if those cannot be told."""
        try:
            return {job.slot: self.answer(job, details[job.slot]) for job in jobs}, None
        except Exception as error:
            log.exception("report_failed", session=self.session)
            self._drop_drafts(jobs)
            return {job.slot: _plain_answer(job) for job in jobs}, f"a report failed: {type(error).__name__}: {error}"

    def _drop_drafts(self, jobs: list[Job]) -> None:
        """A worker that cannot even do this has committed what it does not tell: it runs no further step."""
        self._broken = StepFailed("BROKEN", "a step failed after its commit and could not be brought to an end")
        for job in jobs:
            window = self.windows.table[job.slot]
            window.held, window.confidence, window.noise = [], None, None
            self.windows.wipe(job.slot)
        self._broken = None

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
        for token_id in (*row.token_ids, *row.params.masked_token_ids):
            if not 0 <= token_id < self.vocab_size:
                raise RowRefused("TOKEN", f"token id {token_id}: expected 0..{self.vocab_size - 1}")
        if not 0 <= row.output_len <= end:
            raise RowRefused("LIMIT", f"output_len {row.output_len} of a text of {end}")
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
            free_pos=free_pos(row.params, text_len=end, output_len=row.output_len) if row.last else 0,
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
            free_pos=window.free_pos,
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

    def answer(self, job: Job, before: Detail) -> ReportRow:
        """The row's report. before: the draft that it verified, with its confidences."""
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
            logprobs=job.logprobs,
            top_token_ids=job.top_token_ids,
            top_logprobs=job.top_logprobs,
            held_confidence_logits=self._held_confidence(job.slot),
        )

    def _faulted(self, job: Job) -> wire.RowFault:
        log.warning("row_faulted", session=self.session, slot=job.slot, code="NON_FINITE", reason=job.fault)
        return wire.RowFault(job.slot, job.row.epoch, "NON_FINITE", job.fault or "")


def _plain_answer(job: Job) -> ReportRow:
    if not job.samples:
        return wire.Seeded(job.slot, job.row.epoch)
    return wire.Emitted(job.slot, job.row.epoch, job.emitted, job.accepted_len, 0)
