"""What the scheduler says of a window is what the worker has there, whatever fails, ends or is taken over meanwhile.

The real core over the real worker, which watches itself. Requests that share beginnings come and are cancelled, steps
fail at any point; after each step the two accounts are compared, and in the end every token with a run without reuse.
"""

from functools import cache
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import slot
from dsparkd.worker.backend import TorchBackend
from dsparkd.worker.faults import Point, injected
from fault_support import PROMPTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from window_support import ToldToFail
from worker_support import backend, bench, phases_of

MAX_MODEL_LEN = 64
CHUNK = 24  # longer than the spare rows of a ring, so that a chunk goes over what was readable
TEXTS = [(PROMPTS[number] * 9)[:50] for number in range(2)]
SAMPLED = events.Params(temperature=0.8, seed=5)


@attrs.frozen
class Submit:
    """A prompt that shares `common_len` tokens with others, and some of its own."""

    text: int
    common_len: int
    more: tuple[int, ...]
    max_tokens: int
    params: events.Params

    @property
    def prompt(self) -> tuple[int, ...]:
        return (*TEXTS[self.text][: self.common_len], *self.more)


@attrs.frozen
class Step:
    """Plan, cancel one of the live requests (counted from the newest) while the step runs, answer."""

    cancel: int | None
    fault: Point | None


SUBMITS = st.builds(
    Submit,
    text=st.integers(0, 1),
    common_len=st.integers(1, 50),
    more=st.lists(st.integers(0, 255), max_size=4).map(tuple),
    max_tokens=st.integers(1, 9),
    params=st.sampled_from([events.Params(), SAMPLED]),
)
FAULTS = [point for point in Point if point is not Point.SCRUB]
STEPS = st.builds(
    Step,
    cancel=st.none() | st.integers(0, 2),
    fault=st.none() | st.none() | st.sampled_from(FAULTS),
)


@cache
def worker(window: int | None, num_slots: int = 2) -> TorchBackend:
    return backend("vanilla", num_slots=num_slots, max_model_len=MAX_MODEL_LEN, drafter_window=window)


def empty_bench(made: TorchBackend, min_reuse_len: int | None) -> Bench:
    windows = phases_of(made).windows
    for number in range(windows.shape.num_slots):
        windows.scrub(number)
    limits = {"max_step_tokens": CHUNK, "max_restarts": 1000, "min_reuse_len": min_reuse_len}
    return bench("fixed:4", made=made, limits=limits)


@cache
def alone(one: Submit) -> list[int]:
    """What the request says on a worker of its own."""
    made = empty_bench(worker(None, 1), None)
    made.submit(0, one.prompt, max_tokens=one.max_tokens, params=one.params)
    made.run()
    return made.tokens[0]


def step(one: Bench, moves: Step) -> None:
    one.tick()
    live = list(one.core.ledger.requests)
    if moves.cancel is not None and moves.cancel < len(live):
        one.send(events.Cancel(0, live[-1 - moves.cancel]))
    runner = one.worker.backend.runner  # type: ignore[attr-defined]
    rows = [] if one.in_flight is None else one.in_flight.rows
    if moves.fault is None or any(isinstance(row, events.Scrub) for row in rows):  # who cannot scrub is killed
        one.answer()
    else:
        with capture_logs(), injected(runner, moves.fault, ToldToFail):
            one.answer()


def same_accounts(one: Bench) -> None:
    """Of every window that a row may go on with or an Open may keep: epoch, length, where its context begins."""
    windows = phases_of(one.worker.backend).windows  # type: ignore[attr-defined]
    for held, window in zip(one.core.ledger.slots, windows.table, strict=False):
        goes_on = held.state is slot.State.HELD and held.content_epoch == held.epoch
        if not goes_on and not held.content:
            continue
        assert window.epoch == held.content_epoch
        assert window.length == held.window_len or (window.length > held.window_len and not goes_on)
        assert len(held.content) <= held.window_len or not held.content
        first = max(held.context_start, held.window_len - windows.shape.drafter_window)
        assert window.context_start <= max(first, 0), f"slot {held.id}: rows are counted on that are gone"


def no_row_was_refused(one: Bench) -> None:
    rows = [row for report in one.reports for row in getattr(report, "rows", ())]
    assert not [row for row in rows if isinstance(row, events.RowFault)]


@pytest.mark.parametrize("window", [None, 5, 12], ids=["whole context", "shortest ring", "ring"])
def test_the_two_accounts_of_a_window_agree_and_reuse_shows_in_no_token(window: int | None) -> None:
    num_reused = 0

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(moves=st.lists(SUBMITS | STEPS | STEPS, min_size=8, max_size=24))
    def law(moves: list[Any]) -> None:
        nonlocal num_reused
        one, submitted = empty_bench(worker(window), 1), list[Submit]()
        for move in moves:
            if isinstance(move, Submit):
                one.submit(len(submitted), move.prompt, max_tokens=move.max_tokens, params=move.params)
                submitted.append(move)
            else:
                step(one, move)
                same_accounts(one)
        one.run()
        same_accounts(one)
        no_row_was_refused(one)
        for number, request in enumerate(submitted):
            said, whole = one.tokens.get(number, []), alone(request)
            assert said == (whole if one.ended[number][0].state == "FINISHED" else whole[: len(said)])
        num_reused += one.core.totals.prefix_tokens_reused

    law()
    assert num_reused > 0


@pytest.mark.parametrize("opens", [False, True], ids=["a later chunk", "a chunk that takes over"])
def test_a_chunk_that_failed_may_have_gone_over_the_ring_and_nobody_counts_on_it(opens: bool) -> None:
    """Its request is cancelled after the fault; the next one reuses the prefix and seeds a window of it again."""
    one, text = empty_bench(worker(12), 2), TEXTS[0]
    if opens:
        one.submit(0, text[:CHUNK], max_tokens=1)
        one.run()
    one.submit(1, [*text[:CHUNK], *[9] * 22], max_tokens=3)
    if not opens:
        step(one, Step(None, None))
    one.submit(2, TEXTS[1][:1], max_tokens=8)
    step(one, Step(None, Point.SUCCESSOR))
    assert isinstance(one.reports[-1], events.StepFault)
    one.send(events.Cancel(0, 1))
    same_accounts(one)
    one.submit(3, [*text[:CHUNK], 5], max_tokens=5)
    one.run()
    no_row_was_refused(one)
    assert one.ended[3][0].counts.prefix_tokens_reused == CHUNK - 12
