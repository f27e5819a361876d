"""Captured passes: the buckets, and replay against eager. (What a capture fixes: `test_worker_capture.py`.)"""

import math
from typing import Any

import pytest
import torch
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import LocalError
from dsparkd.worker.buckets import Bucket, bucket_of, buckets
from dsparkd.worker.graphs import StaticRunner
from hypothesis import given
from hypothesis import strategies as st
from worker_support import Driver, backend, phases_of, samples, seed

PROMPTS = [sample["prompt_ids"] for sample in samples("block7")]
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


@pytest.mark.parametrize(
    ("window", "epochs"), [(None, 2), (8, 1), (13, 2)], ids=["whole context", "shortest ring", "ring"]
)
def test_l021_replays_equal_eager_over_three_windows_of_steps(window: int | None, epochs: int) -> None:
    """Three slots to the end of their windows: ragged rows, reused slots, rings that wrap around."""
    sizes = {"num_slots": 3, "max_model_len": 64, "drafter_window": window, "paranoid": window == 13}
    captured, eager = static(**sizes), Driver(backend("block7", **sizes))
    replays_before = runner_of(captured).num_replays
    positions, num_steps = run_beside(captured, eager, epochs=epochs)
    assert positions == 3 * epochs * 64
    assert runner_of(captured).num_replays == replays_before + num_steps


@pytest.mark.parametrize("params", [wire.Params(), wire.Params(temperature=0.8, seed=5)], ids=["greedy", "sampled"])
def test_l078_tokens_of_every_width_are_those_of_an_eager_pass(params: wire.Params) -> None:
    captured, eager = (Driver(backend("block7", runner=kind, paranoid=False)) for kind in ("static", "eager"))
    for draft_len in range(8) if params.temperature == 0 else (0, 3, 7):
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


# ---- on a device ----------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("window", [None, 13], ids=["whole context", "ring"])
def test_cuda_graphs_say_what_eager_says_on_the_device(window: int | None) -> None:
    sizes = {"num_slots": 3, "max_model_len": 64, "drafter_window": window, "device": "cuda"}
    captured, eager = Driver(backend("block7", runner="cuda", **sizes)), Driver(backend("block7", **sizes))
    assert run_beside(captured, eager)[0] == 9 * 64
