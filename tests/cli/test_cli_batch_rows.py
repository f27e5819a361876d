"""Batch mode against odd rows and an engine that ends: each row that was not done says why, the others are whole."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, local

ODD_ROWS: dict[str, str] = {
    "request_id": json.dumps({"prompt_token_ids": [1, 2], "request_id": 5}),
    "self": json.dumps({"prompt_token_ids": [1, 2], "self": 1}),
    "recursion": "[" * 100_000,
    "expected text or a list": json.dumps({"prompt_token_ids": [True]}),
    "serialize": json.dumps({"prompt_token_ids": [1, 2], "max_tokens": 2**80}),
    "token id": json.dumps({"prompt_token_ids": [-1]}),
    "temperature": json.dumps({"prompt_token_ids": [1, 2], "temperature": float("nan")}),
    "surrogates": json.dumps({"prompt_token_ids": [1, 2], "label": "\ud800"}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local(target="scripted:mean=3.2", drafter="scripted") as made:
        yield made


def batch(client: Client, folder: Path, lines: list[str]) -> tuple[int, list[dict[str, Any]], str]:
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "dsparkd", "generate", "--input", str(source), "--output", str(output)]
    done = subprocess.run([*command, "--connect", client.address], capture_output=True, text=True, timeout=120)
    return (
        done.returncode,
        [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]],
        done.stderr,
    )


def test_every_kind_of_odd_row_costs_only_itself(client: Client, tmp_path: Path) -> None:
    good = json.dumps({"prompt_token_ids": [1, 2], "max_tokens": 5, "logprobs": True, "top_logprobs": 2})
    lines = [line for odd in ODD_ROWS.values() for line in (good, odd)]
    status, rows, said = batch(client, tmp_path, [*lines, good])
    assert status == 1, said
    assert [len(row["token_ids"]) for row in rows[::2]] == [5] * (len(ODD_ROWS) + 1)
    assert all(len(row["logprobs"]) == len(row["top_logprobs"]) == 5 for row in rows[::2])
    for word, row in zip(ODD_ROWS, rows[1::2], strict=True):
        assert word in row["error"]


def test_a_batch_says_how_many_rows_failed_and_never_writes_over_what_it_reads(client: Client, tmp_path: Path) -> None:
    _, _, said = batch(client, tmp_path, ['{"prompt_token_ids": [1]}', *ODD_ROWS.values()])
    assert f"{len(ODD_ROWS)} rows failed" in said
    rows = tmp_path / "in.jsonl"
    before = rows.read_text()
    (tmp_path / "link.jsonl").symlink_to(rows)
    for output in (rows, tmp_path / "link.jsonl"):
        command = ["generate", "--input", str(rows), "--output", str(output), "--connect", client.address]
        done = subprocess.run([sys.executable, "-m", "dsparkd", *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert f"--output {output}" in done.stderr
        assert rows.read_text() == before


def test_line_ends_of_unicode_inside_a_row_do_not_split_it(client: Client, tmp_path: Path) -> None:
    row = json.dumps({"prompt_token_ids": [1], "max_tokens": 2, "label": "a\u2028b\u2029c\x85d"}, ensure_ascii=False)
    status, rows, said = batch(client, tmp_path, [row, "", row])
    assert (status, len(rows)) == (0, 2), said


def test_an_engine_that_is_stopped_costs_the_rows_that_were_not_done(tmp_path: Path) -> None:
    with local(target="scripted:mean=1,step_us=20000", drafter="scripted", num_slots=1, max_model_len=4000) as client:
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        rows = [{"prompt_token_ids": [1], "max_tokens": size} for size in (1, 3000, 3000, 3000)]
        source.write_text("\n".join(json.dumps(row) for row in rows))
        command = [sys.executable, "-m", "dsparkd", "generate", "--input", str(source), "--output", str(output)]
        run = subprocess.Popen([*command, "--connect", client.address], stderr=subprocess.PIPE, text=True)
        while client.stats()["ended"] != {"FINISHED": 1} or client.stats()["accepted"] < len(rows):
            assert run.poll() is None
        os.kill(engine_of(client), signal.SIGINT)
        _, said = run.communicate(timeout=100)
    assert run.returncode == 1, said
    ended = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["error"] is None for row in ended] == [True, False, False, False]
    assert "Traceback" not in said


def engine_of(client: Client) -> int:
    """The process whose command line names the client's address."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if client.address.encode() in words and b"scheduler.service.run" in words:
            return int(entry.parent.name)
    raise AssertionError("no engine serves there")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("demo", "--json", "/nowhere/figures.json"), "/nowhere/figures.json"),
        (("serve", "--bind", "ipc:///proc/nowhere/engine"), "/proc/nowhere"),
        (("generate", "x", "--passes"), "--passes"),
        (("generate", "x", "--connect", "ipc:///nowhere/engine", "--dtype", "bfloat16"), "--dtype"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(arguments: tuple[str, ...], word: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dsparkd", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert word in done.stderr
    assert "Traceback" not in done.stderr
