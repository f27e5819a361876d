"""One step, phase by phase: forward, accept, write context, commit, draft. The order is the promise.

Owns the order and the arithmetic of a step. Everything before `commit` writes to spare rows only, so a raise there
leaves every slot as it was; a raise after it costs the drafts and nothing else. A row whose logits are not finite is
left out of the commit alone. What a step wrote and did not commit is wiped. `runner.py` checks rows and reports.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..models.drafter import DSparkDrafter
from ..models.parameters import GREEDY_BELOW, Sampling
from ..models.sampling import TARGET, accept_rejection, draw, margins
from ..models.target import Qwen3Target
from ..statemachine.errors import LocalError
from .batch import Batch, Job
from .graphs import TargetRunner
from .logprobs import fill_logprobs
from .masks import masked, spans_of
from .proposer import Proposer
from .windows import Window, Windows


class Samplings:
    """Parameters of the last steps' rows as tensors: they change only when rows come and go."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.greedy = Sampling.of([], device)
        self._key: list[Any] = []
        self._made = self.greedy

    def of(self, params: list[Any]) -> Sampling:
        """One entry for each of `params`; all-greedy batches need no tensors at all."""
        if all(one.temperature < GREEDY_BELOW for one in params):
            return self.greedy
        if params != self._key:
            self._key, self._made = params, Sampling.of(params, self.device)
        return self._made


