"""A recorded day on an engine that lives says the same again, and a difference is told with its place."""

import asyncio
from pathlib import Path

import pytest
from dsparkd import local
from dsparkd.scheduler.trace.live import Divergence, Recorded, compared, recorded_requests, run_again
from dsparkd.statemachine.errors import Refused

TARGET = "scripted:mean=3,vocab=500,block=7,seed="


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "day.dsptrace"
    with local(target=TARGET + "1", drafter="x", num_slots=2, trace=str(path)) as client:
        streams = [
            client.submit([1, 2, 3 + index], max_tokens=20, temperature=0.5 * (index % 2), request_id=f"r{index}")
            for index in range(6)
        ]
        streams[4].cancel()
        for stream in streams:
            stream.result()
    return path


def test_the_same_model_says_the_same_and_another_one_is_told_where_it_differs(recorded: Path) -> None:
    requests = recorded_requests(recorded)
    assert [one.name for one in requests] == [f"r{index}" for index in range(6)]
    assert [one.finished for one in requests] == [index != 4 for index in range(6)]
    for seed, speed in (("1", 0.0), ("1", 50.0), ("2", 0.0)):
        with local(target=TARGET + seed, drafter="x", num_slots=3, policy="fixed:2") as client:
            found = asyncio.run(run_again(client.address, requests, speed=speed))
        if seed == "1":
            assert found == []
        else:
            assert {one.name for one in found} >= {"r0", "r1", "r2", "r3", "r5"}
            assert all(one.index == 0 for one in found)


def test_a_comparison_goes_as_far_as_the_record(recorded: Path) -> None:
    one = Recorded("r", 0.0, (1,), {}, token_ids=[5, 6, 7])
    assert compared(one, [5, 6, 7, 8]) is None  # it was cut short then
    assert compared(one, [5, 9, 7]) == Divergence("r", 1, 6, 9)
    assert compared(one, [5]) == Divergence("r", 1, 6, None)
    one.finished = True
    assert compared(one, [5, 6, 7]) is None
    assert compared(one, [5, 6, 7, 8]) == Divergence("r", 3, -1, 8, "it goes on where it ended")


def test_a_redacted_trace_is_not_sent(tmp_path: Path) -> None:
    key, path = tmp_path / "key", tmp_path / "day.dsptrace"
    key.write_bytes(b"k" * 16)
    with local(target=TARGET + "1", drafter="x", trace=str(path), trace_redact=str(key)) as client:
        client.generate([1, 2, 3], max_tokens=3)
    with pytest.raises(Refused, match="redacted"):
        recorded_requests(path)
