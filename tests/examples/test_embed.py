"""The smallest embedding, as a program: what it prints is what the engine says."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, local

OPTIONS = {"temperature": 0.8, "seed": 7}


@pytest.fixture(scope="module")
def slow() -> Iterator[Client]:
    """Slow enough to be left in the middle of a request."""
    with local(target="scripted:mean=3.2,step_us=3000", drafter="scripted", timeout_s=60) as client:
        yield client


def printed(out: str) -> list[int]:
    return [int(word) for line in out.splitlines() if line[0].isdigit() for word in line.split()]


def test_streaming_prints_the_tokens_as_they_come(examples: Path, engine: Client, program: Callable[..., str]) -> None:
    out = program(examples / "embed.py", "--connect", engine.address, "stream", "3,1,4")
    assert printed(out) == engine.generate([3, 1, 4], max_tokens=40, **OPTIONS).token_ids
    assert out.splitlines()[-1] == "FINISHED: length, 40 tokens"


def test_cancelling_ends_the_stream_with_its_own_end(examples: Path, slow: Client, program: Callable[..., str]) -> None:
    out = program(examples / "embed.py", "--connect", slow.address, "cancel", "3,1,4")
    assert "cancelled: True" in out
    last = out.splitlines()[-1]
    assert last.startswith("CANCELLED: cancelled, ")
    assert printed(out) == slow.generate([3, 1, 4], max_tokens=300, **OPTIONS).token_ids[: len(printed(out))]
    assert len(printed(out)) < 300


def test_another_process_goes_on_where_a_dead_one_was(
    examples: Path, slow: Client, program: Callable[..., Any], tmp_path: Path
) -> None:
    place = tmp_path / "place.json"
    begun = printed(program(examples / "embed.py", "--connect", slow.address, "die", place, "3,1,4", status=9))
    assert json.loads(place.read_text())["index"] == len(begun) < 120
    rest = printed(program(examples / "embed.py", "--connect", slow.address, "resume", place))
    assert begun + rest == slow.generate([3, 1, 4], max_tokens=120, **OPTIONS).token_ids
