"""Whatever happens around a request, it emits what plain decoding of it alone emits, and ends exactly once."""

from typing import Any

import attrs
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench
from hypothesis import given, settings
from hypothesis import strategies as st


class Drawn:
    """A policy that draws a length for each row, zero included."""

    name, version, max_len = "drawn", 1, None

    def __init__(self, data: Any) -> None:
        self.data = data

    def decide(self, rows: Any, ledger: Any) -> list[int]:
        return [self.data.draw(st.integers(0, 7), label="draft_len") for _ in rows]


@attrs.frozen
class Job:
    prompt: tuple[int, ...]
    max_tokens: int
    max_draft_len: int | None


JOBS = st.lists(
    st.builds(
        Job,
        prompt=st.lists(st.integers(0, 49), min_size=1, max_size=20).map(tuple),
        max_tokens=st.integers(1, 25),
        max_draft_len=st.none() | st.integers(0, 9),
    ),
    min_size=1,
    max_size=6,
)


def engine(data: Any, **model: Any) -> Bench:
    limits = Limits(
        num_slots=data.draw(st.integers(1, 3), label="num_slots"),
        max_model_len=64,
        max_step_tokens=data.draw(st.integers(1, 40), label="max_step_tokens"),
        max_restarts=100,
        restart_budget=100,
    )
    return Bench(Drawn(data), limits=limits, vocab_size=50, **model)


def expect_solo(bench: Bench, jobs: list[Job], *, cancelled: frozenset[int] = frozenset()) -> None:
    for request, job in enumerate(jobs):
        length = min(job.max_tokens, 64 - len(job.prompt))
        expected = bench.solo(job.prompt, length)
        got = bench.tokens.get(request, [])
        assert len(bench.ended[request]) == 1
        if request in cancelled:
            assert got == expected[: len(got)]
        else:
            assert got == expected
            assert bench.ended[request][0].reason == "length"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), jobs=JOBS, mean=st.floats(1, 8))
def test_output_does_not_depend_on_neighbours_slots_budget_or_changing_draft_lengths(
    data: Any, jobs: list[Job], mean: float
) -> None:
    bench = engine(data, mean=mean)
    for request, job in enumerate(jobs):
        bench.submit(request, job.prompt, max_tokens=job.max_tokens, max_draft_len=job.max_draft_len)
    bench.run()
    expect_solo(bench, jobs)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), jobs=JOBS)
def test_output_survives_cancels_worker_deaths_and_stale_reports(data: Any, jobs: list[Job]) -> None:
    bench = engine(data, mean=3.4)
    cancelled: set[int] = set()
    waiting = list(enumerate(jobs))
    for _ in range(400):
        if not waiting and not bench.core.ledger.requests and bench.in_flight is None:
            break
        move = data.draw(st.sampled_from(["submit", "step", "step", "step", "cancel", "die", "stale"]), label="move")
        if move == "submit" and waiting:
            request, job = waiting.pop(0)
            bench.submit(request, job.prompt, max_tokens=job.max_tokens, max_draft_len=job.max_draft_len)
        elif move == "step":
            bench.tick()
            if data.draw(st.booleans(), label="answer"):
                bench.answer()
        elif move == "cancel" and bench.core.ledger.requests:
            victim = data.draw(st.sampled_from(sorted(bench.core.ledger.requests)), label="victim")
            cancelled.add(victim)
            bench.send(events.Cancel(0, victim))
        elif move == "die" and data.draw(st.booleans(), label="really"):
            bench.lose_worker()
            bench.revive()
        elif move == "stale" and bench.reports:
            before = bench.core.ledger.fingerprint()
            bench.send(data.draw(st.sampled_from(bench.reports), label="report"))
            assert bench.core.ledger.fingerprint() == before
    for request, job in waiting:
        bench.submit(request, job.prompt, max_tokens=job.max_tokens, max_draft_len=job.max_draft_len)
    bench.run()
    expect_solo(bench, jobs, cancelled=frozenset(cancelled))
    assert bench.core.ledger.free == list(range(bench.limits.num_slots))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), steps=st.integers(0, 12))
def test_a_fork_goes_on_alone_and_alike(data: Any, steps: int) -> None:
    bench = Bench("fixed:3", mean=2.5, vocab_size=50)
    for request in range(4):
        bench.submit(request, range(1, 4 + request), max_tokens=9)
    for _ in range(steps):
        bench.tick()
        bench.answer()
    twin = bench.core.fork()
    before = bench.core.ledger.fingerprint()
    assert twin.ledger.fingerprint() == before
    event: events.Input = data.draw(
        st.sampled_from([events.Tick(10**12), events.Cancel(0, 3), events.Stop(), events.WorkerDied(1, "gone")])
    )
    outputs = twin.handle(event)
    assert bench.core.ledger.fingerprint() == before
    assert [str(one) for one in bench.core.handle(event)] == [str(one) for one in outputs]
    assert bench.core.ledger.fingerprint() == twin.ledger.fingerprint()
