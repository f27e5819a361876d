"""The heart: after any number of zero-draft steps the drafter proposes what it proposes from a context made anew.

Every check stands beside a run that it must fail: with the context's write left out, and with features taken from
another row of the step.
"""

from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.policies.told import Told
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.workerside import StepFailed
from dsparkd.worker.phases import Phases
from torch import Tensor
from worker_support import Driver, backend, bench, phases_of
from zero_draft_support import PAIRS, Chunks, Run, check_slot, driver_of, opened, prompts, zero_phase


@pytest.mark.parametrize("resting", [(1,), (0, 1, 2)], ids=["one request", "whole batch"])
@pytest.mark.parametrize("chunked", [False, True], ids=["decode", "with chunks"])
@pytest.mark.parametrize("num_zero", [1, 2, 40])
@pytest.mark.parametrize("name", PAIRS)
def test_after_a_zero_draft_phase_draft_and_context_are_those_of_a_fresh_start(
    name: str, num_zero: int, chunked: bool, resting: tuple[int, ...]
) -> None:
    run = opened(name)
    for length in (num_zero, 3):  # a phase after a phase too
        zero_phase(run, length, resting=resting, chunked=chunked)
        for slot in range(3):
            check_slot(run.driver, name, slot, run.texts[slot])


SAMPLED = wire.Params(temperature=0.8, seed=11)


GREEDY = wire.Params()


@pytest.mark.parametrize(
    ("num_zero", "params", "runner"),
    [*[(length, GREEDY, "eager") for length in (1, 2, 40)], (40, GREEDY, "static"), (2, SAMPLED, "eager")],
    ids=["1-greedy", "2-greedy", "40-greedy", "40-greedy-static", "2-sampled"],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["decode", "with chunks"])
@pytest.mark.parametrize("name", ["vanilla", "block7", "shipped"])
def test_from_the_first_common_anchor_on_a_run_with_a_phase_is_the_run_that_never_had_one(
    name: str, num_zero: int, chunked: bool, params: wire.Params, runner: str
) -> None:
    """Drafts and accepted lengths are equal wherever both anchor at one position, so acceptance is too."""
    run = opened(name, runner=runner, params=params)
    zero_phase(run, num_zero, resting=(0, 1, 2), chunked=chunked)
    left = {slot: len(text) - 1 for slot, text in run.texts.items()}
    for _ in range(10):
        run.step(dict.fromkeys(range(3), True))
    never = opened(name, runner=runner, params=params)
    while min(len(never.texts[slot]) - len(run.texts[slot]) for slot in range(3)) < 0:
        behind = [slot for slot in range(3) if len(never.texts[slot]) < len(run.texts[slot])]
        never.step(dict.fromkeys(behind, True))
    common = 0
    for slot in range(3):
        length = min(len(run.texts[slot]), len(never.texts[slot]))
        assert run.texts[slot][:length] == never.texts[slot][:length]
        after = {one[0]: one for one in run.passes[slot] if one[0] >= left[slot]}
        without = {one[0]: one for one in never.passes[slot] if one[0] >= left[slot]}
        shared = sorted(set(after) & set(without))
        common += len(shared)
        for start in shared:
            assert after[start] == without[start]
        if shared:  # they never part again: the passes from there on, and so acceptance, are the same
            mine, theirs = ([one for one in each.values() if one[0] >= shared[0]] for each in (after, without))
            both = min(len(mine), len(theirs))
            assert mine[:both] == theirs[:both]
    assert common >= 3


def test_acceptance_after_the_phase_is_acceptance_without_it_on_the_shipped_pair() -> None:
    """Over many passes of one request, each set out from the same text: with a phase before it and without."""
    run = Run(driver_of("shipped"))
    run.open(0, prompts("shipped")[0])
    zero_phase(run, 20, resting=(0,), chunked=True)
    text = list(run.texts[0])
    for _ in range(12):
        run.step({0: True})
    without = Run(driver_of("shipped"))
    without.open(0, text[:-1])
    assert without.texts[0] == text
    for _ in range(12):
        without.step({0: True})
    assert run.passes[0][-12:] == without.passes[0]
    assert sum(accepted for _, _, accepted in without.passes[0]) > 12, "the drafter is good enough to notice"


# ---- what may happen inside the phase -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_zero", [1, 5, 40])
@pytest.mark.parametrize("name", ["vanilla", "block7", "shipped"])
def test_a_slot_taken_over_inside_the_phase_inherits_nothing_that_was_pending(name: str, num_zero: int) -> None:
    run = opened(name)
    for _ in range(num_zero):
        run.step(dict.fromkeys(range(3), False))
    run.open(1, prompts(name)[0][::-1], drafts=False)  # its request was cancelled: another tenancy, resting as well
    for _ in range(2):
        run.step(dict.fromkeys(range(3), False), Chunks().row())
    run.step(dict.fromkeys(range(3), True))
    for slot in range(3):
        check_slot(run.driver, name, slot, run.texts[slot])


