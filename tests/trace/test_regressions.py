"""Every trace in tests/traces is a thing that happened once: it replays to the last digest, invariants checked.

A drawn history that fails leaves a file of JSON lines (`EngineRules.dump_path`); put there, it is replayed as well. A
trace whose digests changed on purpose is made anew from its inputs: `python tests/trace/test_regressions.py`.
"""

import sys
from pathlib import Path

import pytest
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.proof.records import replay as replay_records
from dsparkd.scheduler.service.trace_writer import TraceWriter
from dsparkd.scheduler.trace.reading import Event, Header, read_trace
from dsparkd.scheduler.trace.replay import checked, policy_of

FOLDER = Path(__file__).parent.parent / "traces"
TRACES = sorted(FOLDER.glob("*.dsptrace"))
HISTORIES = sorted(FOLDER.glob("*.jsonl"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_what_happened_once_replays_to_the_last_digest(path: Path) -> None:
    assert checked(path) > 20


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_history_that_failed_once_runs_to_its_end(path: Path) -> None:
    assert sum(1 for _ in replay_records(path)) > 2


def test_there_are_some_of_both_kinds() -> None:
    assert TRACES
    assert HISTORIES


def make_anew(path: Path) -> None:
    """The same inputs through the present core."""
    header, *events = [entry for entry in read_trace(path) if isinstance(entry, Header | Event)]
    assert isinstance(header, Header)
    core = Core(header.limits, policy_of(header))
    core.start()
    path.unlink()
    writer = TraceWriter(path, core, policy=header.policy)
    for event in events:
        assert isinstance(event, Event)
        writer.took(event.input, core.handle(event.input), name=event.name)
    writer.close()


if __name__ == "__main__":
    for name in sys.argv[1:] or TRACES:
        make_anew(Path(name))
