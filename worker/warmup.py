"""Warm-up: the widest steps that commands can ask for, run on rows that name the scratch slot.

Owns which steps those are. They go through the ordinary phases; the scratch slot has neither epoch nor tenant, so they
cannot touch anybody's window, and its counters are restored whatever happens. `backend.py` calls `warm_up`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..scheduler.wire import messages as wire
from .batch import Job
from .phases import Phases
from .windows import Window, Windows

# Greedy rows draw without noise, others with it, filtered ones sort besides: the paths that differ in memory.
KINDS = (wire.Params(), wire.Params(temperature=1.0), wire.Params(temperature=1.0, top_p=0.5))


@contextmanager
def scratch_restored(windows: Windows) -> Iterator[int]:
    """Lend the scratch slot; whatever happens, its counters are as before afterwards."""
    scratch = windows.shape.scratch
    before = windows.table[scratch]
    try:
        yield scratch
    finally:
        windows.table[scratch] = before


@torch.inference_mode()
def warm_up(phases: Phases, *, max_step_tokens: int) -> None:
    """The widest chunk; then, for each kind of sampling, every slot's widest pass and block; then anchors alone.

    All at the end of a full window, where attention is longest.
    """
    shape, samplings = phases.windows.shape, phases.samplings
    end, rows = shape.max_model_len, shape.num_slots
    draft_len = min(shape.block_len, max(max_step_tokens, rows) // rows - 1)
    width, start = min(max_step_tokens, end), max(0, end - draft_len - 1)
    with scratch_restored(phases.windows) as scratch:
        phases.samplings = type(samplings)(samplings.device)
        try:
            _step(phases, [_job(scratch, end - width, width, draft_len=None, propose_len=shape.block_len)])
            for params in KINDS:
                options: dict[str, Any] = {"draft_len": draft_len, "propose_len": shape.block_len, "params": params}
                _step(phases, [_job(scratch, start, draft_len + 1, **options) for _ in range(rows)])
            _step(phases, [_job(scratch, end - 1, 1, draft_len=0) for _ in range(rows)])
        finally:
            phases.samplings = samplings


def _step(phases: Phases, jobs: list[Job]) -> None:
    """One step of rows that all stand at the same place of the same window."""
    window = Window()
    window.length = window.context_len = jobs[0].start
    phases.verify(jobs, {jobs[0].slot: window})
    phases.draft(jobs)


def _job(
    slot: int,
    start: int,
    width: int,
    *,
    draft_len: int | None,
    propose_len: int = 0,
    params: wire.Params = KINDS[0],
) -> Job:
    return Job(
        slot=slot,
        row=None,
        start=start,
        token_ids=[0] * width,
        samples=True,
        draft_len=draft_len,
        propose_len=propose_len,
        params=params,
    )
