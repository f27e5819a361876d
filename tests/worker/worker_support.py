"""The real worker without its process: phases on a pair, and an adapter that lets the core's bench drive it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.worker_rows import wire_step, worker_event
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.scripted import ScriptedFault
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.workerside import StepFailed
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.phases import Phases
from dsparkd.worker.windows import Window

torch.set_num_threads(1)

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = ("vanilla", "gated", "rnn", "tied_embedding_tap", "dflash", "block7")
TOLERANCE = 2e-5


def backend(name: str = "vanilla", *, drafter: bool = True, **init: Any) -> TorchBackend:
    """A warm backend on a golden pair or on the shipped one."""
    if name == "shipped":
        target, draft = shipped_pair().target, shipped_pair().drafter
    else:
        target, draft = GOLDEN / name / "target", GOLDEN / name / "draft"
    defaults = {"num_slots": 4, "max_model_len": 200, "max_step_tokens": 200, "paranoid": True}
    made = TorchBackend()
    made.load(wire.Init(1, str(target), str(draft) if drafter else None, **{**defaults, **init}))
    made.warm()
    return made


def phases_of(made: TorchBackend) -> Phases:
    assert made.runner is not None
    return made.runner.phases


@cache
def samples(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((GOLDEN / name / "golden.json").read_text())["samples"]
    return loaded


class Driver:
    """Sends rows by hand, one command after another."""

    def __init__(self, made: TorchBackend) -> None:
        self.backend = made
        self.step_id = 0

    def step(self, *rows: Any) -> wire.Report:
        self.step_id += 1
        return self.backend.run(wire.Step(1, self.step_id, list(rows)))

    def one(self, row: Any) -> Any:
        return self.step(row).rows[0]

    def window(self, slot: int) -> Window:
        return phases_of(self.backend).windows.table[slot]


def seed(slot: int, epoch: int, token_ids: Sequence[int], **fields: Any) -> wire.Seed:
    """A whole prompt as one last chunk that opens a tenancy, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "start_pos": 0,
        "last": True,
        "propose_len": 0,
        "params": wire.Params(),
        "opens": wire.Open(),
    }
    return wire.Seed(slot, epoch, token_ids=list(token_ids), **{**defaults, **fields})


class TorchRows:
    """A `RowWorker` for the bench: core rows in, core rows out, through the wire's own spelling."""

    def __init__(self, made: TorchBackend) -> None:
        self.backend = made
        self.block_len = phases_of(made).windows.shape.block_len
        self.drafter_window = phases_of(made).windows.shape.drafter_window
        self.lost: str | None = None
        self.step_id = 0

    def run_rows(self, rows: Sequence[Any]) -> list[events.ReportRow]:
        self.step_id += 1
        try:
            report = self.backend.run(wire_step(results.Command(1, self.step_id, list(rows))))
        except StepFailed as failed:
            raise ScriptedFault(failed.code, str(failed)) from failed
        except Exception as error:  # as the worker's loop does
            raise ScriptedFault("INTERNAL", str(error)) from error
        event = worker_event(report)
        assert isinstance(event, events.Report)
        self.lost = event.lost
        return event.rows


def bench(
    policy: Any = "fixed:7", *, made: TorchBackend | None = None, limits: dict[str, Any] | None = None, **init: Any
) -> Bench:
    """The real core over the real worker, in one process."""
    warm = made or backend(**init)
    shape = phases_of(warm).windows.shape
    sizes = {"num_slots": shape.num_slots, "max_model_len": shape.max_model_len, "max_step_tokens": 64}
    return Bench(policy, limits=Limits(**{**sizes, **(limits or {})}), worker=lambda: TorchRows(warm))
