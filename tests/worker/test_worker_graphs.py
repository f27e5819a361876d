"""Captured passes: the buckets, replay against eager, what a capture fixes, and what becomes of one that fails."""

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dsparkd.scheduler.service import local
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.client import Client
from dsparkd.statemachine.errors import LocalError
from dsparkd.worker import capture
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.blocks import StaticBlocks
from dsparkd.worker.buckets import Bucket, bucket_of, buckets
from dsparkd.worker.graphs import StaticRunner
from hypothesis import given
from hypothesis import strategies as st
from worker_support import GOLDEN, Driver, backend, phases_of, samples, seed

PROMPTS = [sample["prompt_ids"] for sample in samples("block7")]
FOLDERS = (str(GOLDEN / "block7" / "target"), str(GOLDEN / "block7" / "draft"))
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


# ---- buckets --------------------------------------------------------------------------------------------------------

SHAPES = st.tuples(st.integers(1, 70), st.integers(1, 9))


@given(SHAPES, st.data())
def test_rows_of_any_widths_get_the_smallest_bucket_that_was_captured(shape: tuple[int, int], data: Any) -> None:
    num_slots, verify_len = shape
    widths = data.draw(st.lists(st.integers(1, verify_len), min_size=1, max_size=num_slots))
    found = bucket_of(widths, num_slots=num_slots, verify_len=verify_len)
    captured = buckets(num_slots, verify_len)
    holds = [
        one for one in captured
        if one.rows >= len(widths) and one.tokens >= sum(widths) and one.width >= max(widths)
    ]  # fmt: skip
    assert found in captured
    assert found in holds
    assert (found.rows, found.tokens) == min((one.rows, one.tokens) for one in holds)
    assert found.rows < 2 * len(widths)


@given(SHAPES)
def test_there_are_no_more_buckets_than_logarithms_say(shape: tuple[int, int]) -> None:
    num_slots, verify_len = shape
    captured = buckets(num_slots, verify_len)
    assert len(set(captured)) == len(captured)
    assert len(captured) <= (math.ceil(math.log2(num_slots)) + 1) * (math.ceil(math.log2(verify_len)) + 1)
    assert captured[0] == Bucket(num_slots, num_slots * verify_len, verify_len)


@pytest.mark.parametrize("widths", [[1] * 5, [9], [8, 8, 8, 8, 1]])
def test_what_is_beyond_the_largest_bucket_raises_and_is_not_cut(widths: list[int]) -> None:
    with pytest.raises(LocalError):
        bucket_of(widths, num_slots=4, verify_len=8)


# ---- replay equals eager --------------------------------------------------------------------------------------------


def static(**init: Any) -> Driver:
    return Driver(backend("block7", runner="static", **init))


def runner_of(driver: Driver) -> StaticRunner:
    runner = phases_of(driver.backend).runner
    assert isinstance(runner, StaticRunner)
    return runner


def run_beside(captured: Driver, eager: Driver, *, epochs: int = 3, turns: int = 99) -> tuple[int, int]:
    """Tenancies of three slots to the end of their windows, in ragged rows: both say, hold and draft the same.

    Returns the positions that were written, and the steps.
    """
    end, positions, num_steps = phases_of(eager.backend).windows.shape.max_model_len, 0, 0
    for epoch in range(1, epochs + 1):
        for one in (captured, eager):
            one.step(*[seed(slot, epoch, PROMPTS[slot], propose_len=7) for slot in range(3)])
        for turn in range(turns):
            rows = []
            for slot in range(3):
                window = eager.window(slot)
                room = end - window.length - 1
                if room >= 0:
                    draft_len = min(len(window.held), room, (turn + slot) % 8)
                    rows.append(wire.Decode(slot, epoch, draft_len, 7 if room > 8 else 0))
            if not rows:
                break
            assert captured.step(*rows).rows == eager.step(*rows).rows
            num_steps += 1
            for slot in range(3):
                assert captured.window(slot).held == eager.window(slot).held
        positions += sum(eager.window(slot).length for slot in range(3))
    return positions, num_steps


@pytest.mark.parametrize("window", [None, 8, 13], ids=["whole context", "shortest ring", "ring"])
def test_l021_replays_equal_eager_over_three_windows_of_steps(window: int | None) -> None:
    """Three slots through three tenancies each: ragged rows, reused slots, rings that wrap around."""
    sizes = {"num_slots": 3, "max_model_len": 64, "drafter_window": window, "paranoid": window == 13}
    captured, eager = static(**sizes), Driver(backend("block7", **sizes))
    replays_before = runner_of(captured).num_replays
    positions, num_steps = run_beside(captured, eager)
    assert positions == 9 * 64
    assert runner_of(captured).num_replays == replays_before + num_steps


@pytest.mark.parametrize("params", [wire.Params(), wire.Params(temperature=0.8, seed=5)], ids=["greedy", "sampled"])
def test_l078_tokens_of_every_width_are_those_of_an_eager_pass(params: wire.Params) -> None:
    captured, eager = (Driver(backend("block7", runner=kind, paranoid=False)) for kind in ("static", "eager"))
    for draft_len in range(8):
        texts = []
        for one in (captured, eager):
            first = one.one(seed(0, draft_len + 1, PROMPTS[0], propose_len=7, params=params))
            text = list(first.token_ids)
            for _ in range(5):
                text += one.one(wire.Decode(0, draft_len + 1, draft_len, 7)).token_ids
            texts.append(text)
        assert texts[0] == texts[1]


def test_a_step_with_a_chunk_runs_eagerly_and_says_so() -> None:
    captured, eager = static(), Driver(backend("block7"))
    for one, number in ((captured, 1), (eager, 0)):  # where nothing is captured, nothing is missed
        assert one.step(seed(0, 1, PROMPTS[0], propose_len=7)).passes_uncaptured == number
        assert one.step(wire.Decode(0, 1, 7, 7)).passes_uncaptured == 0
        assert one.step(wire.Decode(0, 1, 0, 7), seed(1, 1, PROMPTS[1])).passes_uncaptured == number


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
    runner, proposer = runner_of(driver), phases_of(driver.backend).proposer
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
            process = local.start(settings, log=log)
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


# ---- on a device ----------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("window", [None, 13], ids=["whole context", "ring"])
def test_cuda_graphs_say_what_eager_says_on_the_device(window: int | None) -> None:
    sizes = {"num_slots": 3, "max_model_len": 64, "drafter_window": window, "device": "cuda"}
    captured, eager = Driver(backend("block7", runner="cuda", **sizes)), Driver(backend("block7", **sizes))
    assert run_beside(captured, eager)[0] == 9 * 64


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
