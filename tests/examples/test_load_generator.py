"""The load generator: what it sends and what it says about it, from traces and from published arrivals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dsparkd import Client, local

ARRIVALS = Path(__file__).parents[1] / "trace" / "arrivals"


@pytest.mark.parametrize("file", ["azure2023_conv.csv", "vidur_splitwise_conv.csv"])
def test_arrivals_are_sent_with_their_lengths(
    examples: Path, engine: Client, program: Callable[..., str], file: str
) -> None:
    before = engine.stats()["tokens_emitted"]
    arguments = ("--connect", engine.address, "--speed", "0", "--scale", "0.1", "--limit", "12")
    said = json.loads(program(examples / "load.py", ARRIVALS / file, *arguments))
    wanted = [round(float(line.split(",")[2]) * 0.1) for line in (ARRIVALS / file).read_text().splitlines()[1:13]]
    assert (said["requests"], said["ends"]) == (12, {"FINISHED": 12})
    assert said["tokens"] == sum(wanted) == engine.stats()["tokens_emitted"] - before
    assert 1 < said["acceptance_length"] < 8
    assert said["tokens_per_s"] == pytest.approx(said["tokens"] / said["span_s"])
    for name in ("ttft_ms", "itl_ms", "late_ms"):
        assert 0 <= said[f"{name}_p50"] <= said[f"{name}_p99"]


def test_what_is_refused_is_counted_by_its_code(examples: Path, engine: Client, program: Callable[..., str]) -> None:
    arguments = ("--connect", engine.address, "--speed", "0", "--limit", "2")
    said = json.loads(program(examples / "load.py", ARRIVALS / "azure2023_code.csv", *arguments))
    assert said["ends"] == {"PROMPT_TOO_LONG": 2}
    assert (said["tokens"], said["ttft_ms_p50"], said["acceptance_length"]) == (0, None, None)


def test_a_trace_is_sent_as_it_was_recorded(
    examples: Path, engine: Client, program: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "day.dsptrace"
    with local(target="scripted:mean=3.2", drafter="scripted", trace=str(path)) as client:
        sent = [client.submit([1, 2, index], max_tokens=9 + index, temperature=0.5, seed=index) for index in range(5)]
        results = [stream.result() for stream in sent]
    said = json.loads(program(examples / "load.py", path, "--connect", engine.address, "--speed", "20"))
    assert (said["requests"], said["tokens"]) == (5, sum(len(one.token_ids) for one in results))


def test_a_file_of_neither_kind_is_refused_with_its_name(
    examples: Path, engine: Client, complaint: Callable[..., str]
) -> None:
    said = complaint(examples / "load.py", __file__, "--connect", engine.address)
    assert __file__ in said
    assert "Traceback" not in said
