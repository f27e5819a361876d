"""Traces: what was recorded replays to the last digest, and whatever a file holds is read or refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, plan
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies.told import Told
from dsparkd.scheduler.proof.scopes import SMALL
from dsparkd.scheduler.proof.world import EngineWorld
from dsparkd.scheduler.service.packing import CLASSES, Packing, pack, unpack
from dsparkd.scheduler.service.snapshots import freeze, thaw
from dsparkd.scheduler.service.trace_writer import TraceWriter, described, permutation
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.cutting import cut
from dsparkd.scheduler.trace.reading import Event, read_trace
from dsparkd.scheduler.trace.replay import first_difference
from dsparkd.scheduler.trace.rounds import models_of, rounds
from dsparkd.scheduler.trace.scripted import Faults
from dsparkd.statemachine.errors import Refused
from dsparkd.statemachine.explore import explore
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = Limits(num_slots=3, max_model_len=128, max_queue=8)
COSTS = CostTable(
    fingerprint=(("drafter", "d1"), ("target", "t1")),
    context_len=64,
    rows=(1, 4),
    widths=(1, 8),
    target_ns=((100, 170), (200, 900)),
    draft_ns=(30, 60),
)
KEY = b"a key of sixteen bytes or more"


def head(num_true: int) -> list[float]:
    """A confidence head that is sure of drafts that stand and of one more."""
    return [2.0 - 0.3 * index if index < num_true + 1 else -1.5 for index in range(7)]


class Recorded(Bench):
    """A bench that records everything from its first input on."""

    def __init__(self, path: Path, policy: str = "fixed:7", **options: Any) -> None:
        self.writer: TraceWriter | None = None
        self.path, self.trace_options = (
            path,
            {k: options.pop(k) for k in ("full", "redact_key", "segment_bytes") if k in options},
        )
        super().__init__(policy, limits=LIMITS, **options)

    def send(self, event: events.Input) -> list[Any]:
        if self.writer is None:
            policy = described(self.core.policy, None)
            self.writer = TraceWriter(self.path, self.core, policy=policy, **self.trace_options)
            self.writer.know_vocabulary(1000)
        outputs = super().send(event)
        self.writer.took(event, outputs, name=f"r{event.request}" if type(event) is events.Submit else None)
        self.writer.end_turn()
        return outputs

    def close(self) -> None:
        assert self.writer is not None
        self.writer.close()


def busy(path: Path, **options: Any) -> Recorded:
    """Cancels, a worker's death, faults, a refusal, zero-draft requests, a drain."""
    one = Recorded(
        path, faults=Faults(steps=frozenset({4}), rows=frozenset({(9, 1)}), drafter=frozenset({6})), **options
    )
    for request in range(9):
        one.submit(request, [request, 5, 6, 7] * 4, max_tokens=20, max_draft_len=0 if request == 3 else None)
        one.tick()
        one.answer()
    one.send(events.Cancel(0, 2))
    one.lose_worker()
    one.revive()
    one.submit(20, [1] * 200)
    for _ in range(12):
        one.tick()
        one.answer()
    one.send(events.Drain())
    one.run()
    one.close()
    return one