class Failing:
    """Stands before a part of the step and raises once when told, on entry or when its work is done."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.tells = inner, iter(())

    def tell(self, *whens: str) -> None:
        self.tells = iter(whens)

    def _pass(self, method: str, *arguments: Any) -> Any:
        when = next(self.tells, None)
        if when == "entry":
            raise MemoryError("told to fail")
        done = getattr(self.inner, method)(*arguments)
        if when == "done":
            raise MemoryError("told to fail")
        return done

    def forward(self, *arguments: Any) -> Any:
        return self._pass("forward", *arguments)

    def context(self, *arguments: Any) -> Any:
        return self._pass("context", *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("when", ["entry", "done"])
@pytest.mark.parametrize("place", ["target", "context"])
@pytest.mark.parametrize("name", ["vanilla", "block7"])
def test_steps_that_fail_inside_the_phase_leave_what_is_pending_as_it_was(name: str, place: str, when: str) -> None:
    """Every step of the phase fails first and is run again, the bulk projections and the one that leaves included."""
    driver = Driver(backend(name))
    phases = phases_of(driver.backend)
    assert phases.windows.pending is not None
    phases.windows.pending.limit = 1  # so that steps of the phase project, too
    failing: Any = Failing(phases.runner if place == "target" else phases.drafter)
    if place == "target":
        phases.runner = failing
    else:
        phases.drafter = failing
    run = Run(driver)
    for slot in range(3):
        run.open(slot, prompts(name)[slot])
    chunks, num_failed = Chunks(), 0
    for turn in range(41):
        drafting = dict.fromkeys(range(3), turn == 40)
        row = chunks.row()
        failing.tell(when)
        try:
            run.step(drafting, row)
        except StepFailed:
            num_failed += 1
            run.step(drafting, row)
    assert num_failed == 41  # the chunk's context is written in every step
    for slot in range(3):
        check_slot(driver, name, slot, run.texts[slot])


@pytest.mark.parametrize("name", ["block7", "shipped"])
def test_the_core_cancels_reuses_and_retries_inside_a_phase_and_every_draft_is_fresh(name: str) -> None:
    """The real core over the real worker: after each step every held draft is the twin's, and nobody's text changes."""
    made = backend(name, num_slots=3, max_model_len=400)
    policy = Told((9,))
    engine = bench(policy, made=made, limits={"max_step_tokens": 24})
    texts: dict[int, list[int]] = {}
    checked = 0

    def submit(number: int) -> None:
        texts[number] = prompts(name)[number % 4][:20]
        engine.submit(number, texts[number], max_tokens=150)

    def steps(many: int, want: int) -> None:
        nonlocal checked
        policy.wants = (want,)
        for _ in range(many):
            engine.tick()
            engine.answer()
        for number, one in engine.core.ledger.seated.items():
            window = phases_of(made).windows.table[one.slot or 0]
            if window.held:
                check_slot(Driver(made), name, one.slot or 0, [*texts[number], *engine.tokens[number]])
                checked += 1

    for number in range(4):
        submit(number)
    steps(4, 9)
    steps(6, 0)
    engine.send(events.Cancel(0, 0))  # the fourth request takes the slot inside the phase
    steps(3, 0)
    engine.tick()
    engine.send(events.Cancel(0, 1))  # in flight: the slot retires, its row's report is thrown away
    engine.answer()
    submit(4)
    steps(35, 0)
    engine.tick()
    command, engine.in_flight = engine.in_flight, None
    assert command is not None
    engine.send(events.StepFault(command.session, command.step_id, "TOLD", "a step that moved nothing"))
    steps(8, 0)
    steps(1, 9)
    steps(2, 9)
    assert checked >= 9
    plain = bench("fixed:0", made=backend(name, num_slots=1, drafter=False, max_model_len=400))
    for number in (2, 3, 4):
        plain.submit(number, texts[number], max_tokens=len(engine.tokens[number]))
    plain.run()
    assert all(plain.tokens[number] == engine.tokens[number] for number in (2, 3, 4))


# ---- the checks notice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_zero", [1, 2, 40])
@pytest.mark.parametrize("name", PAIRS)
def test_with_the_context_write_left_out_in_the_phase_the_check_fails(
    name: str, num_zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of a step that skips the drafter whole: nothing is written, at once or later.

    Without the watch of paranoid mode, which would notice by itself (`test_worker_broken.py`).
    """
    run = opened(name, driver=Driver(backend(name, paranoid=False)))
    with monkeypatch.context() as broken:
        broken.setattr(Phases, "_waits", lambda self, job, window: False)
        broken.setattr(Phases, "project", lambda *arguments: None)
        for _ in range(num_zero):
            run.step(dict.fromkeys(range(3), False))
    run.step(dict.fromkeys(range(3), True))
    for slot in range(3):
        with pytest.raises(AssertionError, match="context rows differ"):
            check_slot(run.driver, name, slot, run.texts[slot])


class Shifted:
    """A runner whose features are those of the row before: what a decode row reads when it forgets the chunk's end."""

    num_uncaptured = 0

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        logits, features = self.inner.forward(batch)
        return logits, features.roll(1, 0)


@pytest.mark.parametrize("chunked", [False, True], ids=["decode", "with chunks"])
@pytest.mark.parametrize("name", PAIRS)
def test_with_features_of_another_row_the_check_fails(name: str, chunked: bool) -> None:
    driver = Driver(backend(name))
    run = Run(driver)
    for slot in range(3):
        run.open(slot, prompts(name)[slot])
    phases = phases_of(driver.backend)
    right, chunks = phases.runner, Chunks()
    phases.runner = Shifted(right)
    run.step(dict.fromkeys(range(3), False), *([chunks.row()] if chunked else []))
    phases.runner = right
    run.step(dict.fromkeys(range(3), True))
    for slot in range(3):
        with pytest.raises(AssertionError, match="context rows differ"):
            check_slot(driver, name, slot, run.texts[slot])
