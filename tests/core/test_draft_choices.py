"""Why a draft was as long as it was: the count names a bound that really bound, and the policy where none did."""

from typing import Any

from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.plan import remaining_len
from dsparkd.scheduler.core.policies.told import Told
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.scripted import ScriptedModel
from hypothesis import given, settings
from hypothesis import strategies as st


def counted(bench: Bench) -> dict[str, int]:
    return dict(bench.core.stats()["drafts_short"])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    wants=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    own=st.none() | st.integers(0, 5),
    engine=st.none() | st.integers(0, 6),
    budget=st.sampled_from([3, 5, 512]),
    max_tokens=st.integers(1, 25),
)
def test_what_kept_a_draft_short_is_a_bound_of_that_length_and_none_is_named_where_the_policy_got_its_way(
    wants: list[int], own: int | None, engine: int | None, budget: int, max_tokens: int
) -> None:
    policy = Told((7,))
    limits = Limits(num_slots=1, max_model_len=64, max_draft_len=engine, max_step_tokens=budget)
    bench = Bench(policy, limits=limits, vocab_size=50, mean=2.5)
    bench.submit(0, [1, 2], max_tokens=max_tokens, max_draft_len=own)
    turn = 0
    while bench.core.ledger.requests:
        want = wants[turn % len(wants)]
        policy.wants = (want,)
        turn += 1
        one = bench.core.ledger.requests[0]
        bounds: dict[str, Any] = {
            "request": own,
            "engine": engine,
            "remaining": remaining_len(one, limits) - 1,
            "held": one.held_len,
            "budget": budget - 1,
        }
        goal = want or one.held_len
        before = counted(bench)
        bench.tick()
        rows = [] if bench.in_flight is None else bench.in_flight.rows
        named = [name for name, count in counted(bench).items() if count != before.get(name, 0)]
        for row in rows:
            if isinstance(row, events.Decode) and row.draft_len != goal:
                (name,) = named
                assert bounds[name] == row.draft_len < goal
                assert all(bound is None or bound >= row.draft_len for bound in bounds.values())
            else:
                assert named == []
        bench.answer()


def test_without_a_drafter_nobody_is_said_to_have_chosen() -> None:
    plain = ScriptedModel(num_slots=2, max_model_len=64, vocab_size=50, block_len=0)
    bench = Bench("fixed:7", limits=Limits(num_slots=2, max_model_len=64), worker=lambda: plain)
    bench.submit(0, [1], max_tokens=9)
    bench.run()
    assert counted(bench) == {"no_drafter": 8}
