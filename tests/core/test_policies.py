"""Policies: what a schedule decides while concurrency rises and falls, what is no schedule, and foreign ones."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.plan import READY_TO_DECODE
from dsparkd.scheduler.core.policies import Policy, parse_policy, start_warnings
from dsparkd.scheduler.core.policies.schedule import MaxConcurrency, Schedule
from dsparkd.scheduler.core.policies.told import Told
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import worker
from dsparkd.statemachine.errors import LocalError, Refused

DOCS = Path(__file__).parent.parent.parent / "docs"
TEXT = "schedule:1=7/4=3/8=1"


def scheduled(num_rows: int) -> int:
    """The documented meaning of TEXT, spelled out."""
    return 7 if num_rows <= 1 else 3 if num_rows <= 4 else 1 if num_rows <= 8 else 0


def rise_and_fall(bench: Bench, most: int) -> list[tuple[int, list[tuple[events.Decode, int]]]]:
    """One more request, then one less, every few steps; of each step R and its Decode rows with what they held."""
    seen = []

    def step() -> None:
        ledger = bench.core.ledger
        held = {one.slot: one.held_len for one in ledger.seated.values() if one.state in READY_TO_DECODE}
        bench.tick()
        assert bench.in_flight is not None
        rows = [row for row in bench.in_flight.rows if isinstance(row, events.Decode)]
        seen.append((len(held), [(row, held[row.slot]) for row in rows]))
        bench.answer()

    for number in range(most):
        bench.submit(number, [number + 1], max_tokens=300)
        for _ in range(4):
            step()
    for number in range(most - 1):
        bench.send(events.Cancel(0, number))
        for _ in range(4):
            step()
    return seen


@pytest.mark.parametrize("mean", [1.5, 6.0])
def test_every_step_of_a_schedule_verifies_what_it_says_while_concurrency_rises_and_falls(mean: float) -> None:
    bench = Bench(TEXT, limits=Limits(num_slots=10, max_model_len=512), vocab_size=50, mean=mean)
    seen = rise_and_fall(bench, 10)
    entered = 0
    for num_rows, rows in seen:
        wanted = scheduled(num_rows)
        assert len(rows) == num_rows
        for row, held in rows:
            assert row.draft_len == (min(wanted, held) if wanted else held)
            assert row.propose_len == (7 if wanted else 0)
            entered += wanted == 0 and held > 0
    assert entered == 9  # nine enter the zero phase with a draft and verify it; the tenth is seeded inside
    levels = [num_rows for num_rows, _ in seen]
    top = levels.index(10)
    assert all(level in levels[:top] and level in levels[top:] for level in (1, 2, 4, 5, 8, 9))


def test_rows_with_drafting_off_count_and_disturb_nobody() -> None:
    bench = Bench(TEXT, limits=Limits(num_slots=3, max_model_len=128), vocab_size=50, acceptance=[7])
    for number, most in enumerate((None, 0, 2)):
        bench.submit(number, [number + 1], max_tokens=40, max_draft_len=most)
    bench.run()
    passes = [row for row in bench.commands[1].rows if isinstance(row, events.Decode)]
    assert [(row.draft_len, row.propose_len) for row in passes] == [(3, 7), (0, 0), (2, 7)]
    for number in range(3):
        assert bench.tokens[number] == bench.solo([number + 1], 40)
    assert bench.ended[1][0].counts.num_drafted == 0


def test_max_concurrency_is_a_schedule_of_one_key() -> None:
    limits = Limits(num_slots=5, max_model_len=512)
    runs = [
        rise_and_fall(Bench(text, limits=limits, vocab_size=50), 5) for text in ("max_concurrency:3", "schedule:3=7")
    ]
    assert runs[0] == runs[1]
    assert {row.draft_len for _, rows in runs[0] for row, _ in rows} == {0, 7}


@pytest.mark.parametrize("policy", ["fixed:7", "max_concurrency:9"])
def test_max_draft_len_caps_every_policy(policy: str) -> None:
    bench = Bench(policy, limits=Limits(num_slots=1, max_draft_len=2), vocab_size=50)
    bench.submit(0, [1], max_tokens=30)
    bench.run()
    assert max(row.draft_len for one in bench.commands for row in one.rows if isinstance(row, events.Decode)) == 2


@pytest.mark.parametrize("engine, own", [(2, None), (None, 2), (3, 2)])
def test_a_maximum_holds_for_the_step_that_enters_a_zero_draft_phase_too(engine: int | None, own: int | None) -> None:
    """The slot holds a whole block by then; what is verified of it is the maximum, and nothing is left behind."""
    bench = Bench(Told([3, 0, 0]), limits=Limits(num_slots=1, max_draft_len=engine), vocab_size=50, acceptance=[7])
    bench.submit(0, [1], max_tokens=30, max_draft_len=own)
    lens = []
    for number in range(12):
        bench.want((7, 0, 0)[number % 3])
        bench.tick()
        if bench.in_flight is not None:
            lens += [(row.draft_len, row.propose_len) for row in bench.in_flight.rows if type(row) is events.Decode]
        bench.answer()
    assert set(lens) == {(2, 0), (0, 0), (0, 7)}
    assert bench.tokens[0] == bench.solo([1], 30)[: len(bench.tokens[0])]


BAD_TABLES = {
    "": ["no keys"],
    "4": ["key '4' = ''", "0 or more, as the value"],
    "0=7": ["key '0' = '7'", "1 or more, as the key"],
    "-1=7": ["key '-1' = '7'"],
    "1=7/1=3": ["key '1' = '3': expected each key once, 1 = 7"],
    "1=3/4=7": ["key 4 = 7: expected 3 or less, as 1 rows have"],
    "1=x/b=-2/9=1/10=2": ["key '1' = 'x'", "key 'b' = '-2'", "key 10 = 2: expected 1 or less"],
    "1=7//4=3": ["key '' = ''"],
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_a_bad_schedule_is_refused_with_every_fault(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_policy(f"schedule:{text}")
    assert caught.value.code == "BAD_CONFIG"
    assert all(part in str(caught.value) for part in BAD_TABLES[text])


@pytest.mark.parametrize("text", ["max_concurrency", "max_concurrency:0", "max_concurrency:x"])
def test_a_bad_max_concurrency_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="expected max_concurrency:N"):
        parse_policy(text)


def test_equal_lengths_and_any_order_of_keys_are_legal() -> None:
    assert parse_policy("schedule:8=0/4=3/1=3") == Schedule(((1, 3), (4, 3), (8, 0)))


def test_keys_beyond_num_slots_are_warned_about() -> None:
    assert start_warnings(parse_policy(TEXT), 8) == []
    (warning,) = start_warnings(parse_policy(TEXT), 4)
    assert "key 8 is beyond num_slots = 4" in warning
    assert len(start_warnings(MaxConcurrency(9), 8)) == 1


@pytest.mark.parametrize(
    ("policy", "most", "said"),
    [
        ("schedule:1=9/4=1", None, "wants 9 drafts, the drafter's block has 7"),
        ("schedule:1=3/4=1", None, "expected max_draft_len, which is the drafter's block (7)"),
        ("max_concurrency:2", 8, "max_draft_len = 8: the drafter's block has 7"),
    ],
)
def test_lengths_that_the_drafter_does_not_have_are_refused_at_ready(policy: str, most: int | None, said: str) -> None:
    bench = Bench(policy, limits=Limits(num_slots=2, max_draft_len=most))
    assert bench.core.ledger.worker.state is worker.State.ABANDONED
    assert said in bench.core.ledger.worker.reason


class Wrong:
    """A foreign policy with a bug."""

    name, version, max_len = "wrong", 3, None

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, rows: Sequence[Any], ledger: Any) -> Any:
        return self.answer() if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([7, 7], "returned 2 lengths, expected 1"),
        ([], "returned 0 lengths, expected 1"),
        ([-1], "returned -1 for row 0"),
        ([2.0], "returned 2.0 for row 0"),
        ([True], "returned True for row 0"),
        (None, "decide raised TypeError"),
        (lambda: 1 // 0, "decide raised ZeroDivisionError"),
    ],
)
def test_a_foreign_policy_that_answers_nonsense_is_named(answer: Any, said: str) -> None:
    bench = Bench(Wrong(answer), vocab_size=50)
    bench.submit(0, [1], max_tokens=30)
    with pytest.raises(LocalError) as caught:
        bench.tick()
    assert str(caught.value).startswith("policy wrong (version 3): ")
    assert said in str(caught.value)


def documented_policy() -> Any:
    """The class on the page."""
    code = re.search(r"```python\n(.*?)```", (DOCS / "policies.md").read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["Patient"]


def test_the_ten_lines_on_the_page_are_a_policy_that_works() -> None:
    policy: Policy = documented_policy()("8")
    bench = Bench(policy, vocab_size=50, acceptance=[7])
    bench.submit(0, [1], max_tokens=40)
    bench.run()
    lens = [row.draft_len for one in bench.commands[1:] for row in one.rows if isinstance(row, events.Decode)]
    assert lens[:9] == [0] * 8 + [7]  # the block is drafted in the pass that has seen eight, and verified in the next
    assert bench.tokens[0] == bench.solo([1], 40)
