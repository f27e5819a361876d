"""Counts are sums over what was reported and came out, never made of settings; a dead drafter is not silent."""

from collections.abc import Sequence
from typing import Any

import attrs
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies.told import Told
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.scripted import ScriptedModel
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(derandomize=True, max_examples=25, deadline=None)
@given(wants=st.lists(st.lists(st.integers(0, 7), min_size=3, max_size=3), min_size=3, max_size=12))
def test_l084_drafted_verified_and_accepted_are_sums_over_the_commands_whatever_the_lengths(
    wants: list[list[int]],
) -> None:
    policy = Told((7,))
    bench = Bench(policy, limits=Limits(num_slots=3, max_model_len=128), vocab_size=50, mean=3.3)
    for number in range(3):
        bench.submit(number, [number + 1], max_tokens=30 + number)
    turn = 0
    while bench.core.ledger.requests:
        policy.wants = wants[turn % len(wants)]
        turn += 1
        bench.tick()
        bench.answer()
    verified = sum(row.draft_len for one in bench.commands for row in one.rows if isinstance(row, events.Decode))
    reported = [row for one in bench.reports if isinstance(one, events.Report) for row in one.rows]
    emitted = [row for row in reported if isinstance(row, events.Emitted)]
    counts = [bench.ended[number][0].counts for number in range(3)]
    assert sum(one.num_verified for one in counts) == verified
    assert sum(one.num_drafted for one in counts) == sum(row.held_len for row in emitted)
    assert sum(sum(one.verified_at) for one in counts) == verified
    assert all(sum(one.accepted_at) == one.num_accepted <= one.num_verified for one in counts)
    stats = bench.core.stats()
    assert stats["tokens_emitted"] == sum(len(tokens) for tokens in bench.tokens.values())
    said = [one for one in bench.outputs if isinstance(one, results.Tokens) and one.draft_len]
    drafting = sum(len(one.token_ids) for one in said)
    assert stats["emitted_drafting"] == sum(one.num_emitted_drafting for one in counts) == drafting
    assert stats["passes"] - stats["zero_passes"] == len(said)


def test_l082_what_stands_behind_a_stop_is_neither_emitted_nor_accepted() -> None:
    """A block whose third token is the stop counts three."""
    alone = Bench("fixed:0", vocab_size=50)
    stop = alone.solo([1], 12)[3]  # the first token is the prompt's own, then the block of the first pass
    assert stop not in alone.solo([1], 12)[:3]
    bench = Bench(vocab_size=50, acceptance=[7])
    bench.submit(0, [1], max_tokens=40, stop_token_ids=frozenset({stop}))
    bench.run()
    counts = bench.ended[0][0].counts
    assert len(bench.tokens[0]) == 4
    assert (counts.num_emitted_drafting, counts.num_accepted) == (3, 3)


class DeadDrafter:
    """A worker whose target works and whose drafter never does."""

    def __init__(self) -> None:
        self.model = ScriptedModel(num_slots=2, max_model_len=128, vocab_size=50, block_len=7)
        self.block_len = 7
        self.lost: str | None = None

    def run_rows(self, rows: Sequence[Any]) -> list[events.ReportRow]:
        self.lost = "the drafter failed: told to"
        found = self.model.run_rows(rows)
        return [attrs.evolve(row, held_len=0) if isinstance(row, events.Emitted) else row for row in found]


def test_l032_a_drafter_that_always_fails_is_said_by_health_and_costs_no_token() -> None:
    bench = Bench("fixed:7", limits=Limits(num_slots=2, max_model_len=128), worker=DeadDrafter)
    bench.submit(0, [1], max_tokens=30)
    bench.run()
    healthy, _, state, reasons = bench.core.health()
    assert not healthy
    assert state == "DEGRADED"
    assert "the worker serves without the drafter failed: told to" in reasons
    counts = bench.ended[0][0].counts
    assert (counts.num_drafted, counts.num_zero_passes) == (0, counts.num_passes)
    plain = ScriptedModel(num_slots=1, max_model_len=128, vocab_size=50, block_len=0)
    assert bench.tokens[0] == plain.continuation([1], 30, params=events.Params())
