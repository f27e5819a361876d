"""The policy `confidence` in the core: same text, what is kept with a draft, what it needs, what is refused."""

from typing import Any

import attrs
import pytest
from confidence_support import FORMS, bench, decodes, head
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies import parse_policy, start_warnings
from dsparkd.scheduler.core.policies.confidence import (
    BUDGET,
    Confidence,
)
from dsparkd.scheduler.testing import Bench, Faults
from dsparkd.statemachine import worker
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(derandomize=True, max_examples=12, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    logits=st.lists(st.lists(st.sampled_from([-50.0, -1.0, 0.5, 3.0, 50.0]), min_size=7, max_size=7), min_size=8),
    max_step_tokens=st.sampled_from([6, 20, 512]),
)
def test_l084_no_confidence_changes_a_token_and_every_count_is_a_sum(
    form: str, logits: list[list[float]], max_step_tokens: int
) -> None:
    limits = Limits(num_slots=3, max_model_len=128, max_step_tokens=max_step_tokens)
    one = bench(form, limits=limits, confidence=lambda num_true: logits[num_true])
    for number in range(5):
        one.submit(number, [number + 1] * 4, max_tokens=40, max_draft_len=(None, 3, 0, None, 1)[number])
    for _ in range(6):
        one.tick()
        one.answer()
    one.lose_worker()
    one.revive()
    one.run()
    for number in range(5):
        assert one.tokens[number] == one.solo([number + 1] * 4, 40)
    assert one.ended[2][0].counts.num_drafted == 0
    counts = [one.ended[number][0].counts for number in range(5)]
    reported = {(report.session, report.step_id) for report in one.reports}
    verified = sum(
        row.draft_len
        for command in one.commands
        if (command.session, command.step_id) in reported
        for row in command.rows
        if isinstance(row, events.Decode)
    )
    assert sum(each.num_verified for each in counts) == verified


def test_what_is_verified_follows_the_confidence_and_a_block_is_drafted_in_every_pass() -> None:
    for logits, expected in (([50.0] * 7, 7), ([50.0] * 3 + [-50.0] * 4, 3), ([-50.0] * 7, 0)):
        one = bench(confidence=lambda num_true, logits=logits: logits, acceptance=[7])
        one.submit(0, [1], max_tokens=60)
        one.run()
        rows = decodes(one)[:5]
        assert [row.draft_len for row in rows] == [expected] * 5
        assert [row.propose_len for row in rows] == [7] * 5


def test_the_budget_form_decides_by_the_last_draft_and_chooses_by_the_present_one() -> None:
    blocks = iter([[50.0] * 2 + [-50.0] * 5, [50.0] * 7, [-50.0] * 7, *[[0.0] * 7] * 40])
    one = bench("confidence:budget", confidence=lambda num_true: next(blocks), acceptance=[7])
    one.submit(0, [1], max_tokens=60)
    one.run()
    # Nothing is over yet: 0. The first draft promised two, all of the second would stand: 2. Nothing is promised
    # by the third draft itself, whatever the budget of seven.
    assert [row.draft_len for row in decodes(one)[:3]] == [0, 2, 0]


def test_l024_absent_confidence_is_absence_and_the_next_block_is_wanted() -> None:
    """A drafter that fails holds nothing: no confidence of 0 or 1 stands for that, and it may draft again."""
    one = bench(faults=Faults(drafter=frozenset({1, 2, 3})), acceptance=[7])
    one.submit(0, [1], max_tokens=40)
    one.tick()
    one.answer()
    assert one.core.ledger.requests[0].held_confidence is None
    one.run()
    rows = decodes(one)
    assert [(row.draft_len, row.propose_len) for row in rows[:3]] == [(0, 7)] * 3
    assert rows[3].draft_len > 0
    assert one.tokens[0] == one.solo([1], 40)


def test_confidences_are_kept_with_the_draft_and_gone_with_it() -> None:
    one = bench(limits=Limits(num_slots=1, max_model_len=128))
    one.submit(0, [1], max_tokens=60)
    request = one.core.ledger.requests[0]
    held = []
    for _ in range(3):
        one.tick()
        one.answer()
        held.append(request.held_confidence)
    assert all(one is not None and len(one) == 7 for one in held)
    assert request.past_confidence == held[-2]
    twin = one.core.fork().ledger
    assert twin.fingerprint() == one.core.ledger.fingerprint()
    for name in ("held_confidence", "past_confidence"):
        before = twin.fingerprint()
        setattr(twin.requests[0], name, (0.25,) * 7)
        assert twin.fingerprint() != before
    one.lose_worker()
    assert (request.held_confidence, request.past_confidence) == (None, None)


