"""The real worker's life: load the pair, allocate the windows, warm up, then run steps.

Owns the order of start-up and what READY says; the loop around it is the wire's (`workerside.serve_worker`). Warm-up
runs ordinary phases on rows that name the scratch slot, so it cannot touch anybody's window.
"""

from importlib.metadata import version
from pathlib import Path

import structlog
import torch

from ..models.checkpoint import load_pair
from ..models.drafter import DSparkDrafter
from ..models.target import Qwen3Target
from ..scheduler.wire import messages as wire
from ..statemachine.errors import LocalError, refuse_all
from . import costs
from .blocks import BlockRunner, EagerBlocks, StaticBlocks
from .capture import CudaCapture, capture_on_cpu
from .faults import is_out_of_memory
from .graphs import EagerRunner, StaticRunner, TargetRunner
from .memory import Needs, limit_of, peak_of
from .paranoid import WatchedPhases, WatchedWindows
from .phases import Phases
from .proposer import Proposer
from .runner import Runner
from .warmup import scratch_restored, warm_up
from .windows import Shape, Windows

log = structlog.get_logger()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RUNNERS = ("eager", "static", "cuda")
_PACKAGE = __name__.split(".", maxsplit=1)[0]


class TorchBackend:
    """A `Backend` that owns models and windows. `load` and `warm` raise `Refused` for what does not fit."""

    def __init__(self) -> None:
        self._init: wire.Init | None = None
        self.target: Qwen3Target | None = None
        self.drafter: DSparkDrafter | None = None
        self.runner: Runner | None = None
        self.lost: list[str] = []
        self.warnings: list[str] = []

    def load(self, init: wire.Init) -> None:
        """Read both checkpoints and judge the settings against them."""
        self._init = init
        _judge_words(init)
        torch.set_num_threads(init.num_threads)
        dtype, device = DTYPES[init.dtype], torch.device(init.device)
        drafter = None if init.drafter is None else Path(init.drafter)
        pair = load_pair(Path(init.target), drafter, dtype=dtype, device=device)
        self.target, self.drafter = pair.target, pair.drafter
        self.warnings += pair.warnings
        self._judge_lengths(init)

    def warm(self) -> wire.Ready:
        """Allocate, run every kind of step once on the scratch slot, and say what is there."""
        init, target = self._loaded()
        shape = Shape(
            num_slots=init.num_slots,
            max_model_len=init.max_model_len,
            block_len=0 if self.drafter is None else self.drafter.block_size,
            drafter_window=self._window(init),
        )
        phases = self._fitted(init, target, shape)
        table = self._cost_table(init, phases)
        self.runner = Runner(phases, session=init.session, vocab_size=target.config.vocab_size)
        return wire.Ready(
            session=init.session,
            num_slots=shape.num_slots,
            max_model_len=shape.max_model_len,
            vocab_size=target.config.vocab_size,
            block_len=shape.block_len,
            has_confidence=self.drafter is not None and self.drafter.config.enable_confidence_head,
            eos_token_ids=list(target.config.eos_token_ids),
            lost=self.lost,
            warnings=self.warnings,
            drafter_window=0 if self.drafter is None else shape.drafter_window,
            window_bytes=phases.windows.bytes_per_slot,
            costs=table,
        )

    def _fitted(self, init: wire.Init, target: Qwen3Target, shape: Shape) -> Phases:
        """Windows and a warm worker within the limit of memory. Raises `Refused` (OUT_OF_MEMORY) for what is beyond it.

        Judged before anything is allocated, by what the widest step is measured to take where a device measures it, and
        by any allocation that fails.
        """
        needs = Needs(
            shape=shape,
            target=target.config,
            drafter=None if self.drafter is None else self.drafter.config,
            dtype=target.dtype,
            max_step_tokens=init.max_step_tokens,
            keeps_probs=init.acceptance == "rejection",
        )
        limit = limit_of(init.memory_limit_mb, target.device)
        if limit is None:
            self.warnings.append("nothing here says how much memory is free: the windows were not judged by it")
        needs.judge(limit)
        try:
            phases = self._assemble(init, target, shape)
            with peak_of(target.device) as peak:
                warm_up(phases, max_step_tokens=init.max_step_tokens)
            needs.judge(limit, measured=peak.num_bytes)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise needs.refusal(limit, why=f"; an allocation failed ({type(error).__name__})") from error
        return phases

    def _cost_table(self, init: wire.Init, phases: Phases) -> wire.CostTable | None:
        """The one that INIT brings, if it was measured on the like of this worker; else a new one, if it is wanted."""
        own = costs.fingerprint(init, version=version(_PACKAGE))
        if init.costs is not None:
            refuse_all("worker settings", costs.mismatches(init.costs.fingerprint, own))
            return init.costs
        if not init.measure_costs:
            return None
        with scratch_restored(phases.windows) as scratch:
            return costs.table(phases, scratch, max_step_tokens=init.max_step_tokens, fingerprint=own)

    def run(self, step: wire.Step) -> wire.Report:
        if self.runner is None:
            raise LocalError("a step came before READY")
        return self.runner.run(step)

    def close(self) -> None:
        """Drop models and windows; the process ends after this."""
        self.target = self.drafter = self.runner = None

    def _loaded(self) -> tuple[wire.Init, Qwen3Target]:
        if self._init is None or self.target is None:
            raise LocalError("warm() before load()")
        return self._init, self.target

    def _window(self, init: wire.Init) -> int:
        own = None if self.drafter is None else self.drafter.config.sliding_window
        # A window wider than the longest text is the whole text.
        return min(init.drafter_window or own or init.max_model_len, init.max_model_len)

    def _judge_lengths(self, init: wire.Init) -> None:
        _, target = self._loaded()
        trained, problems = target.config.max_positions, []
        if init.max_model_len > trained:
            problems.append(f"max_model_len = {init.max_model_len}: expected at most the target's {trained} positions")
        own = None if self.drafter is None else self.drafter.config.sliding_window
        if own is not None and init.drafter_window is not None and init.drafter_window != own:
            problems.append(f"drafter_window = {init.drafter_window}: expected the checkpoint's sliding window {own}")
        refuse_all("worker settings", problems)
        if self.drafter is not None and init.max_model_len > self.drafter.config.max_positions:
            self.warnings.append(
                f"max_model_len = {init.max_model_len} is longer than the drafter was trained for "
                f"({self.drafter.config.max_positions}): acceptance may fall beyond that"
            )

    def _assemble(self, init: wire.Init, target: Qwen3Target, shape: Shape) -> Phases:
        rejection, drafter = init.acceptance == "rejection", self.drafter
        windows_type, phases_type = (WatchedWindows, WatchedPhases) if init.paranoid else (Windows, Phases)
        windows = windows_type(
            shape,
            target.config,
            None if drafter is None else drafter.config,
            dtype=target.dtype,
            device=target.device,
            keeps_probs=rejection,
        )
        # Verify rows reach B beyond the last position, blocks as far again.
        target.prepare(shape.max_model_len + shape.block_len + 1, text_len=shape.max_model_len)
        if drafter is not None:
            target.set_taps(drafter.config.target_layer_ids)
            drafter.prepare(shape.max_model_len + shape.block_len + 1, text_len=shape.max_model_len)
        runner, blocks = self._runners(init, target, windows)
        proposer = None
        if drafter is not None and blocks is not None:
            proposer = Proposer(drafter, windows, blocks=blocks, rejection=rejection, confidences=init.confidences)
        return phases_type(target, drafter, windows, runner=runner, proposer=proposer, rejection=rejection)

    def _runners(
        self, init: wire.Init, target: Qwen3Target, windows: Windows
    ) -> tuple[TargetRunner, BlockRunner | None]:
        """Graphs that cannot be captured are a loss that READY names, not a silent fallback."""
        drafter, context = self.drafter, windows.context
        eager = EagerRunner(target, windows)
        blocks = None if drafter is None or context is None else EagerBlocks(drafter, windows, context)
        if init.runner == "eager":
            return eager, blocks
        capture = CudaCapture() if init.runner == "cuda" else capture_on_cpu
        try:
            with torch.inference_mode():
                runner = StaticRunner(target, windows, capture=capture, eager=eager)
                runner.capture_all()
                if drafter is None or context is None:
                    return runner, None
                static_blocks = StaticBlocks(drafter, windows, context, capture=capture)
                static_blocks.capture_all()
        except Exception as error:
            log.exception("capture_failed", runner=init.runner)
            self.lost.append(f"graphs ({type(error).__name__}: {error})")
            return eager, blocks
        return runner, static_blocks


def _judge_words(init: wire.Init) -> None:
    problems = []
    words = {
        "dtype": (init.dtype, tuple(DTYPES)),
        "acceptance": (init.acceptance, ("coupled", "rejection")),
        "runner": (init.runner, RUNNERS),
    }
    for name, (value, expected) in words.items():
        if value not in expected:
            problems.append(f"{name} = {value!r}: expected one of {', '.join(expected)}")
    if init.device.startswith("cuda") and not torch.cuda.is_available():
        problems.append(f"device = {init.device!r}: no CUDA device is here")
    if init.runner == "cuda" and not init.device.startswith("cuda"):
        problems.append(f"runner = 'cuda': expected device cuda, got {init.device!r}")
    refuse_all("worker settings", problems)
