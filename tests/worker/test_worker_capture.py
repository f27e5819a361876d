"""What a capture fixes, on the CPU as on a device, and what becomes of a worker whose capture fails."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dsparkd.scheduler.service import local, run
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.client import Client
from dsparkd.statemachine.errors import LocalError
from dsparkd.worker import capture
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.blocks import StaticBlocks
from dsparkd.worker.buckets import Bucket
from dsparkd.worker.graphs import StaticRunner
from worker_support import GOLDEN, Driver, backend, phases_of, samples, seed

PROMPTS = [sample["prompt_ids"] for sample in samples("block7")]
FOLDERS = (str(GOLDEN / "block7" / "target"), str(GOLDEN / "block7" / "draft"))
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def static(**init: Any) -> Driver:
    return Driver(backend("block7", runner="static", **init))


# ---- what a capture fixes -------------------------------------------------------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]


def rerun(run: Callable[[], None]) -> capture.Replay:
    """A twin that fixes nothing: the same Python, run again. What is wrong with a capture it does not see."""
    run()
    return run


def host_value_in_the_pass(patch: pytest.MonkeyPatch) -> None:
    """Positions count from an integer of the host."""
    plain_in, plain_pass = StaticRunner._copy_in, StaticRunner._pass

    def copy_in(self: Any, batch: Any, bucket: Bucket) -> None:
        plain_in(self, batch, bucket)
        self.start = 0 if batch is None else batch.jobs[0].start

    def captured_pass(self: Any, bucket: Bucket) -> None:
        self.buffers.inputs[bucket.tokens : 2 * bucket.tokens] = torch.arange(bucket.tokens) % 8 + self.start
        plain_pass(self, bucket)

    patch.setattr(StaticRunner, "_copy_in", copy_in)
    patch.setattr(StaticRunner, "_pass", captured_pass)


def rebound_inputs(patch: pytest.MonkeyPatch) -> None:
    """A step's inputs come as a new tensor, and nobody looks at addresses."""
    plain = StaticRunner._copy_in

    def copy_in(self: Any, batch: Any, bucket: Bucket) -> None:
        self.buffers.inputs = self.buffers.inputs.clone()
        self.addresses = self.buffers.addresses
        plain(self, batch, bucket)

    patch.setattr(StaticRunner, "_copy_in", copy_in)


def rebound_logits(patch: pytest.MonkeyPatch) -> None:
    plain = StaticRunner._copy_in

    def copy_in(self: Any, batch: Any, bucket: Bucket) -> None:
        self.buffers.logits = torch.zeros_like(self.buffers.logits)
        self.addresses = self.buffers.addresses
        plain(self, batch, bucket)

    patch.setattr(StaticRunner, "_copy_in", copy_in)


def rebound_ring_positions(patch: pytest.MonkeyPatch) -> None:
    """The block's inputs come as a new tensor: ring rows are written where they were at capture."""
    plain = StaticBlocks._copy_in

    def copy_in(self: Any, *arguments: Any) -> None:
        self.inputs = self.inputs.clone()
        self.addresses = (self.inputs.data_ptr(), self.outputs.data_ptr())
        plain(self, *arguments)

    patch.setattr(StaticBlocks, "_copy_in", copy_in)


def steps_of_one_row(driver: Driver) -> list[Any]:
    seen = [driver.one(seed(0, 1, PROMPTS[0], propose_len=7)).token_ids]
    for _ in range(6):
        seen += [list(driver.window(0).held), driver.one(wire.Decode(0, 1, 7, 7)).token_ids]
    return seen


