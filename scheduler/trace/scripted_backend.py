"""The scripted model as a worker process: a `Backend` for `wire/workerside.serve_worker`.

Owns the reading of `scripted:...` targets and wire rows of reports; the model is in `scripted.py`. `__main__ worker`
chooses it when the target's name is `scripted` or begins with `scripted:`.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from ...statemachine.errors import refuse_all
from ..core import events
from ..wire import messages as wire
from ..wire.workerside import StepFailed
from .scripted import Faults, ScriptedFault, ScriptedModel

NAME = "scripted"


@attrs.frozen(kw_only=True)
class ScriptedTarget:
    """What a `scripted:key=value,...` target says. Steps are counted from 1; 0 means never."""

    mean: float | None = None
    vocab: int = 1000
    block: int = 7
    seed: int = 0
    stop: int | None = None  # the eos token id that READY reports
    step_us: int = 0  # how long a step takes
    draft_stop: int = 0  # 1: the drafter always proposes `stop`
    gate: str = ""  # loading waits until this file exists
    fail_load: int = 0  # 1: loading fails
    exit_at: int = 0  # SIGKILL itself when this step comes
    hang_at: int = 0  # never answer this step
    fault_at: int = 0  # this step fails as a whole


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "mean": (float, "a number"),
    "vocab": (int, "an integer"),
    "block": (int, "an integer"),
    "seed": (int, "an integer"),
    "stop": (int, "an integer"),
    "step_us": (int, "an integer"),
    "draft_stop": (int, "0 or 1"),
    "gate": (str, "a path"),
    "fail_load": (int, "0 or 1"),
    "exit_at": (int, "a step number"),
    "hang_at": (int, "a step number"),
    "fault_at": (int, "a step number"),
}


def is_scripted(target: str) -> bool:
    return target == NAME or target.startswith(NAME + ":")


def parse_target(text: str) -> ScriptedTarget:
    """Read `scripted` or `scripted:mean=3.2,vocab=1000,...`; every problem in one `Refused` (BAD_CONFIG)."""
    values: dict[str, Any] = {}
    problems = []
    for part in filter(None, text.removeprefix(NAME).removeprefix(":").split(",")):
        key, _, value = part.partition("=")
        if key not in _READERS:
            problems.append(f"{key!r}: unknown, expected one of {', '.join(_READERS)}")
            continue
        read, expected = _READERS[key]
        try:
            values[key] = read(value)
        except ValueError:
            problems.append(f"{key} = {value!r}: expected {expected}")
    least = {"vocab": 2, "block": 0, "mean": 1, "stop": 0}
    for key, value in values.items():
        if type(value) is not str and not value >= least.get(key, 0):
            problems.append(f"{key} = {value}: expected {least.get(key, 0)} or more")
    refuse_all(f"target {text!r}", problems)
    return ScriptedTarget(**values)


class ScriptedBackend:
    """A `Backend`. `model`, when given, replaces the one that Init would make (tests script it directly)."""

    def __init__(self, model: ScriptedModel | None = None) -> None:
        self._given = model
        self._target = ScriptedTarget()
        self._init: wire.Init | None = None
        self.model: ScriptedModel | None = model

    def load(self, init: wire.Init) -> None:
        """Build the model; `drafter` None means a block of 0."""
        self._init = init
        self._target = target = parse_target(init.target)
        stop = target.stop
        if target.fail_load:
            raise StepFailed("LOAD", f"target {init.target!r} was told to fail at loading")
        while target.gate and not Path(target.gate).exists():
            time.sleep(0.01)
        block = target.block if init.drafter is not None else 0
        self.model = self._given or ScriptedModel(
            num_slots=init.num_slots,
            max_model_len=init.max_model_len,
            vocab_size=target.vocab,
            block_len=block,
            seed=target.seed,
            mean=target.mean if block else 1.0,
            propose=(lambda _, length: [stop] * length) if target.draft_stop and stop is not None else None,
            faults=Faults(steps=frozenset({target.fault_at})),
        )

    def warm(self) -> wire.Ready:
        model, init = self._loaded()
        return wire.Ready(
            session=init.session,
            num_slots=len(model.slots),
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            block_len=model.block_len,
            drafter_window=model.max_model_len if model.block_len else 0,
            has_confidence=model.has_confidence,
            eos_token_ids=[] if self._target.stop is None else [self._target.stop],
            costs=init.costs or (self._costs(init) if init.measure_costs else None),
        )

    def _costs(self, init: wire.Init) -> wire.CostTable:
        """What it was told a step takes, whatever is in it."""
        step_ns = max(1000, 1000 * self._target.step_us)
        fingerprint = {"device": "scripted", "target": init.target}
        return wire.CostTable(fingerprint, 0, [1], [1], [[step_ns]], [1])

    def run(self, step: wire.Step) -> wire.Report:
        model, init = self._loaded()
        self._misbehave(step.step_id)
        started_ns = time.monotonic_ns()
        try:
            rows = [wire_row(row) for row in model.run_rows(step.rows)]
        except ScriptedFault as fault:
            raise StepFailed(fault.code, str(fault)) from fault
        target_ns = time.monotonic_ns() - started_ns
        return wire.Report(session=init.session, step_id=step.step_id, rows=rows, target_ns=target_ns, lost=model.lost)

    def close(self) -> None:
        self.model = None

    def _loaded(self) -> tuple[ScriptedModel, wire.Init]:
        if self.model is None or self._init is None:
            raise StepFailed("NOT_LOADED", "the scripted worker has no model yet")
        return self.model, self._init

    def _misbehave(self, step_id: int) -> None:
        """Only the first session exits or hangs, so that a test sees the recovery."""
        target = self._target
        if target.step_us:
            time.sleep(target.step_us / 1e6)
        if self._init is None or self._init.session > 1:
            return
        if step_id == target.exit_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step_id == target.hang_at:
            signal.pause()


def wire_row(row: events.ReportRow) -> wire.Emitted | wire.Seeded | wire.Scrubbed | wire.RowFault:
    """Return a core report row as it travels."""
    if isinstance(row, events.Emitted):
        detail = row.detail or events.PassDetail()
        return wire.Emitted(
            slot=row.slot,
            epoch=row.epoch,
            token_ids=row.token_ids,
            accepted_len=row.accepted_len,
            held_len=row.held_len,
            draft_token_ids=detail.draft_token_ids,
            confidence_logits=detail.confidence_logits,
            margins=detail.margins,
            held_confidence_logits=row.held_confidence_logits,
            logprobs=detail.logprobs,
            top_token_ids=detail.top_token_ids,
            top_logprobs=detail.top_logprobs,
        )
    if isinstance(row, events.Seeded):
        return wire.Seeded(slot=row.slot, epoch=row.epoch)
    if isinstance(row, events.Scrubbed):
        return wire.Scrubbed(slot=row.slot)
    return wire.RowFault(slot=row.slot, epoch=row.epoch, code=row.code, message=row.message)
