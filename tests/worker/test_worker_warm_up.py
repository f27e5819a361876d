"""Warm-up and measuring: the steps of production on nobody's slot, without a trace even when one of them raises; and
memory, which is judged before it is taken."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from dsparkd.worker import costs
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.faults import Point, When, injected
from dsparkd.worker.memory import MIB, Needs, limit_of
from dsparkd.worker.warmup import scratch_restored, warm_up
from dsparkd.worker.windows import Windows
from hypothesis import given
from hypothesis import strategies as st
from window_support import ToldToFail
from worker_support import GOLDEN, Driver, backend, phases_of, samples, seed

PROMPTS = [sample["prompt_ids"] for sample in samples("block7")]
POINTS = (
    Point.FORWARD,
    Point.ACCEPT,
    Point.CONTEXT,
    Point.PROJECT,
    Point.SUCCESSOR,
    Point.COMMIT,
    Point.DRAFT,
    Point.PROPOSE,
)


def started(runner: str = "eager") -> Driver:
    """Two slots in mid-life, one of them sampling and with pending features."""
    driver = Driver(backend("block7", num_slots=2, max_model_len=64, runner=runner))
    params = wire.Params(temperature=0.8, seed=3)
    driver.step(*[seed(slot, 1, PROMPTS[slot], propose_len=7, params=params) for slot in range(2)])
    driver.step(wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 7, 0))
    return driver


def everything(driver: Driver) -> list[Any]:
    """All that outlives a step: rows of every slot but scratch as bits, all counters, drafts and their noise, RNG."""
    phases = phases_of(driver.backend)
    windows = phases.windows
    assert windows.context is not None
    assert windows.pending is not None
    rows = [store.rows[:, :-1].clone().view(torch.int32) for store in (windows.target, windows.context)]
    rows.append(windows.pending.rows[:-1].clone().view(torch.int32))
    counters: list[Any] = list(windows.table)
    for window in windows.table:
        counters += [getattr(window, name) for name in window.__slots__ if name != "noise"]
        rows += [] if window.noise is None else [window.noise.clone()]
    samplings = phases.samplings
    return [*rows, torch.get_rng_state(), counters, samplings, list(samplings._key), samplings._made]


def unchanged(before: list[Any], driver: Driver) -> bool:
    return all(
        torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        for one, other in zip(before, everything(driver), strict=True)
    )


def warming(driver: Driver) -> None:
    warm_up(phases_of(driver.backend), max_step_tokens=24)


def measuring(driver: Driver) -> None:
    windows = phases_of(driver.backend).windows
    with scratch_restored(windows) as scratch:
        costs.measure(phases_of(driver.backend), scratch, max_step_tokens=16)


@pytest.mark.parametrize(("steps", "runner"), [(warming, "eager"), (warming, "static"), (measuring, "eager")])
def test_l102_warm_up_leaves_no_trace_even_when_it_raises(
    steps: Callable[[Driver], None], runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undisturbed, then with a raise at each passage of each phase."""
    monkeypatch.setattr(costs, "BUDGET_NS", 0)  # a round that warms and one that measures
    driver, num_raised = started(runner), 0
    before = everything(driver)
    for point in POINTS:
        with injected(driver.backend.runner, point, lambda: None) as undisturbed:
            steps(driver)
        assert unchanged(before, driver)
        assert undisturbed.num_calls or (point, steps) in ((Point.PROJECT, measuring), (Point.CONTEXT, measuring))
        for call in range(1, undisturbed.num_calls // (1 + (steps is measuring)) + 1):
            when = When.DONE if call % 2 else When.ENTRY
            with pytest.raises(ToldToFail), injected(driver.backend.runner, point, ToldToFail, when=when, call=call):
                steps(driver)
            assert unchanged(before, driver), (point, call)
            num_raised += 1
    assert num_raised > 10
    twin = started()
    rows = [wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 0, 7)]
    assert driver.step(*rows).rows == twin.step(*rows).rows
    assert [driver.window(slot).held for slot in range(2)] == [twin.window(slot).held for slot in range(2)]


def test_l102_warm_up_runs_the_widest_steps_that_commands_can_ask_for() -> None:
    """The widest chunk, each slot's widest pass and block, and anchors alone, at the end of full windows."""
    driver = Driver(backend("block7", num_slots=3, max_model_len=64))
    phases = phases_of(driver.backend)
    passes, blocks = [], []
    plain_forward, plain_draft = phases.runner.forward, phases.draft

    def forward(batch: Any) -> Any:
        assert {job.slot for job in batch.jobs} == {phases.windows.shape.scratch}
        passes.append((len(batch.jobs), batch.jobs[0].draft_len, max(job.start + job.width for job in batch.jobs)))
        return plain_forward(batch)

    def draft(jobs: Any) -> int:
        blocks.append(sum(job.propose_len == 7 for job in jobs))
        return plain_draft(jobs)

    phases.runner.forward, phases.draft = forward, draft  # type: ignore[method-assign]
    warm_up(phases, max_step_tokens=24)
    assert passes == [(1, None, 64), *[(3, 7, 64)] * 3, (3, 0, 64)]
    assert blocks == [1, 3, 3, 3, 0]