def test_policies_without_need_of_confidences_keep_none() -> None:
    one = bench("fixed:7", confidence=None)
    one.submit(0, [1], max_tokens=60)
    one.tick()
    one.answer()
    assert one.core.ledger.requests[0].held_len == 7
    assert one.core.ledger.requests[0].held_confidence is None
    assert not one.core.needs_confidence


def test_it_decides_the_same_again() -> None:
    def run() -> list[Any]:
        one = bench()
        for number in range(6):
            one.submit(number, [number + 1] * 3, max_tokens=40)
        one.run()
        return one.commands

    first = run()
    assert first == run()
    lens = [row.draft_len for command in first for row in command.rows if isinstance(row, events.Decode)]
    assert len(set(lens)) > 2, "lengths vary, or nothing was shown"


@pytest.mark.parametrize("form", FORMS)
def test_a_drafter_without_the_head_or_a_worker_without_costs_is_refused_by_name(form: str) -> None:
    one = bench(form, confidence=None)
    assert one.core.ledger.worker.state is worker.State.ABANDONED
    assert f"the policy {form} needs confidences" in one.core.ledger.worker.reason
    assert "enable_confidence_head" in one.core.ledger.worker.reason
    other = Bench(form, confidence=head)
    assert other.core.ledger.worker.state is worker.State.ABANDONED
    assert f"the policy {form} needs a cost table" in other.core.ledger.worker.reason


def test_without_a_drafter_nobody_needs_confidences() -> None:
    one = bench(block_len=0, confidence=None, mean=1.0)
    one.submit(0, [1], max_tokens=10)
    one.run()
    assert one.tokens[0] == one.solo([1], 10)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperatures": (1.0,) * 4}, "has 4 temperatures: expected 7"),
        ({"fingerprint": (("drafter", "d2"),)}, "fitted for drafter = 'd2': expected this worker's 'd1'"),
    ],
)
def test_a_calibration_of_another_drafter_is_refused(fields: dict[str, Any], said: str) -> None:
    one = bench(Confidence(**fields))
    assert one.core.ledger.worker.state is worker.State.ABANDONED
    assert said in one.core.ledger.worker.reason
    fits = Confidence(temperatures=(1.0,) * 7, fingerprint=(("drafter", "d1"), ("tokenizer", "x")))
    assert bench(fits).core.ledger.worker.state is worker.State.READY


@pytest.mark.parametrize("logits", [[1.0] * 6, [float("nan")] * 7, [float("inf")] * 7, None])
def test_a_worker_that_reports_no_confidence_for_each_draft_breaks_its_contract(logits: list[float] | None) -> None:
    one = bench(confidence=lambda num_true: [1.0] * 7)
    one.submit(0, [1], max_tokens=40)
    one.tick()
    assert one.in_flight is not None
    (row,) = one.worker.run_rows(one.in_flight.rows)
    assert isinstance(row, events.Emitted)
    row.held_confidence_logits = logits
    one.send(events.Report(1, one.in_flight.step_id, [row]))
    assert one.core.ledger.worker.state is worker.State.DEAD
    assert "held_confidence_logits" in one.core.ledger.worker.reason


def test_text_forms() -> None:
    assert parse_policy("confidence") == Confidence()
    assert parse_policy("confidence:budget") == Confidence(form=BUDGET)
    assert [parse_policy(text).name for text in FORMS] == list(FORMS)
    for text in ("confidence:", "confidence:7", "confidence:early_stop"):
        with pytest.raises(Refused, match="expected confidence or confidence:budget"):
            parse_policy(text)


def test_a_maximum_of_one_behaves_as_fixed_1_and_says_so() -> None:
    policy = attrs.evolve(parse_policy("confidence"), max_len=1)
    (warning,) = start_warnings(policy, 4)
    assert "max_draft_len = 1 leaves nothing to choose, it behaves as fixed:1" in warning
    assert start_warnings(parse_policy("confidence"), 4) == []
    runs = []
    for one in (bench(policy, confidence=lambda num_true: [-50.0] * 7), bench("fixed:1")):
        one.submit(0, [1], max_tokens=40)
        one.run()
        runs.append(one.commands)
    assert runs[0] == runs[1]


def test_a_maximum_cuts_what_is_verified_and_never_what_is_kept() -> None:
    one = bench(attrs.evolve(parse_policy("confidence"), max_len=2), confidence=lambda num_true: [50.0] * 7)
    one.submit(0, [1], max_tokens=60)
    one.run()
    assert [(row.draft_len, row.propose_len) for row in decodes(one)[:4]] == [(2, 7)] * 4
