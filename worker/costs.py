"""Measures what a step costs, while the worker warms up: the real phases, rows that name the scratch slot.

Owns the grid and the clock; leaves no trace (the scratch slot's counters are restored by the caller). `backend.py`
calls `table`; what the numbers mean is the scheduler's affair (`scheduler/core/costs.py`).
"""

import hashlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..models.drafter import DSparkDrafter
from ..scheduler.wire import messages as wire
from .batch import Job
from .buckets import steps
from .phases import Phases
from .windows import Window

ROUNDS = 5  # each point's time is the median of as many as fit into the budget, one at least
BUDGET_NS = 300_000_000
CONTEXT_LEN = 256  # or half a window, when that is less
KEPT_LEN = 2  # positions that a pass leaves for the drafter's context: an anchor and a draft that stood


@torch.inference_mode()
def measure(phases: Phases, scratch: int, *, max_step_tokens: int) -> tuple[int, dict[tuple[int, int], int]]:
    """Return (context_len, times in ns by (rows, width)); width 0 stands for the drafter's block."""
    shape = phases.windows.shape
    context_len = max(0, min(CONTEXT_LEN, shape.max_model_len // 2) - shape.block_len - 1)
    room = max(max_step_tokens, shape.num_slots)
    grid = [(rows, width) for rows in steps(shape.num_slots) for width in steps(shape.block_len + 1)]
    points = [(rows, width) for rows, width in grid if rows * width <= room]
    if phases.proposer is not None:
        points += [(rows, 0) for rows in steps(shape.num_slots)]
    times: dict[tuple[int, int], list[int]] = {point: [] for point in points}
    began, clock = time.monotonic_ns(), step_clock(phases.windows.device)
    for turn in range(ROUNDS + 1):
        for rows, width in points:  # in turns, so that a slow moment of the machine touches one round of each
            prepare = _block if width == 0 else _pass
            spent = _timed(prepare(phases, scratch, rows=rows, width=width, context_len=context_len), clock)
            if turn > 0:  # the first round only warms
                times[rows, width].append(spent)
        if turn > 0 and time.monotonic_ns() - began > BUDGET_NS:
            break
    return context_len, {point: max(1, int(statistics.median(each))) for point, each in times.items()}


def table(phases: Phases, scratch: int, *, max_step_tokens: int, fingerprint: dict[str, str]) -> wire.CostTable:
    """Measure, and lay the times out for READY. Widths that a full house cannot have repeat the widest it can."""
    context_len, times = measure(phases, scratch, max_step_tokens=max_step_tokens)
    rows = sorted({point[0] for point in times})
    widths = sorted({point[1] for point in times} - {0})
    target_ns = []
    for count in rows:
        known = [times[count, width] for width in widths if (count, width) in times]
        target_ns.append(known + [known[-1]] * (len(widths) - len(known)))
    drafts = [times[count, 0] for count in rows] if (rows[0], 0) in times else []
    return wire.CostTable(
        fingerprint=fingerprint,
        context_len=context_len,
        rows=rows,
        widths=widths,
        target_ns=target_ns,
        draft_ns=drafts,
    )


def fingerprint(init: wire.Init, *, version: str) -> dict[str, str]:
    """What the times depend on: the shapes of the models, the device and how it is used."""
    device = torch.device(init.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "target": _shape_of(Path(init.target)),
        "drafter": "none" if init.drafter is None else _shape_of(Path(init.drafter)),
        "device": f"{name}, {init.num_threads} thread(s), runner {init.runner}",
        "dtype": init.dtype,
        "dsparkd": version,
    }


def mismatches(given: dict[str, str], own: dict[str, str]) -> list[str]:
    """Say where a table was measured elsewhere, with both values."""
    return [
        f"cost table's {key} = {given.get(key)!r}: expected this worker's {own.get(key)!r}"
        for key in sorted({*given, *own})
        if given.get(key) != own.get(key)
    ]


def _timed(run: Callable[[], None], clock: Callable[[], int]) -> int:
    began = clock()
    run()  # ends with token ids on the host, so the device is done
    return clock() - began


def step_clock(device: torch.device) -> Callable[[], int]:
    """One thread on the CPU does all the work: its own time leaves out what others do on a shared machine."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time_ns if alone else time.monotonic_ns


def _pass(phases: Phases, scratch: int, *, rows: int, width: int, context_len: int) -> Callable[[], None]:
    """A verify pass without a block, over a window of nothing but zeros."""
    window = Window()
    window.length = window.context_len = context_len
    jobs = [_job(scratch, context_len, width) for _ in range(rows)]
    return lambda: phases.verify(jobs, {scratch: window})


def _block(phases: Phases, scratch: int, *, rows: int, width: int, context_len: int) -> Callable[[], None]:
    """A block for each row, and the context of the positions that its pass committed."""
    window = Window()
    window.length = window.context_len = context_len
    window.anchor = 0
    phases.windows.table[scratch] = window
    jobs = [_job(scratch, context_len, width + 1, propose_len=phases.windows.shape.block_len) for _ in range(rows)]
    first = max(0, context_len - KEPT_LEN)
    positions = list(range(first, context_len)) * rows
    features = _features(phases.drafter, len(positions))

    def run() -> None:
        if positions:
            phases.project(features, positions, [scratch] * len(positions))
        phases.draft(jobs)

    return run


def _features(drafter: DSparkDrafter | None, count: int) -> torch.Tensor:
    if drafter is None:
        return torch.empty(0)
    return torch.zeros(count, drafter.config.feature_len, dtype=drafter.dtype, device=drafter.device)


def _job(scratch: int, start: int, width: int, *, propose_len: int = 0) -> Job:
    return Job(
        slot=scratch,
        row=None,
        start=start,
        token_ids=[0] * width,
        samples=True,
        draft_len=width - 1,
        propose_len=propose_len,
        params=wire.Params(),
    )


def _shape_of(folder: Path) -> str:
    """A digest of the configuration: of what the weights' shapes follow from, not of the weights."""
    return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()[:16]


def _cpu_name() -> str:
    """The processor's name as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "cpu"
