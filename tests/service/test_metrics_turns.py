"""What the loop alone can count, driven by hand: any order of turns gives the sums that a reader of outputs gets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.distribution import Distribution
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.service.metrics import FIRST_BOUNDS, GAP_BOUNDS, Metrics, Reading
from dsparkd.scheduler.testing import Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STEP_NS = 1_700_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Edges without peers; its core is not the one that is watched."""
    folder: Path = tmp_path_factory.mktemp("edges")
    made = Service(Settings(target="scripted", bind=f"ipc://{folder}/engine"))
    yield made
    made.close()


class Watched(Bench):
    """A bench whose every input is a turn of its own, as far as metrics can tell; it keeps a reader's sums."""

    def __init__(self, service: Service, **options: Any) -> None:
        self.metrics: Metrics | None = None
        self.at_ns = 10**9
        self.first, self.gap = Distribution(FIRST_BOUNDS), Distribution(GAP_BOUNDS)
        self.arrived: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.rows: list[Any] = []
        super().__init__(**options)
        self.metrics = Metrics(self.core, service.clients, service.worker)

    def send(self, event: events.Input) -> list[results.Output]:
        outputs = super().send(event)
        if self.metrics is None:
            return outputs
        self.at_ns += STEP_NS + 1000 * len(self.records)
        self.metrics.took(event, outputs)
        self.metrics.end_turn(self.at_ns)
        for one in outputs:
            if isinstance(one, results.Accepted):
                self.arrived[one.request] = self.at_ns
            elif isinstance(one, results.Command):
                self.rows += one.rows
            elif isinstance(one, results.Tokens) and not isinstance(event, events.Resume):
                if one.request in self.last:
                    share = (self.at_ns - self.last[one.request]) / len(one.token_ids) / 1e9
                    for _ in one.token_ids:
                        self.gap.add(share)
                else:
                    self.first.add((self.at_ns - self.arrived[one.request]) / 1e9)
                self.last[one.request] = self.at_ns
        return outputs

    def read(self) -> Reading:
        assert self.metrics is not None
        place = self.metrics.ask()
        self.metrics.end_turn(self.at_ns)
        return place.get_nowait()

    def _take(self, outputs: list[results.Output]) -> None:
        """A bench is strict about the order of tokens, and a resume tells some again."""
        again = isinstance(self.records[-1] if self.records else None, events.Resume)
        super()._take([one for one in outputs if not (again and isinstance(one, results.Tokens))])


MOVES = st.lists(
    st.sampled_from(["submit", "step", "step", "step", "tick", "cancel", "resume", "die"]), min_size=20, max_size=60
)


@settings(derandomize=True, max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES, lens=st.lists(st.integers(1, 30), min_size=1, max_size=5), budget=st.sampled_from([9, 512]))
def test_times_and_rows_are_those_of_every_output_in_any_order_of_turns(
    service: Service, moves: list[str], lens: list[int], budget: int
) -> None:
    limits = Limits(num_slots=3, max_model_len=128, max_step_tokens=budget)  # few: rows take turns
    bench = Watched(service, policy="fixed:7", limits=limits, vocab_size=50, mean=3)
    number = 0
    for move in moves:
        if move == "submit":
            bench.submit(number, [number % 50, 2, 3], max_tokens=lens[number % len(lens)])
            number += 1
        elif move == "step":
            bench.tick()
            bench.answer()
        elif move == "tick":
            bench.tick()
        elif move == "die" and bench.core.ledger.worker.respawns < 3:
            bench.lose_worker()
            bench.revive()
        elif bench.core.ledger.requests:
            chosen = next(iter(bench.core.ledger.requests))
            bench.send(events.Cancel(0, chosen) if move == "cancel" else events.Resume(0, chosen, 0))
    bench.run()
    assert bench.metrics is not None
    reading = bench.read()
    for name, mine in (("first", bench.first), ("gap", bench.gap)):
        assert reading.distributions[name].counts == mine.counts
        assert reading.distributions[name].total == pytest.approx(mine.total)
    decode = [row for row in bench.rows if isinstance(row, events.Decode)]
    seeds = [row for row in bench.rows if isinstance(row, events.Seed)]
    assert (reading.sums["decode_rows"], reading.sums["seed_rows"]) == (len(decode), len(seeds))
    assert reading.sums["draft_tokens"] == sum(row.draft_len for row in decode)
    assert reading.sums["seed_tokens"] == sum(len(row.token_ids) for row in seeds)
    assert sum(reading.ended.values()) == number
    kept = (bench.metrics._arrived_ns, bench.metrics._told_ns, bench.metrics._last_told)
    assert [len(one) for one in kept] == [0, 0, 0], "nothing is kept of requests that are over"


def values_of(reading: Reading) -> str:
    values = {name: (one.counts, one.total) for name, one in reading.distributions.items()}
    return repr(attrs.evolve(reading, distributions=values))


def test_a_reading_that_was_handed_out_does_not_change_when_the_engine_goes_on(service: Service) -> None:
    bench = Watched(service, policy="fixed:7")
    assert bench.metrics is not None
    place = bench.metrics.ask()
    assert place.empty(), "the next turn's end fills it"
    bench.submit(0, [1, 2], max_tokens=40)
    reading = place.get_nowait()
    before = values_of(reading)
    bench.run()
    assert values_of(reading) == before
    assert values_of(bench.read()) != before
    bench.metrics.close()
    assert bench.metrics.ask().get_nowait() is bench.metrics.newest, "nobody waits for a turn that never ends"