# ---- memory ---------------------------------------------------------------------------------------------------------


def loaded(**fields: Any) -> TorchBackend:
    made = TorchBackend()
    folders = (str(GOLDEN / "block7" / "target"), str(GOLDEN / "block7" / "draft"))
    made.load(wire.Init(1, *folders, **{"num_slots": 8, "max_model_len": 200, "max_step_tokens": 64, **fields}))
    return made


def needs_of(made: TorchBackend, **fields: Any) -> Needs:
    assert made.target is not None
    shape = phases_of(made).windows.shape
    drafter = None if made.drafter is None else made.drafter.config
    return Needs(
        shape=shape, target=made.target.config, drafter=drafter, dtype=made.target.dtype, max_step_tokens=64, **fields
    )


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("drafter", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_of_a_slot_are_known_before_it_is_there(acceptance: str, drafter: bool, dtype: str) -> None:
    made = backend("block7", drafter=drafter, acceptance=acceptance, dtype=dtype, paranoid=False, drafter_window=30)
    needs = needs_of(made, keeps_probs=acceptance == "rejection")
    assert needs.slot_bytes == phases_of(made).windows.bytes_per_slot


def test_what_does_not_fit_is_refused_before_it_is_allocated_and_what_is_proposed_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocated: list[Any] = []
    plain = Windows.__init__
    monkeypatch.setattr(Windows, "__init__", lambda self, *a, **o: (allocated.append(a), plain(self, *a, **o))[1])
    slot_bytes = needs_of(backend("block7", num_slots=8)).slot_bytes
    allocated.clear()
    with pytest.raises(Refused, match="num_slots = 8") as caught:
        loaded(memory_limit_mb=3).warm()
    assert caught.value.code == "OUT_OF_MEMORY"
    assert f"{slot_bytes} bytes a slot" in str(caught.value)
    assert allocated == []
    proposed = int(str(caught.value).rsplit("num_slots = ", 1)[1].split()[0])
    assert 1 <= proposed < 8
    assert loaded(memory_limit_mb=3, num_slots=proposed).warm().num_slots == proposed
    with pytest.raises(Refused, match="bytes a slot"):
        loaded(memory_limit_mb=3, num_slots=proposed + 1).warm()
    with pytest.raises(Refused, match="a shorter max_model_len"):
        loaded(memory_limit_mb=1).warm()


@given(limit=st.integers(0, 1 << 26), num_slots=st.integers(1, 300), tokens=st.integers(1, 4096))
def test_the_proposed_number_of_slots_is_the_largest_that_fits(limit: int, num_slots: int, tokens: int) -> None:
    plain = needs_of(_made[0])
    needs = attrs.evolve(plain, shape=attrs.evolve(plain.shape, num_slots=num_slots), max_step_tokens=tokens)
    most = needs.most_slots(limit)
    assert most == max((n for n in range(1, num_slots + 1) if needs.whole(n) <= limit), default=0)
    if most == num_slots:
        needs.judge(limit)
    else:
        with pytest.raises(Refused, match=f"num_slots = {most} or less" if most else "shorter max_model_len"):
            needs.judge(limit)


_made = [backend("block7", num_slots=2)]


@pytest.mark.parametrize("place", ["windows", "warm-up"])
def test_an_allocation_that_fails_ends_in_the_same_refusal(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(f"dsparkd.worker.backend.{'Windows' if place == 'windows' else 'warm_up'}", fail)
    made = loaded()
    with pytest.raises(Refused, match=r"an allocation failed \(OutOfMemoryError\)") as caught:
        made.warm()
    assert "bytes a slot" in str(caught.value)
    assert "num_slots = 7 or less" in str(caught.value)
    assert made.runner is None


def test_what_a_device_measured_counts_instead_of_the_estimate() -> None:
    needs = needs_of(_made[0])
    limit = needs.whole(2)
    with pytest.raises(Refused, match=r"\(measured\)"):
        needs.judge(limit, measured=needs.step_bytes(2) + 1)
    needs.judge(limit, measured=needs.step_bytes(2))


def test_without_a_setting_the_limit_is_what_is_free() -> None:
    assert limit_of(3, torch.device("cpu")) == 3 * MIB
    free = limit_of(None, torch.device("cpu"))
    assert free is not None
    assert MIB < free < 1 << 50


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_the_widest_step_is_measured() -> None:
    made = loaded(device="cuda", runner="cuda")
    assert made.warm().num_slots == 8
    with pytest.raises(Refused, match="bytes a slot"):
        loaded(device="cuda", memory_limit_mb=1).warm()
