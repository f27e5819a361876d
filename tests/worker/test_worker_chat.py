"""Chats of many turns on few slots, real core over real worker: reuse changes no token, nor what is accepted."""

from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.testing import Bench
from worker_support import bench, samples

TURNS = 20
NEW = 3  # tokens of a user's turn
ANSWER = 4


def chat(*, reuse: bool, num_slots: int, window: int | None) -> tuple[Bench, list[list[int]]]:
    """Two chats, one beginning long and one short, take turns. Return the bench and what was answered."""
    one = bench(
        "fixed:4",
        limits={"min_reuse_len": 2 if reuse else None},
        num_slots=num_slots,
        max_model_len=200,
        drafter_window=window,
    )
    texts = [list(samples("vanilla")[0]["prompt_ids"] * 3)[:40], list(samples("vanilla")[1]["prompt_ids"])[:5]]
    answers = []
    for turn in range(TURNS):
        text = texts[turn % 2]
        text += [(7 * turn + index) % 256 for index in range(NEW)]
        one.submit(turn, text, max_tokens=ANSWER)
        one.run()
        answers.append(one.tokens[turn])
        text += one.tokens[turn]
    return one, answers


def accepted(one: Bench) -> list[Any]:
    return [one.ended[turn][0].counts.accepted_at for turn in range(TURNS)]


@pytest.mark.parametrize("window", [None, 12])
def test_twenty_turns_of_two_chats_are_answered_and_accepted_as_without_reuse(window: int | None) -> None:
    cold, expected = chat(reuse=False, num_slots=2, window=window)
    for num_slots in (1, 2):
        warm, answers = chat(reuse=True, num_slots=num_slots, window=window)
        assert answers == expected
        assert accepted(warm) == accepted(cold)
        reused = [warm.ended[turn][0].counts.prefix_tokens_reused for turn in range(TURNS)]
        assert (sum(reused[2:]) > 0) == (num_slots == 2)
        faults = [row for report in warm.reports for row in report.rows if isinstance(row, events.RowFault)]  # type: ignore[union-attr]
        assert faults == []
