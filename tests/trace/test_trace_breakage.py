"""What breaks a trace, and what a trace must not break: disks, keys, clients, files that mislead."""

import json
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from dsparkd import local
from dsparkd.scheduler.cli.app import run
from dsparkd.scheduler.cli.engines import Pair
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service import trace_writer
from dsparkd.scheduler.service.packing import CLASSES
from dsparkd.scheduler.service.trace_writer import FAILURE, MAGIC, TraceWriter, described
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.cutting import cut
from dsparkd.scheduler.trace.fitting import fit_trace
from dsparkd.scheduler.trace.live import recorded_requests
from dsparkd.scheduler.trace.reading import files_of
from dsparkd.scheduler.trace.replay import first_difference
from dsparkd.scheduler.trace.report import of_trace
from dsparkd.scheduler.wire.records import RecordWriter, read_records
from dsparkd.statemachine.errors import EngineError, LocalError, Refused

DAY = Path(__file__).parent.parent / "traces" / "0001-cancels-a-death-faults-and-a-drain.dsptrace"
KEY = b"a key of sixteen bytes or more"
ENGINE: dict[str, Any] = {"target": "scripted:mean=3,vocab=500,block=7,seed=1", "drafter": "x"}


def records(path: Path = DAY) -> list[Any]:
    return [msgspec.msgpack.decode(payload) for payload in read_records(path, MAGIC)]


def written(path: Path, entries: list[Any]) -> Path:
    path.unlink(missing_ok=True)
    with RecordWriter(path, MAGIC) as file:
        for entry in entries:
            file.append(msgspec.msgpack.encode(entry))
    return path


# ---- engines ------------------------------------------------------------------------------------------------------


def test_no_stop_id_and_no_deadline_of_a_client_ends_an_engine_that_redacts(tmp_path: Path) -> None:
    key, path = tmp_path / "key", tmp_path / "t.dsptrace"
    key.write_bytes(KEY)
    with local(**ENGINE, trace=str(path), trace_redact=str(key), trace_outputs="full") as client:
        told = client.generate(
            [1, 2], max_tokens=5, stop_token_ids=[10**9], cache_salt="tenant-secret", ignore_eos=True
        )
        assert len(told.token_ids) == 5
        with pytest.raises(Refused, match="deadline_ms"):
            client.generate([1, 2], max_tokens=5, deadline_ms=2**62)
        assert len(client.generate([1, 2], max_tokens=5, cache_salt="tenant-secret", deadline_ms=2**43 - 1).token_ids)
    assert first_difference(path)[1] is None
    assert b"tenant-secret" not in path.read_bytes()


def test_a_disk_that_is_full_ends_the_trace_and_not_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "t.dsptrace"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
    with ExitStack() as engine:
        try:
            client = engine.enter_context(local(**ENGINE, trace=str(path), log=subprocess.DEVNULL))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(client.generate([1, 2], max_tokens=200, ignore_eos=True).token_ids) == 200
        health = client.health()
        assert not health.ok
        assert any("the trace ended" in reason for reason in health.reasons)
    assert path.stat().st_size <= 6000
    assert first_difference(path)[1] is None  # what was written


# ---- the writer ---------------------------------------------------------------------------------------------------


def bench_with(path: Path, **options: Any) -> tuple[Bench, TraceWriter]:
    bench = Bench("fixed:7", limits=Limits(num_slots=2, max_model_len=128))
    core = Core(bench.core.limits, bench.core.policy)
    core.start()
    writer = TraceWriter(path, bench.core, policy=described(bench.core.policy, None), **options)
    for event in bench.records:
        writer.took(event, core.handle(event))
    return bench, writer


def test_a_snapshot_that_no_record_holds_waits_for_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "MAX_RECORD_BYTES", 100)
    bench, writer = bench_with(tmp_path, segment_bytes=1)
    for now_ns in range(1, 5):
        writer.took(events.Tick(now_ns), bench.send(events.Tick(now_ns)))
        writer.end_turn()
    writer.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_before_the_vocabulary_is_known_a_redacted_trace_holds_no_token_at_all(tmp_path: Path) -> None:
    path = tmp_path / "t.dsptrace"
    core = Core(Limits(), Bench("fixed:7").core.policy)
    core.start()
    writer = TraceWriter(path, core, policy=described(core.policy, None), redact_key=KEY)
    submit = events.Submit(0, 1, (4711, 4712), events.Options(salt="tenant-secret"))
    for event in (events.ClientHello(0), events.Stop(), submit):  # SIGTERM while the worker loads
        writer.took(event, core.handle(event))
    writer.failed(submit, LocalError("x"))
    writer.close()
    told = [entry[1] for entry in records(path) if entry[0] != "header" and entry[1][0] == "Submit"]
    assert [one[3] for one in told] == [[0, 0]] * 2
    assert b"tenant-secret" not in path.read_bytes()