@pytest.mark.parametrize("policy", ["fixed:7", "schedule:1=7/2=3/3=1", "max_concurrency:2", "fixed:0"])
def test_what_was_recorded_replays_to_the_last_digest(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "t.dsptrace"
    one = busy(path, policy=policy)
    count, difference = first_difference(path)
    assert difference is None
    assert count == len(one.records)


def test_an_engine_that_plans_otherwise_is_noticed_with_what_led_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.dsptrace"
    busy(path, full=True)
    plain = plan.lengths

    def shorter(*args: Any, **options: Any) -> tuple[int, int]:
        draft_len, propose_len = plain(*args, **options)
        return min(draft_len, 2), propose_len

    monkeypatch.setattr(plan, "lengths", shorter)
    _, difference = first_difference(path)
    assert difference is not None
    assert difference.then is not None
    assert difference.then != difference.now
    assert "VERIFYING" in str(difference.before[-1])


def test_another_policy_differs_where_it_first_decides_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "t.dsptrace"
    busy(path)
    _, difference = first_difference(path, policy="fixed:2")
    assert difference is not None
    assert isinstance(difference.event.input, events.Tick)


def test_a_redacted_trace_replays_and_holds_no_token_of_the_prompts(tmp_path: Path) -> None:
    plain, redacted = tmp_path / "plain.dsptrace", tmp_path / "redacted.dsptrace"
    busy(plain, full=True)
    busy(redacted, full=True, redact_key=KEY)
    assert first_difference(redacted)[1] is None
    tokens = permutation(1000, KEY)
    assert sorted(tokens) == list(range(1000))
    pairs = zip(read_trace(plain), read_trace(redacted), strict=True)
    submits = [
        (one.input, other.input)
        for one, other in pairs
        if isinstance(one, Event) and isinstance(other, Event) and isinstance(one.input, events.Submit)
    ]
    assert submits
    for one, other in submits:
        assert isinstance(other, events.Submit)
        assert other.prompt == tuple(tokens[token] for token in one.prompt)
        assert other.prompt != one.prompt
    names = {entry.name for entry in read_trace(redacted) if isinstance(entry, Event)}
    assert names == {None}


def test_every_later_file_of_a_rotated_trace_replays_alone_and_all_of_them_together(tmp_path: Path) -> None:
    for redact_key in (None, KEY):
        folder = tmp_path / ("redacted" if redact_key else "plain")
        folder.mkdir()
        one = busy(folder, segment_bytes=3000, redact_key=redact_key)
        files = sorted(folder.iterdir())
        assert len(files) > 3
        counts = [first_difference(file) for file in files]
        assert all(difference is None for _, difference in counts)
        assert sum(count for count, _ in counts) == len(one.records)
        assert first_difference(folder) == (len(one.records), None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A trace and how many inputs it has."""
    path = tmp_path_factory.mktemp("recorded") / "t.dsptrace"
    return path, len(busy(path).records)


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_part_of_a_trace_is_a_trace_that_replays(
    tmp_path_factory: pytest.TempPathFactory, recorded: tuple[Path, int], data: st.DataObject
) -> None:
    whole, num_inputs = recorded
    begin = data.draw(st.integers(0, num_inputs - 1))
    until = data.draw(st.integers(begin + 1, num_inputs))
    part = tmp_path_factory.mktemp("cut") / "part.dsptrace"
    assert cut(whole, part, begin=begin, until=until) == until - begin
    assert first_difference(part) == (until - begin, None)


def test_rounds_of_a_trace_are_the_drafts_that_were_verified_with_the_confidence_in_them(tmp_path: Path) -> None:
    path = tmp_path / "t.dsptrace"
    one = Recorded(path, "confidence", costs=COSTS, confidence=head, mean=3.3)
    for request in range(6):
        one.submit(request, [request, 5, 6, 7], max_tokens=30)
    one.run()
    one.close()
    found = list(rounds(path))
    verified = [
        (row.draft_len, got.accepted_len)
        for command, report in zip(one.commands, one.reports, strict=True)
        for row, got in zip(command.rows, report.rows, strict=True)  # type: ignore[union-attr]
        if isinstance(row, events.Decode) and row.draft_len
    ]
    assert [(each.draft_len, each.accepted_len) for each in found] == verified
    blocks = [head(num_true) for num_true in range(8)]
    assert all(any(list(each.confidence_logits) == block[: each.draft_len] for block in blocks) for each in found)
    assert models_of(path) == dict(COSTS.fingerprint)


# ---- snapshots and packing --------------------------------------------------------------------------------------


def worlds() -> Iterator[EngineWorld]:
    """Worlds of every small scope, each twentieth of those that the explorer comes by."""
    for scope in SMALL:
        kept: list[EngineWorld] = []
        seen = 0

        def watch(before: EngineWorld, move: Any, after: EngineWorld, way: Any, kept: Any = kept) -> None:
            nonlocal seen
            seen += 1
            if seen % 23 == 0:
                kept.append(before)

        explore(EngineWorld(scope), watch=watch, max_states=600)
        yield from kept[:40]


def test_a_core_that_is_thawed_is_the_core_that_was_frozen_wherever_the_explorer_comes_by() -> None:
    count = 0
    for world in worlds():
        frozen = freeze(world.core)
        twin = Core(world.core.limits, Told())
        thaw(twin, frozen)
        assert twin.ledger.fingerprint() == world.core.ledger.fingerprint()
        assert freeze(twin) == frozen
        count += 1
    assert count > 200


def test_every_kind_of_object_comes_back_as_it_was() -> None:
    seen = set()
    bench = Bench(limits=LIMITS)
    bench.submit(1, [1, 2, 3], max_tokens=9, stop_token_ids=frozenset({4, 2}))
    bench.run()
    for one in (*bench.records, *bench.outputs, *(row for command in bench.commands for row in command.rows)):
        assert unpack(pack(one)) == one
        seen.add(type(one).__name__)
    assert {"Submit", "Report", "Tick", "Tokens", "Ended", "Command", "Seed", "Decode"} <= seen


def test_redacting_touches_token_ids_and_nothing_else() -> None:
    packing = Packing(lambda one: one + 100, str.upper)
    report = events.Report(1, 2, [events.Emitted(0, 1, [4, 5], 1, 7, events.PassDetail([4], [0.5], None))])
    changed = unpack(packing.pack(report))
    assert changed.rows[0].token_ids == [104, 105]
    assert changed.rows[0].detail.draft_token_ids == [104]
    plain = attrs.evolve(changed.rows[0], token_ids=[4, 5], detail=report.rows[0].detail)  # type: ignore[union-attr]
    assert plain == report.rows[0]


@given(value=st.recursive(st.none() | st.integers() | st.text(max_size=5) | st.floats() | st.booleans(), st.lists))
def test_whatever_stands_in_a_file_is_an_object_of_its_kind_or_refused(value: Any) -> None:
    for candidate in (value, *([name, *value] for name in sorted(CLASSES) if isinstance(value, list))):
        try:
            made = unpack(candidate)
        except Refused:
            continue
        assert type(made).__name__ == candidate[0]
