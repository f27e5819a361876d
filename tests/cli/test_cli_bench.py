"""`dsparkd bench`: its rows, its picture, its refusals, and that it leaves nothing behind. The worker is scripted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from dsparkd import local
from dsparkd.__main__ import main
from dsparkd.scheduler.cli.bench import Turns
from dsparkd.scheduler.cli.files import writable
from dsparkd.scheduler.cli.prompts import read_prompts
from dsparkd.scheduler.cli.turns import Tally
from dsparkd.statemachine.errors import Refused

Bench = Callable[..., tuple[int, str, str]]
KEYS = {  # docs/policies.md says what they mean
    *("concurrency", "policy", "tokens_per_s", "tokens_per_s_per_user", "speedup", "acceptance_length"),
    *("ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99", "worker_cpu_us_per_token"),
}
SCRIPTED = ("--model", "scripted:mean=3.5", "--drafter", "scripted", "--rounds", "1", "--max-tokens", "12")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """Run the command in this process, with `tmp_path` for temporary files; return status and what it said."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_token_ids": [1, 2, number]}) + "\n\n" for number in range(5)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["bench", "--prompts", str(prompts), *SCRIPTED, *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    yield run
    signal.signal(signal.SIGTERM, before)


def test_rows_have_the_documented_keys_and_lawful_values_and_the_picture_parses(bench: Bench, tmp_path: Path) -> None:
    rows_file, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    names = ["fixed:7", "fixed:0"]
    flags = ("--policy", ",".join(names), "--concurrency", "1,3", "--json", str(rows_file), "--plot", str(plot))
    status, shown, _ = bench(*flags)
    assert status == 0
    rows: list[dict[str, Any]] = json.loads(rows_file.read_text())["rows"]
    assert [(row["concurrency"], row["policy"]) for row in rows] == list(product((1, 3), ("plain", *names)))
    plain = {row["concurrency"]: row for row in rows if row["policy"] == "plain"}
    for row in rows:
        assert row.keys() == KEYS
        assert row["tokens_per_s"] > 0
        assert row["tokens_per_s_per_user"] > 0
        expected = row["tokens_per_s_per_user"] / plain[row["concurrency"]]["tokens_per_s_per_user"]
        assert row["speedup"] == pytest.approx(expected)
        assert 0 < row["itl_ms_p50"] <= row["itl_ms_p99"]
        assert 0 < row["ttft_ms_p50"] <= row["ttft_ms_p99"]
        drafts = row["policy"] == "fixed:7"
        assert (row["acceptance_length"] is not None) is drafts
        assert not drafts or 2 < row["acceptance_length"] <= 4, "mean=3.5, less at a request's end"
        assert row["policy"] in shown
    drawn = ElementTree.parse(plot).getroot()
    texts = {node.text for node in drawn.iter() if node.tag.endswith("text")}
    assert {"plain", *names, "1", "3"} <= texts
    lines = [node for node in drawn.iter() if node.tag.endswith("polyline")]
    assert [len(node.attrib["points"].split()) for node in lines] == [2, 2, 2]
    assert not list(tmp_path.glob("dsparkd-run-*"))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--concurrency", "0"), "--concurrency 0: expected whole numbers, 1 or more"),
        (("--concurrency", "1,x"), "--concurrency 1,x: expected whole numbers"),
        (("--concurrency", "2,1,2"), "--concurrency 2,1,2: expected each number once"),
        (("--policy", "fixed:3,fixed:3"), "expected each policy once"),
        (("--policy", "fixed:3,always"), "policy = 'always': expected fixed:N"),
        (("--policy", "schedule:1=3/4=7"), "key 4 = 7: expected 3 or less"),
        (("--json", "{folder}"), "cannot be written: it is a folder, expected a file"),
        (("--plot", "{folder}/no/plot.svg"), "--plot {folder}/no/plot.svg: cannot be written"),
        (("--prompts", "{folder}/no.jsonl"), "{folder}/no.jsonl: cannot be read"),
        (("--prompts", "{folder}"), "no *.dsptrace in it"),
    ],
)
def test_what_cannot_work_is_refused_before_an_engine_starts(
    arguments: tuple[str, str], said: str, bench: Bench, tmp_path: Path
) -> None:
    flag, value = arguments
    status, shown, error = bench(flag, value.format(folder=tmp_path))
    assert (status, shown) == (1, "")
    assert said.format(folder=tmp_path) in error.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_an_interrupted_run_leaves_no_process_no_folder_and_no_file(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [1]}')
    flags = ("--concurrency", "1", "--rounds", "100000", "--prompts", str(prompts), "--json", str(rows_file))
    command = [sys.executable, "-m", "dsparkd", "bench", *SCRIPTED[:4], "--policy", "fixed:3", *flags]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("dsparkd-run-*/engine"))) < 2 and time.monotonic() < until:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(tmp_path) not in entry.read_text(), "a process of it lives on"
        except OSError:
            continue  # it ended while we looked


def test_prompts_are_rows_of_batch_mode_or_those_of_a_trace(tmp_path: Path) -> None:
    rows, trace = tmp_path / "rows.jsonl", tmp_path / "run.dsptrace"
    rows.write_text('{"prompt": "a\u2028b", "max_tokens": 3}\n\n{"prompt_token_ids": [4, 5]}\n')
    assert read_prompts(rows) == ["a\u2028b", [4, 5]]
    with local(target="scripted", drafter="scripted", trace=str(trace)) as client:
        client.generate([7, 8, 9], max_tokens=2)
        client.generate([3], max_tokens=2)
    assert read_prompts(trace) == [[7, 8, 9], [3]]


@pytest.mark.parametrize(
    "text",
    ["", "7", "[]", '{"prompt": ""}', '{"prompt_token_ids": []}', '{"prompt_token_ids": [1.5]}', "{", "[" * 99999],
)
def test_what_holds_no_prompt_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(Refused, match=f"--prompts {path}"):
        read_prompts(path)


def test_every_engine_has_as_many_turns_and_the_first_one_changes() -> None:
    order: list[tuple[int, int]] = []

    class Seen(Turns):
        async def _turn(self, client: Any, level: int, turn: int) -> Tally:
            order.append((id(client), level))
            return Tally(num_tokens=1)

    turns = Seen(["p"], {}, seed=0, rounds=3, on_turn=lambda: None)
    with local(target="scripted") as client:
        tallies = asyncio.run(turns.run({"a": client.address, "b": client.address}, [1, 2]))
    assert {key: tally.num_tokens for key, tally in tallies.items()} == dict.fromkeys(product((1, 2), "ab"), 3)
    first = order[0][0]
    assert "".join("a" if who == first else "b" for who, level in order if level == 2) == "ab" + "ab" + "ba" + "ab"


def test_asking_whether_a_file_can_be_written_leaves_no_file_and_no_trace_on_one(tmp_path: Path) -> None:
    fresh, old = tmp_path / "fresh", tmp_path / "old"
    old.write_text("kept")
    before = old.stat().st_mtime_ns
    for path in (fresh, old, None):
        writable(path, "--json")
    assert not fresh.exists()
    assert (old.read_text(), old.stat().st_mtime_ns) == ("kept", before)
    with pytest.raises(Refused, match="it is a folder"):
        writable(tmp_path, "--json")
