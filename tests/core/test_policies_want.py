"""What a policy may say with a `Want`, and that a row never gets what others leave over then."""

from collections.abc import Sequence
from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies import Want
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine.errors import LocalError


class Says:
    """A foreign policy that answers with `Want`s."""

    name, version, max_len = "says", 1, None

    def __init__(self, *wants: Any) -> None:
        self.wants = wants

    def decide(self, rows: Sequence[Any], ledger: Any) -> Any:
        return [self.wants[index % len(self.wants)] for index in range(len(rows))]


def test_a_want_says_what_is_verified_and_whether_a_block_follows() -> None:
    policy = Says(7)
    one = Bench(policy, vocab_size=50, acceptance=[7], limits=Limits(num_slots=1, max_model_len=128))
    one.submit(0, [1], max_tokens=100)
    found = []
    for want in (7, Want(2), Want(0), Want(3, propose=False), Want(5), 4, 0, 0):
        policy.wants = (want,)
        one.tick()
        found += [(row.draft_len, row.propose_len) for row in one.commands[-1].rows if isinstance(row, events.Decode)]
        one.answer()
    # A Want without a draft behind it leaves nothing; a plain 0 verifies all that is held.
    assert found == [(2, 7), (0, 7), (3, 0), (0, 7), (4, 7), (7, 0), (0, 0)]
    assert one.tokens[0] == one.solo([1], 100)[: len(one.tokens[0])]


@pytest.mark.parametrize("want", [Want(-1), Want(True), Want(1.5)])  # type: ignore[arg-type]
def test_a_want_that_is_no_length_is_named(want: Want) -> None:
    one = Bench(Says(want), vocab_size=50)
    one.submit(0, [1], max_tokens=30)
    with pytest.raises(LocalError, match=r"policy says \(version 1\): decide returned Want"):
        one.tick()


def test_when_a_step_is_short_of_tokens_each_row_gets_its_share_whatever_others_want() -> None:
    limits = Limits(num_slots=3, max_model_len=128, max_step_tokens=10)
    for first in (0, 7):
        one = Bench(Says(Want(first), Want(7), Want(7)), vocab_size=50, limits=limits)
        for number in range(3):
            one.submit(number, [number + 1], max_tokens=60)
        for _ in range(4):
            one.tick()
            one.answer()
        lens = [row.draft_len for row in one.commands[-1].rows if isinstance(row, events.Decode)]
        assert lens == [min(first, 2), 2, 2]
