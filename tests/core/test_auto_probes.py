"""The policy `auto` looks now and then at what it does not do, and never so often that it loses by looking."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.acceptance import Acceptance
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies import parse_policy
from dsparkd.scheduler.core.policies.auto import PROBE_LEN, PROBE_SHARE, SELDOM, TRIAL_LEN, Auto, _trial, best_lengths
from dsparkd.scheduler.core.step_costs import Kind, StepCosts, kind_of
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.testing import Bench
from hypothesis import given, settings
from hypothesis import strategies as st

TIMES = {"fingerprint": (), "context_len": 64, "rows": (1, 8), "widths": (1, 8)}
CHEAP = CostTable(**TIMES, target_ns=((1000, 2000), (2500, 9000)), draft_ns=(600, 1500))
LINEAR = CostTable(**TIMES, target_ns=((1000, 8000), (8000, 64000)), draft_ns=(600, 4800))  # drafting never pays


class Timed(Bench):
    """Steps take what the table says, times what `slower` says of their kind and number."""

    slower: Callable[[Kind, int], float] = staticmethod(lambda kind, number: 1.0)

    def send(self, event: events.Input) -> list[Any]:
        if type(event) is events.Report:
            time_ns = self.time_ns(self.commands[-1].rows)
            event = attrs.evolve(event, cost_ns=int(time_ns))
        return super().send(event)

    def time_ns(self, rows: Sequence[Any]) -> float:
        lens = [row.draft_len for row in rows if type(row) is events.Decode]
        if not lens or len(lens) < len(rows) or self.costs is None:
            return 10_000.0
        drafting = sum(row.propose_len > 0 for row in rows)
        known = self.costs.target(len(lens), len(lens) + sum(lens)) + self.costs.draft(drafting)
        return known * self.slower(kind_of(lens), len(self.commands))


def bench_of(costs: CostTable, policy: Any = "auto", **model: Any) -> Timed:
    limits = Limits(num_slots=8, max_model_len=30_000, max_step_tokens=512)
    return Timed(policy, limits=limits, vocab_size=50, costs=costs, **model)


def decodes(bench: Bench) -> list[list[events.Decode]]:
    return [rows for one in bench.commands if (rows := [row for row in one.rows if type(row) is events.Decode])]


def drafting(bench: Bench) -> list[bool]:
    return [any(row.draft_len for row in rows) for rows in decodes(bench)]


def time_a_token(policy: str, costs: CostTable, accepted_len: int, num_rows: int) -> float:
    bench = bench_of(costs, policy, acceptance=[accepted_len])
    for number in range(num_rows):
        bench.submit(number, [number + 1], max_tokens=900)
    bench.run(max_steps=50_000)
    return sum(bench.time_ns(one.rows) for one in bench.commands) / sum(map(len, bench.tokens.values()))


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("accepted_len", [0, 3, 4, 7])
def test_where_drafting_never_pays_looking_costs_less_than_three_percent(accepted_len: int, num_rows: int) -> None:
    """Drafts may stand as often as they like: a probe that went well is repeated only if drafting would then pay."""
    plain = time_a_token("fixed:0", LINEAR, accepted_len, num_rows)
    assert plain / time_a_token("auto", LINEAR, accepted_len, num_rows) >= 0.97


@pytest.mark.parametrize("num_users", [1, 4])
def test_short_requests_that_became_predictable_are_found_though_none_lives_long_enough_to_wait(num_users: int) -> None:
    good = False
    bench = bench_of(CHEAP, acceptance=lambda number, length: 7 if good else 0)
    bench.submit(0, [1], max_tokens=300)
    bench.run()
    assert sum(drafting(bench)[-100:]) <= 1
    good, before = True, len(decodes(bench))
    for number in range(1, 60, num_users):
        for user in range(num_users):
            bench.submit(number + user, [number + user], max_tokens=PROBE_LEN // 2 - 4)
        bench.run()
    since = drafting(bench)[before:]
    assert since.index(True) <= PROBE_LEN
    assert sum(since[-60:]) >= 45


def test_a_neighbour_with_drafting_off_makes_nobody_probe_more_often() -> None:
    def probes(**options: Any) -> int:
        bench = bench_of(CHEAP, acceptance=[0])
        bench.submit(0, [1], max_tokens=1400)
        bench.submit(1, [2], max_tokens=1400, **options)
        bench.run()
        lens = [next(row.draft_len for row in rows if row.slot == 0) for rows in decodes(bench)[:1390]]
        return sum(length > 0 for length in lens)

    assert probes(max_draft_len=0) <= probes() + 2


def test_a_probe_that_costs_much_is_rare() -> None:
    bench = bench_of(LINEAR, acceptance=[0])
    bench.submit(0, [1], max_tokens=3000)
    bench.run()
    at = [index for index, yes in enumerate(drafting(bench)) if yes]
    price = (LINEAR.target(1, 8) + LINEAR.draft(1) - LINEAR.target(1, 1)) / LINEAR.target(1, 1)
    assert len(at) > 3
    assert min(later - earlier for earlier, later in pairwise(at[1:])) >= PROBE_SHARE * price > PROBE_LEN


def test_a_stalled_step_does_not_keep_it_from_drafting() -> None:
    """Of one step that took 3,000 times as long, at an acceptance where drafting pays by little more than a tenth."""
    for stalled in Kind:
        bench = bench_of(CHEAP, acceptance=[1])
        seen: list[int] = []

        def once(kind: Kind, number: int, stalled: Kind = stalled, seen: list[int] = seen) -> float:
            if kind is not stalled or number < 60 or seen not in ([], [number]):
                return 1.0
            seen[:] = [number]
            return 3000.0

        bench.slower = once
        bench.submit(0, [1], max_tokens=1200)
        bench.run()
        assert sum(drafting(bench)[-300:]) > 200, stalled.name


def test_resting_is_measured_now_and_then_where_drafting_promises_little_more() -> None:
    bench = bench_of(CHEAP, acceptance=[1])
    bench.submit(0, [1], max_tokens=1200)
    bench.run()
    rested = [at for at, rows in enumerate(decodes(bench)) if not any(row.draft_len or row.propose_len for row in rows)]
    assert 3 <= len(rested) <= 8 + len(decodes(bench)) // TRIAL_LEN
    assert max(later - earlier for earlier, later in pairwise(rested)) <= TRIAL_LEN + 4
    far = bench_of(CHEAP, acceptance=[7])
    far.submit(0, [1], max_tokens=1200)
    far.run()
    assert all(drafting(far)[10:-1]), "nobody asks where the answer is plain"


def test_beside_chunks_resting_would_teach_nothing_so_nobody_rests() -> None:
    bench = bench_of(CHEAP, acceptance=[1])
    bench.submit(0, [1], max_tokens=1200)
    for _ in range(60):
        bench.tick()
        bench.answer()
    known = bench.core.ledger.step_costs
    bench.core.ledger.step_costs = attrs.evolve(
        known, since=(3 * TRIAL_LEN, 0, 0), counts=(9.0, *known.counts[1:]), ratios=(9.0, *known.ratios[1:])
    )
    rows = list(bench.core.ledger.requests.values())
    assert bench.core.policy.decide(rows, bench.core.ledger) == [0]
    bench.submit(1, list(range(1, 40)) * 500, max_tokens=2)
    first = len(bench.commands)
    for _ in range(30):
        bench.tick()
        bench.answer()
    mixed = bench.commands[first:]
    assert all(any(type(row) is events.Seed for row in one.rows) for one in mixed)
    lens = [row.draft_len for one in mixed for row in one.rows if type(row) is events.Decode]
    assert sum(length > 0 for length in lens) > 20


def test_who_drafts_goes_on_a_little_longer_and_who_rests_waits_a_little_longer() -> None:
    bench = bench_of(CHEAP, acceptance=[0])
    bench.submit(0, [1], max_tokens=50)
    bench.tick()
    bench.answer()
    one = bench.core.ledger.requests[0]

    def drafts(chance: float, held_len: int) -> bool:
        one.acceptance = Acceptance((1e6,) * 7, (1e6 * chance,) * 7, rest_len=1)
        one.held_len = held_len
        return bench.core.policy.decide([one], bench.core.ledger) != [0]

    chances = [number / 1000 for number in range(1001)]
    resting, holding = ([drafts(chance, held_len) for chance in chances] for held_len in (0, 7))
    assert (resting, holding) == (sorted(resting), sorted(holding)), "the more stands, the rather it drafts"
    assert 5 <= sum(holding) - sum(resting) <= 40, "a band in which both stay as they are, and no wide one"


@settings(max_examples=100, deadline=None)
@given(
    chances=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    factors=st.tuples(*[st.floats(0.2, 5)] * 3),
    data=st.data(),
)
def test_the_choice_is_no_worse_than_any_it_considers_by_what_steps_really_take(
    chances: list[float], factors: tuple[float, ...], data: st.DataObject
) -> None:
    survivals = [[chance ** (place + 1) for place in range(7)] for chance in chances]

    def rate(lens: Sequence[int]) -> float:
        drafting = sum(length > 0 for length in lens)
        tokens = len(lens) + sum(sum(one[:length]) for one, length in zip(survivals, lens, strict=True))
        time_ns = CHEAP.target(len(lens), len(lens) + sum(lens)) + CHEAP.draft(drafting)
        return tokens / (factors[kind_of(lens)] * time_ns)

    lengths, advantage = best_lengths(survivals, CHEAP, factors=factors)
    rest = [0] * len(chances)
    assert rate(lengths) == pytest.approx(advantage * rate(rest))
    for other in (rest, [data.draw(st.integers(1, 7))] * len(chances)):
        assert rate(lengths) >= rate(other) * (1 - 1e-9)


def test_only_lengths_that_the_engine_allows_are_weighed() -> None:
    """With a maximum of 1 the hopes of a whole block must not make it draft."""
    settled = Settings(target="t", policy="auto", max_draft_len=1).draft_policy()
    assert settled == Auto(max_len=1)
    dear = attrs.evolve(CHEAP, target_ns=((1000, 1400), (2500, 9000)))
    limits = Limits(num_slots=1, max_model_len=4096, max_draft_len=1)
    for made, worth in ((settled, False), (Auto(), True)):
        bench = Timed(made, limits=limits, vocab_size=50, costs=dear, acceptance=[0, 1])
        bench.submit(0, [1], max_tokens=400)
        bench.run()
        assert (sum(drafting(bench)) > 100) is worth, "one draft of two stands, at the price of a block"
        assert all(row.draft_len <= 1 for rows in decodes(bench) for row in rows)
    none = bench_of(CHEAP, Auto(max_len=0))
    none.submit(0, [1], max_tokens=300)
    none.run()
    assert not any(drafting(none))


@settings(max_examples=25, deadline=None)
@given(
    accepts=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    owns=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=5),
    text=st.sampled_from(["auto", "fixed:7", "schedule:1=7/2=3/4=0", "max_concurrency:2"]),
    known=st.builds(StepCosts, st.tuples(*[st.floats(0, 32)] * 3), st.tuples(*[st.floats(0, 1e9)] * 3)),
)
def test_no_policy_asks_for_what_is_not_there_and_none_sees_tokens_or_the_clock(
    accepts: list[int], owns: list[int | None], text: str, known: StepCosts
) -> None:
    def run(vocab: int, pause_ms: int) -> list[list[tuple[int, int]]]:
        bench = bench_of(CHEAP, parse_policy(text), acceptance=accepts)
        bench.core.ledger.step_costs = known
        for number, own in enumerate(owns):
            bench.submit(number, [(number * vocab) % 40 + 1] * 3, max_tokens=40, max_draft_len=own)
        for _ in range(400):
            held = {one.slot: one.held_len for one in bench.core.ledger.seated.values()}
            twin = bench.core.fork()
            bench.tick(milliseconds=pause_ms)
            if bench.in_flight is None:
                break
            said = twin.handle(events.Tick(bench.now_ns))
            assert [one.rows for one in said if hasattr(one, "rows")] == [bench.in_flight.rows]
            for row in bench.in_flight.rows:
                assert type(row) is not events.Decode or 0 <= row.draft_len <= held[row.slot]
            bench.answer()
        assert not bench.core.ledger.requests
        return [[(row.draft_len, row.propose_len) for row in rows] for rows in decodes(bench)]

    assert run(1, 1) == run(7, 50)


def test_an_engine_that_rests_where_drafting_is_close_tries_it_and_learns_that_it_pays() -> None:
    """Whatever the table says: what a step with drafts takes only such a step tells."""
    known = StepCosts(counts=(30.0, 0.0, 0.0), ratios=(30.0, 0.0, 0.0), since=(0, SELDOM * TRIAL_LEN // 8, 0))
    rows = 1

    def told(chance: float, known: StepCosts = known) -> int | None:
        survivals, factors = [[chance]] * rows, known.factors()
        _, advantage = best_lengths(survivals, CHEAP, factors=factors)
        return _trial(survivals, advantage, known, costs=CHEAP, factors=factors)

    # The chance at which one draft is worth a little less than what it costs.
    even = (CHEAP.target(rows, 2 * rows) + CHEAP.draft(rows)) / CHEAP.target(rows, rows) - 1
    assert told(0.98 * even) == 1
    assert told(1.02 * even) is None  # it drafts, and has just rested
    assert told(0.1 * even) is None  # far from it
    count = attrs.evolve(known, counts=(30.0, 9.0, 0.0), ratios=(30.0, 9.0, 0.0))
    for since, tries in ((1, True), (2, False), (SELDOM * TRIAL_LEN - 1, False), (SELDOM * TRIAL_LEN, True)):
        later = attrs.evolve(count, since=(0, SELDOM * TRIAL_LEN + since, 0))
        assert (told(0.98 * even, later) == 1) == tries, since
