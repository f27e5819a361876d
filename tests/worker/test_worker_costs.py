"""Measuring while warming: the real phases on the scratch slot, no trace, and a table that names what was measured."""

from importlib.metadata import version
from typing import Any

import pytest
import torch
from dsparkd.scheduler.core.costs import cost_problems
from dsparkd.scheduler.service.worker_rows import core_costs
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from dsparkd.worker import costs
from dsparkd.worker.backend import TorchBackend
from worker_support import GOLDEN, Driver, backend, phases_of, samples, seed


def init(**fields: Any) -> wire.Init:
    folder = GOLDEN / "block7"
    pair = {"target": str(folder / "target"), "drafter": str(folder / "draft")}
    sizes = {"num_slots": 3, "max_model_len": 200, "max_step_tokens": 64}
    return wire.Init(1, **{**pair, **sizes, "measure_costs": True, **fields})  # type: ignore[arg-type]


def ready(**fields: Any) -> wire.Ready:
    made = TorchBackend()
    made.load(init(**fields))
    return made.warm()


@pytest.mark.parametrize("runner", ["eager", "static"])
def test_ready_carries_a_table_over_the_whole_grid(runner: str) -> None:
    table = ready(runner=runner).costs
    assert table is not None
    assert (table.rows, table.widths, table.context_len) == ([1, 2, 3], [1, 2, 4, 8], 92)
    assert len(table.draft_ns) == 3
    assert cost_problems(core_costs(table)) == []
    assert table.fingerprint["dtype"] == "float32"
    assert table.fingerprint["dsparkd"] == version("dsparkd")
    assert f"runner {runner}" in table.fingerprint["device"]


def test_without_a_drafter_only_plain_passes_are_measured() -> None:
    made = TorchBackend()
    made.load(init(drafter=None))
    table = made.warm().costs
    assert table is not None
    assert (table.widths, table.draft_ns) == ([1], [])


def test_nothing_is_measured_when_it_is_off_or_when_a_table_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ready().costs
    monkeypatch.setattr(costs, "measure", lambda *_, **__: pytest.fail("it measured"))
    assert ready(measure_costs=False).costs is None
    assert ready(costs=table).costs == table


def test_a_table_of_another_place_is_refused_with_both_values() -> None:
    table = ready().costs
    assert table is not None
    for key, value in (("dtype", "bfloat16"), ("dsparkd", "0.0.0"), ("target", "feed"), ("device", "a toaster")):
        other = wire.CostTable({**table.fingerprint, key: value}, 1, [1], [1], [[1]], [1])
        with pytest.raises(Refused) as caught:
            ready(costs=other)
        assert f"cost table's {key} = {value!r}: expected this worker's {table.fingerprint[key]!r}" in str(caught.value)
        assert "1 problem(s)" in str(caught.value)


def bits(rows: torch.Tensor) -> torch.Tensor:
    """All slots' rows but those of the scratch slot; what is poisoned equals itself as bits only."""
    return rows[:, :-1].clone().view(torch.int32)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "raises"])
def test_measuring_moves_no_window_even_when_it_raises(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsparkd.worker.warmup import scratch_restored

    driver, twin = Driver(backend("block7")), Driver(backend("block7"))
    prompt = samples("block7")[1]["prompt_ids"]
    for one in (driver, twin):
        one.step(*[seed(slot, 1, prompt, propose_len=7) for slot in range(3)])
        one.step(wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 7, 0))
    windows = phases_of(driver.backend).windows
    assert windows.context is not None
    before = (bits(windows.target.rows), bits(windows.context.rows))
    scratch_before = windows.table[-1]
    if fails:
        monkeypatch.setattr(costs, "_timed", lambda run, clock: (run(), 1 // 0))
    try:
        with scratch_restored(windows) as scratch:
            costs.measure(phases_of(driver.backend), scratch, max_step_tokens=64)
    except ZeroDivisionError:
        assert fails
    assert windows.table[-1] is scratch_before
    assert torch.equal(bits(windows.target.rows), before[0])
    assert torch.equal(bits(windows.context.rows), before[1])
    rows = [wire.Decode(0, 1, 7, 7), wire.Decode(1, 1, 0, 7), wire.Decode(2, 1, 7, 7)]
    assert driver.step(*rows).rows == twin.step(*rows).rows
    assert [driver.window(slot).held for slot in range(3)] == [twin.window(slot).held for slot in range(3)]


def test_rows_that_all_name_the_scratch_slot_emit_what_one_row_emits() -> None:
    """The measured pass is the pass that serves: many rows over one window see what one row over it sees."""
    phases = phases_of(backend("block7"))
    store, scratch = phases.windows.target, phases.windows.shape.scratch
    store.rows[:, scratch].uniform_(-1, 1)
    views = store.views([scratch] * 3, 5)
    assert views is not None
    for index, view in enumerate(views):
        assert torch.equal(view, store.rows[index, scratch, :, :5].expand(3, -1, -1, -1))