@pytest.mark.parametrize("broken", [host_value_in_the_pass, rebound_inputs, rebound_logits, rebound_ring_positions])
def test_l021_l078_what_a_graph_would_not_see_the_twin_does_not_see_either(
    broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again as Python the broken runner looks right; replayed from its recording it does not."""
    expected = steps_of_one_row(Driver(backend("block7")))
    broken(monkeypatch)
    assert steps_of_one_row(static(paranoid=False)) != expected
    monkeypatch.setattr("dsparkd.worker.backend.capture_on_cpu", rerun)
    assert steps_of_one_row(static(paranoid=False)) == expected


@pytest.mark.parametrize("place", ["target", "drafter"])
def test_a_static_buffer_that_is_rebound_is_noticed(place: str) -> None:
    driver = static()
    driver.one(seed(0, 1, PROMPTS[0]))
    runner, proposer = phases_of(driver.backend).runner, phases_of(driver.backend).proposer
    assert isinstance(runner, StaticRunner)
    assert proposer is not None
    if place == "target":
        runner.buffers.inputs = runner.buffers.inputs.clone()
        with pytest.raises(LocalError, match="rebound"):
            driver.one(wire.Decode(0, 1, 0, 0))
    else:
        assert isinstance(proposer.blocks, StaticBlocks)
        proposer.blocks.outputs = proposer.blocks.outputs.clone()
        assert "rebound" in str(driver.step(wire.Decode(0, 1, 0, 7)).lost)


def test_a_value_that_comes_back_to_the_host_is_no_capture() -> None:
    buffer = torch.zeros(3)
    with pytest.raises(LocalError, match="back to the host"):
        capture.capture_on_cpu(lambda: buffer.add_(float(buffer.sum())))


def test_a_recording_runs_views_and_changes_in_place_on_the_same_memory() -> None:
    buffer, out = torch.arange(6.0), torch.zeros(3)

    def run() -> None:
        left, right = buffer.view(2, 3).unbind(0)
        left.mul_(2)
        out.copy_(left + right.flip(0))

    replay = capture.capture_on_cpu(run)
    buffer.copy_(torch.tensor([1.0, 2, 3, 10, 20, 30]))
    replay()
    assert buffer.tolist() == [2, 4, 6, 10, 20, 30]
    assert out.tolist() == [32, 24, 16]


# ---- a capture that fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["the first", "the drafter's"])
def test_a_capture_that_fails_is_a_loss_that_ready_names(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *_: Any) -> None:
        raise MemoryError("no room for a graph")

    monkeypatch.setattr(StaticRunner if at == "the first" else StaticBlocks, "_pass", refuse)
    made = TorchBackend()
    made.load(wire.Init(1, *FOLDERS, num_slots=2, max_model_len=64, max_step_tokens=64, runner="static"))
    assert made.warm().lost == ["graphs (MemoryError: no room for a graph)"]
    assert steps_of_one_row(Driver(made)) == steps_of_one_row(Driver(backend("block7")))


FAILING_CAPTURE = """
import sys
if b"worker" in open("/proc/self/cmdline", "rb").read().split(b"\\0"):
    import dsparkd.worker.capture as capture
    def refuse(run):
        raise MemoryError("no room for a graph")
    capture.capture_on_cpu = refuse
"""


def test_a_service_whose_capture_fails_is_degraded_says_why_and_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real service: the worker's process gets a capture that fails, from outside."""
    with tempfile.TemporaryDirectory(prefix="dsparkd-test-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(FAILING_CAPTURE)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        settings = Settings(
            target=FOLDERS[0], drafter=FOLDERS[1], bind=f"ipc://{folder}/engine", num_slots=2, max_model_len=64,
            runner="static", measure_costs=False,
        )  # fmt: skip
        with (Path(folder) / "log").open("wb") as log:
            process = run.start(settings, log=log)
        try:
            with Client(settings.bind, timeout_s=60) as client:
                client.wait_ready(60)
                health = client.health()
                text = client.generate(PROMPTS[0], max_tokens=8).token_ids
                stats = client.stats()
        finally:
            local.stop(process)
    assert any("graphs (MemoryError: no room for a graph)" in reason for reason in health.reasons), health
    driver = Driver(backend("block7", drafter=False))
    expected = list(driver.one(seed(0, 1, PROMPTS[0])).token_ids)
    while len(expected) < 8:
        expected += driver.one(wire.Decode(0, 1, 0, 0)).token_ids
    assert text == expected
    assert (stats["passes_uncaptured"], stats["drafts_lost"]) == (0, 0)


@pytest.mark.cuda
@needs_cuda
def test_a_cuda_capture_that_fails_is_a_loss_that_ready_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StaticRunner._pass

    def reads_back(self: Any, bucket: Bucket) -> None:
        plain(self, bucket)
        float(self.buffers.logits.sum())

    monkeypatch.setattr(StaticRunner, "_pass", reads_back)
    made = TorchBackend()
    made.load(wire.Init(1, *FOLDERS, num_slots=2, max_model_len=64, max_step_tokens=64, runner="cuda", device="cuda"))
    assert any(one.startswith("graphs") for one in made.warm().lost)
    torch.cuda.synchronize()