def test_a_policy_of_ones_own_may_hold_anything_and_is_made_again_by_its_text_alone() -> None:
    @attrs.frozen
    class Fixed:
        name: str = "patient"
        version: int = 1
        max_len: int | None = None
        thing: Any = attrs.field(factory=object)

        def decide(self, rows: Any, ledger: Any) -> list[int]:
            return [0] * len(rows)

    told = described(Fixed(), "patient:8")
    assert (told["text"], told["values"]) == ("patient:8", None)
    assert described(Bench("fixed:3").core.policy, None)["values"] is not None


# ---- files --------------------------------------------------------------------------------------------------------


def test_a_folder_of_two_runs_is_no_run_and_each_of_them_has_a_name(tmp_path: Path) -> None:
    for run_name in ("20260101T000000-1", "20260102T000000-1"):
        shutil.copy(DAY, tmp_path / f"{run_name}-000001.dsptrace")
    with pytest.raises(Refused, match="holds 2 runs"):
        files_of(tmp_path)
    assert first_difference(tmp_path / "20260102T000000-1") == first_difference(DAY)


def test_what_ended_the_engine_is_replayed_cut_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = records()
    path = written(tmp_path / "f", [*known[:40], [FAILURE, known[40][1], "LocalError: never"]])
    with pytest.raises(Refused, match="now it goes on"):
        first_difference(path)
    part, lines = tmp_path / "part", tmp_path / "lines"
    assert cut(path, part, begin=20) == 19
    assert records(part)[-1][0] == FAILURE
    assert run(Pair(tmp_path, tmp_path, tmp_path), ["trace", "export", str(path), "-o", str(lines)]) == 0
    assert json.loads(lines.read_text().splitlines()[-1])["kind"] == "failure"


def test_a_command_that_fails_leaves_no_file(tmp_path: Path) -> None:
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.write_bytes(MAGIC)
    for source in (empty, tmp_path / "nowhere"):
        with pytest.raises(Refused):
            cut(source, out)
        assert not out.exists()
    assert run(Pair(tmp_path, tmp_path, tmp_path), ["trace", "export", str(tmp_path / "nowhere"), "-o", str(out)]) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--request", "9999"], "nothing in these"),
        (["--step", "9999"], "nothing in these"),
        (["--speed", "2"], "expected --live"),
        (["--live", "ipc:///tmp/x", "--until", "3"], "--live and --until"),
    ],
)
def test_flags_of_replay_without_a_meaning_are_told(
    flags: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(Pair(tmp_path, tmp_path, tmp_path), ["replay", str(DAY), *flags]) == 1
    assert expected in capsys.readouterr().err


def test_a_request_that_was_refused_is_not_sent_to_a_live_engine() -> None:
    refused = {entry[1][2] for entry in records() if entry[0] == "event" and entry[1][0] == "Submit"}
    assert len(recorded_requests(DAY)) == len(refused) - 1  # one was too long


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*way, key)
        yield from places(part, (*way, key))


JUNK: tuple[Any, ...] = (None, -1, 2**63, 2**64 - 1, -(2**63), 0, 99, "x", float("nan"), float("inf"), [], {}, True)
JUNK += ([[[]]], {"tuple": [1]}, {"object": ["Tick", 3]}, b"z", 10**7, *([name] for name in list(CLASSES)[:3]))


def test_a_file_that_lies_anywhere_is_replayed_or_refused(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    part = tmp_path / "part"
    cut(DAY, part, begin=30)
    sources = [records(), records(part)]
    for _ in range(100):
        entries = list(chance.choice(sources))
        at = chance.choice([0, 1, 1, chance.randrange(len(entries))])
        bent = msgspec.msgpack.decode(msgspec.msgpack.encode(entries[at]))
        *way, last = chance.choice(list(places(bent)))
        inside = bent
        for key in way:
            inside = inside[key]
        inside[last] = chance.choice(JUNK)
        entries[at] = bent
        path = written(tmp_path / "bent", entries)
        for reader in (first_difference, of_trace, fit_trace):
            try:
                reader(path)
            except EngineError:
                pass
            except Exception as error:
                raise AssertionError(f"{reader.__name__}: record {at}, {(*way, last)} = {inside[last]!r}") from error
