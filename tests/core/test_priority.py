"""The queue: who was seated before, then the lower priority number, in accept order; and it moves nothing else."""

from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench
from hypothesis import given, settings
from hypothesis import strategies as st

LAW = settings(derandomize=True, max_examples=60, deadline=None)
PRIORITIES = st.lists(st.integers(-2, 2), min_size=1, max_size=8)


def crowd(priorities: list[int], *, num_slots: int = 1) -> Bench:
    """A bench whose slots are taken by requests -1, -2, ...; the others wait with the given priorities."""
    bench = Bench(limits=Limits(num_slots=num_slots, max_model_len=64, max_restarts=9, restart_budget=9), vocab_size=50)
    for number in range(num_slots):
        bench.submit(-1 - number, [number, 9], max_tokens=20)
    bench.tick()
    for number, priority in enumerate(priorities):
        bench.submit(number, [number, 1], max_tokens=3, priority=priority)
    return bench


def seated(bench: Bench) -> list[int]:
    """Requests in the order in which their first token came."""
    return [request for request in bench.tokens if request >= 0]


@LAW
@given(PRIORITIES)
def test_the_lower_number_leaves_the_queue_first_and_equals_in_accept_order(priorities: list[int]) -> None:
    bench = crowd(priorities)
    bench.run()
    assert seated(bench) == sorted(range(len(priorities)), key=lambda number: (priorities[number], number))


@LAW
@given(PRIORITIES, st.integers(1, 3))
def test_priority_moves_no_token(priorities: list[int], num_slots: int) -> None:
    bench = crowd(priorities, num_slots=num_slots)
    bench.run()
    for number in range(len(priorities)):
        assert bench.tokens[number] == bench.solo([number, 1], 3)


@LAW
@given(st.lists(st.integers(-2, 2), min_size=2, max_size=4), PRIORITIES)
def test_who_is_requeued_goes_before_everybody_that_was_never_seated_in_accept_order(
    running: list[int], waiting: list[int]
) -> None:
    num_slots = len(running)
    bench = Bench(limits=Limits(num_slots=num_slots, max_model_len=64, max_restarts=9, restart_budget=9), vocab_size=50)
    for number, priority in enumerate(running):
        bench.submit(number, [number, 9], max_tokens=20, priority=priority)
    bench.tick()
    bench.answer()
    for number, priority in enumerate(waiting, start=num_slots):
        bench.submit(number, [number, 1], max_tokens=3, priority=priority)
    bench.tick()
    bench.lose_worker()
    queued = [one.id for one in bench.core.ledger.queue]
    behind = sorted(range(len(waiting)), key=lambda number: (waiting[number], number))
    assert queued == [*range(num_slots), *(num_slots + number for number in behind)]
    bench.revive()
    bench.run()
    for number in range(num_slots):
        assert bench.tokens[number] == bench.solo([number, 9], 20)


def test_two_ledgers_that_differ_in_a_priority_or_in_who_was_seated_are_told_apart() -> None:
    one, other = crowd([0]), crowd([1])
    assert one.core.ledger.fingerprint() != other.core.ledger.fingerprint()
    fresh, again = crowd([0]), crowd([0])
    again.core.ledger.requests[0].front = True
    assert fresh.core.ledger.fingerprint() != again.core.ledger.fingerprint()


def test_a_queue_of_ten_thousand_is_ordered_by_halving() -> None:
    """Each arrival looks at a few places, not at all of them."""
    looked: list[int] = []

    class Priority(int):
        def __lt__(self, other: object) -> bool:
            looked.append(1)
            return int(self) < int(other)  # type: ignore[call-overload, no-any-return]

    limits = Limits(num_slots=1, max_queue=20_000, min_reuse_len=None)
    bench = Bench(limits=limits)
    bench.core.handle(events.ClientHello(0))
    for number in range(10_000):
        options = events.Options(priority=Priority(number * 7919 % 1000))
        bench.core.handle(events.Submit(0, number, (1,), options))
    assert len(bench.core.ledger.queue) == 10_000
    assert len(looked) < 10_000 * 16