class Phases:
    """The models, the windows and the order in which a step touches them."""

    def __init__(
        self,
        target: Qwen3Target,
        drafter: DSparkDrafter | None,
        windows: Windows,
        *,
        runner: TargetRunner,
        proposer: Proposer | None,
        rejection: bool = False,
    ) -> None:
        self.target, self.drafter, self.windows = target, drafter, windows
        self.runner, self.proposer, self.rejection = runner, proposer, rejection
        self.samplings = Samplings(target.device)

    def verify(self, jobs: list[Job], staged: dict[int, Window]) -> None:
        """Forward, accept, write context and commit; a row that cannot go on has its `fault` then, and has not moved.

        Raises with nothing moved, and with nothing left of what was written.
        """
        try:
            batch = Batch(jobs, self.target.device)
            logits, features = self.runner.forward(batch)
            self.accept(batch, logits)
            if self.drafter is not None:
                self.write_context(batch, features, staged)
            after = {job.slot: self.successor(job, staged[job.slot]) for job, _ in _sound(batch)}
            for job in jobs:
                if job.fault is not None:
                    self.windows.wipe(job.slot)
        except BaseException:
            for slot in staged:
                self.windows.wipe(slot)
            raise
        self.commit(after)

    def draft(self, jobs: Sequence[Job]) -> int:
        """Draft a block for every row that keeps some of it. Returns how many got none: theirs was not finite."""
        rows = sorted((job for job in jobs if job.propose_len > 0 and job.samples), key=lambda job: job.slot)
        if not rows or self.proposer is None:
            return 0
        return self.proposer.propose(rows, self.samplings.of([job.params for job in rows]))

    # ---- accept ---------------------------------------------------------------------------------------------

    def accept(self, batch: Batch, logits: Tensor) -> None:
        """Fill each sampling job's `emitted` and `accepted_len`, or its `fault`. logits: [sampled tokens, V].

        A sum is finite iff what it adds is; it comes to the host in the transfer that brings the tokens. A chunk that
        samples nothing is judged by the one that does: that one reads all of its rows.
        """
        jobs = [job for job in batch.jobs if job.samples]
        if not jobs:
            return
        widths = [1 if job.draft_len is None else job.width for job in jobs]
        sampling = self.samplings.of([job.params for job in jobs])
        positions: Tensor | None = None
        if sampling.any_sampled or any(job.params.margins for job in jobs):
            ends = [(job.start + job.width, width) for job, width in zip(jobs, widths, strict=True)]
            flat_positions = [position for end, width in ends for position in range(end - width + 1, end + 1)]
            positions = torch.tensor(flat_positions, device=logits.device)
        finite, free = logits.sum(-1).isfinite(), masked(logits, jobs, spans_of(jobs, widths))
        if self.rejection and sampling.any_sampled and max(widths) > 1:
            self._accept_by_rejection(jobs, widths, free, finite, sampling)
        else:
            self._accept_by_equality(jobs, widths, free, finite, sampling, positions)
        if positions is not None:
            self._fill_margins(jobs, widths, free, positions)
        fill_logprobs(jobs, widths, logits)

    def _accept_by_equality(
        self,
        jobs: list[Job],
        widths: list[int],
        logits: Tensor,
        finite: Tensor,
        sampling: Sampling,
        positions: Tensor | None,
    ) -> None:
        """Greedy and coupled: a draft stands iff it equals what the target draws there."""
        if positions is None:
            drawn = logits.argmax(-1)
        else:
            noise = self._shared_noise(jobs, sampling)
            drawn = draw(logits, _spread(sampling, widths), positions, TARGET, noise=noise)
        tokens, sound = torch.stack((drawn, finite.long())).tolist()
        first = 0
        for job, width in zip(jobs, widths, strict=True):
            _take_equal(job, tokens[first : first + width])
            _judge(job, finite=all(sound[first : first + width]))
            first += width

    def _shared_noise(self, jobs: list[Job], sampling: Sampling) -> Tensor | None:
        """The noise that these rows' drafts were drawn with, if all of them have it: it is computed once a position."""
        if not sampling.any_sampled or sampling.max_top_k:
            return None
        parts = []
        for job in jobs:
            noise = self.windows.table[job.slot].noise if job.draft_len is not None else None
            if noise is None:
                return None
            parts.append(noise[: job.width])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _accept_by_rejection(
        self, jobs: list[Job], widths: list[int], logits: Tensor, finite: Tensor, sampling: Sampling
    ) -> None:
        """Rows are padded to the widest; what lies beyond a row's draft_len never counts.

        Greedy rows go by equality: what they drafted was drawn from nothing, so no distribution of it is kept.
        """
        if self.windows.probs is None:
            raise LocalError("rejection was asked for and the drafts' distributions are not kept")
        rows, widest, vocab = len(jobs), max(widths), logits.shape[-1]
        padded = logits.new_zeros(rows, widest, vocab)
        drafts = torch.zeros(rows, widest - 1, dtype=torch.int64)
        first = 0
        for index, (job, width) in enumerate(zip(jobs, widths, strict=True)):
            padded[index, :width] = logits[first : first + width]
            first += width
            if job.draft_len:
                drafts[index, : job.draft_len] = torch.tensor(job.token_ids[1:])
        probs = self.windows.probs[[job.slot for job in jobs], : widest - 1]
        draft_len = torch.tensor([job.draft_len or 0 for job in jobs], device=logits.device)
        start = torch.tensor([job.start + job.width - (job.draft_len or 0) for job in jobs], device=logits.device)
        accepted, extra = accept_rejection(
            padded, probs, drafts.to(logits.device), draft_len, sampling=sampling, positions=start
        )
        whole = torch.stack([part.all() for part in torch.split(finite, widths)]).long()
        best = padded.argmax(-1).tolist()
        for index, (length, token, sound) in enumerate(torch.stack((accepted, extra, whole), 1).tolist()):
            job = jobs[index]
            _judge(job, finite=bool(sound))
            if job.params.temperature < GREEDY_BELOW:
                _take_equal(job, best[index])
                continue
            draft = job.token_ids[1:] if job.draft_len is not None else []
            job.accepted_len, job.emitted = length, [*draft[:length], token]

    def _fill_margins(self, jobs: list[Job], widths: list[int], logits: Tensor, positions: Tensor) -> None:
        """For who asked: how near each emitted token was to another outcome."""
        first = 0
        for job, width in zip(jobs, widths, strict=True):
            if job.params.margins:
                rows = slice(first, first + len(job.emitted))
                each = Sampling.of([job.params] * len(job.emitted), logits.device)
                gap, edge = margins(logits[rows], each, positions[rows])
                job.margins = torch.minimum(gap, edge).nan_to_num(torch.inf, posinf=torch.inf).tolist()  # two masked
            first += width

    # ---- context and commit ---------------------------------------------------------------------------------

    def write_context(self, batch: Batch, features: Tensor, staged: dict[int, Window]) -> None:
        """Project features into the drafter's context for rows that will be read; those of others wait."""
        pending = self.windows.pending
        if pending is None:
            raise LocalError("there is no drafter whose context could be written")
        parts: list[Tensor] = []
        positions: list[int] = []
        slots: list[int] = []
        kept: list[int] = []
        cells: list[int] = []
        for job, first in _sound(batch):
            window = staged[job.slot]
            if self._waits(job, window):
                begin = job.slot * pending.length + window.pending_len
                kept += range(first, first + job.kept_len)
                cells += range(begin, begin + job.kept_len)
                continue
            end = job.start + job.kept_len
            self.windows.overwrite(job.slot, end)
            oldest = max(window.context_len, end - self.windows.shape.drafter_window)
            whole = features[first : first + job.kept_len]
            if window.pending_len:
                whole = torch.cat((pending.of(job.slot, window.pending_len), whole))
            parts.append(whole[oldest - window.context_len :])
            positions += range(oldest, end)
            slots += [job.slot] * (end - oldest)
        if parts:
            self.project(parts[0] if len(parts) == 1 else torch.cat(parts), positions, slots)
        if kept:
            pending.keep(features, kept, cells)

    def project(self, features: Tensor, positions: list[int], slots: list[int]) -> None:
        """features: [tokens, m*d] -> the drafter's context at `positions` of `slots`."""
        context = self.windows.context
        if self.drafter is None or context is None:
            raise LocalError("there is no drafter whose context could be written")
        packed = torch.tensor([positions, [p % context.length for p in positions], slots], device=features.device)
        keys, values = self.drafter.context(features, packed[0])
        index = context.index(packed[2], packed[1])
        for layer in range(len(keys)):
            context.write(layer, index, keys[layer], values[layer])

    def _waits(self, job: Job, window: Window) -> bool:
        """Nobody reads the context before the row drafts: its features wait, as many as there is room for."""
        pending = self.windows.pending
        return pending is not None and job.propose_len == 0 and window.pending_len + job.kept_len <= pending.limit

    def successor(self, job: Job, window: Window) -> Window:
        """The counters of `window` as the commit will set them."""
        after = Window(window.epoch)
        after.length = after.context_len = job.start + job.kept_len
        after.context_start = window.context_start
        if self._waits(job, window):  # projected later
            after.context_len = window.context_len
            after.pending_len = window.pending_len + job.kept_len
        after.params, after.free_pos = job.params, job.free_pos
        after.anchor = job.emitted[-1] if job.samples else None
        return after

    def commit(self, after: dict[int, Window]) -> None:
        """All counters at once: from here on the new rows are readable. Nothing here can fail."""
        for slot, window in after.items():
            self.windows.table[slot] = window


def _sound(batch: Batch) -> Iterator[tuple[Job, int]]:
    """The jobs that go on, each with its first flat token."""
    return ((job, first) for job, first in zip(batch.jobs, batch.firsts, strict=True) if job.fault is None)


def _judge(job: Job, *, finite: bool) -> None:
    """Rows of warm-up have no command: they read the scratch slot, which may hold anything."""
    if not finite and job.row is not None:
        job.fault = f"logits of positions {job.start}..{job.start + job.width - 1} are not finite"


def _take_equal(job: Job, tokens: list[int]) -> None:
    """Accept the drafts that equal the target's own `tokens`, as a prefix, and its token after them."""
    draft = job.token_ids[1:] if job.draft_len is not None else []
    accepted = 0
    while accepted < len(draft) and draft[accepted] == tokens[accepted]:
        accepted += 1
    job.accepted_len, job.emitted = accepted, tokens[: accepted + 1]


def _spread(sampling: Sampling, widths: list[int]) -> Sampling:
    """One entry a row -> one entry a token."""
    if not sampling.any_sampled or max(widths) == 1:
        return sampling
    rows = [index for index, width in enumerate(widths) for _ in range(width)]
    return sampling.at(torch.tensor(rows, device=sampling.seed.device))
