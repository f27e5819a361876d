"""The command line, as a user types it: real processes, the shipped pair, files in and out."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, __version__
from dsparkd.statemachine.errors import EngineError

PROMPT = "def main():\n"


def dsparkd(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsparkd", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == status, done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`dsparkd serve` on the shipped pair."""
    folder = tmp_path_factory.mktemp("serve")
    address = f"ipc://{folder}/engine"
    log = (folder / "log").open("w")
    command = [sys.executable, "-m", "dsparkd", "serve", "--bind", address, "--policy", "fixed:7"]
    process = subprocess.Popen(command, stderr=log)
    try:
        with Client(address, timeout_s=120) as client:
            client.wait_ready()
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_demo_writes_the_documented_figures_and_finds_no_difference(tmp_path: Path) -> None:
    figures = tmp_path / "demo.json"
    shown = dsparkd("demo", "--prompts", "3", "--concurrency", "2", "--max-tokens", "40", "--json", str(figures)).stdout
    report = json.loads(figures.read_text())
    assert set(report) == {
        "requests",
        "tokens",
        "acceptance_length",
        "accepted_per_position",
        "plain_tokens_per_s",
        "spec_tokens_per_s",
        "speedup",
        "lossless",
        "first_divergences",
        "transitions",
    }
    assert (report["requests"], report["tokens"], report["lossless"]) == (3, 120, True)
    assert report["first_divergences"] == []
    assert report["acceptance_length"] > 1.5
    assert len(report["accepted_per_position"]) == 7
    moves = report["transitions"]["REQUEST"]
    assert moves["QUEUED>SEED_READY"] == 3
    assert sum(count for name, count in moves.items() if name.endswith(">FINISHED")) == 3
    assert report["speedup"] == pytest.approx(report["spec_tokens_per_s"] / report["plain_tokens_per_s"])
    assert "VERIFYING" in shown
    assert "lossless" in shown


def test_a_sampled_demo_without_drafts_is_lossless_too_and_has_no_acceptance_length(tmp_path: Path) -> None:
    figures = tmp_path / "demo.json"
    arguments = ("--prompts", "2", "--max-tokens", "24", "--temperature", "0.8", "--seed", "5", "--draft-len", "0")
    dsparkd("demo", *arguments, "--json", str(figures))
    report = json.loads(figures.read_text())
    assert report["lossless"]
    assert report["acceptance_length"] is None


def test_generate_prints_prompt_and_text_on_stdout_alone(server: str) -> None:
    drafted = dsparkd("generate", PROMPT, "--max-tokens", "20", "--connect", server)
    plain = dsparkd("generate", PROMPT, "--max-tokens", "20", "--drafter", "none")
    assert drafted.stdout == plain.stdout
    assert drafted.stdout.startswith(PROMPT)
    assert "acceptance length" in drafted.stderr
    assert "acceptance length" not in plain.stderr


def test_batch_keeps_the_order_and_a_bad_row_costs_only_itself(server: str, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = {"prompt": PROMPT, "max_tokens": 12}
    rows: list[Any] = [
        good,
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 3, "ignore_eos": True},
        {"prompt": PROMPT, "max_tokens": 0},
        {"prompt": PROMPT, "top_z": 1},
        {"prompt": PROMPT, "prompt_token_ids": [1]},
        {"prompt_token_ids": [99999]},
        {"prompt": "x " * 2000},
        ["no", "object"],
        {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.9, "seed": 3},
        {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.9, "seed": 3, "max_draft_len": 0},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{not json\n" + json.dumps(good) + "\n")
    arguments = ("--input", str(source), "--output", str(output), "--connect", server, "--passes")
    dsparkd("generate", *arguments, status=1)
    out = rows_of(output)
    assert len(out) == len(rows) + 2
    for index in (0, 1, 8, 9, 11):
        assert out[index]["error"] is None
        assert out[index]["finish_reason"] == "length"
    for index, word in (
        (2, "max_tokens"),
        (3, "top_z"),
        (4, "exactly one"),
        (5, "99999"),
        (6, "PROMPT_TOO_LONG"),
        (7, "JSON object"),
        (10, "not JSON"),
    ):
        assert word in out[index]["error"]
        assert out[index]["token_ids"] == []
    # Their neighbours differ, so their confidences may, in the last bits; nothing else may.
    first, last = ([one.pop("confidence_logits") for one in row["passes"]] for row in (out[0], out[11]))
    assert out[0] == out[11]
    assert [pytest.approx(one, abs=2e-5) for one in first] == last
    assert (out[1]["prompt_len"], len(out[1]["token_ids"])) == (3, 3)
    assert out[8]["token_ids"] == out[9]["token_ids"]
    assert [len(one["draft_token_ids"]) for one in out[9]["passes"]] == [0] * 11


def test_passes_account_for_every_token_after_the_first(server: str, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"prompt": PROMPT, "max_tokens": 30}) + "\n")
    dsparkd("generate", "--input", str(source), "--output", str(output), "--connect", server, "--passes")
    (row,) = rows_of(output)
    emitted = [token for one in row["passes"] for token in one["emitted_token_ids"]]
    assert row["token_ids"][1:] == emitted
    position = row["prompt_len"]
    for one in row["passes"]:
        assert one["start_pos"] == position
        assert one["draft_token_ids"][: one["accepted_len"]] == one["emitted_token_ids"][: one["accepted_len"]]
        assert len(one.get("confidence_logits", [])) == len(one["draft_token_ids"])
        position += len(one["emitted_token_ids"])


def test_serve_refuses_bad_settings_naming_each(tmp_path: Path) -> None:
    config = tmp_path / "engine.toml"
    config.write_text('num_slots = 0\nacceptance = "maybe"\nmax_modell_len = 3\n')
    said = dsparkd("serve", "--config", str(config), "--set", "policy=never", status=1).stderr
    for word in ("num_slots = 0", "acceptance = 'maybe'", "max_modell_len", "max_model_len"):
        assert word in said


def test_a_checkpoint_that_is_none_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    said = dsparkd("generate", "x", "--model", str(tmp_path), "--drafter", "none", status=1).stderr
    assert "config.json" in said


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("generate",), "PROMPT"),
        (("generate", "x", "--input", "f"), "either"),
        (("generate", "x", "--model", "somewhere"), "drafter"),
        (("machines", "toaster"), "toaster"),
        (("demo", "--dtype", "int3"), "int3"),
        (("serve", "--set", "nonsense"), "KEY=VALUE"),
        (("serve", "--model", "somewhere"), "drafter"),
        (("generate", "x", "--draft-len", "9"), "block has 7"),
        (("serve", "--bind", "ipc://" + "/tmp/" + "x" * 120), "107"),
    ],
)
def test_bad_usage_is_one_clear_line(arguments: tuple[str, ...], word: str) -> None:
    done = dsparkd(*arguments, status=1)
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_machines_prints_every_form() -> None:
    assert "stateDiagram-v2" in dsparkd("machines", "request", "--form", "mermaid").stdout
    assert "| QUEUED |" in dsparkd("machines", "request", "--form", "matrix").stdout
    assert "QUEUED --ADMIT--> SEED_READY: SEAT" in dsparkd("machines").stdout


@pytest.mark.parametrize(
    "module",
    ["dsparkd", "dsparkd.scheduler.service.loop", "dsparkd.scheduler.cli.app", "dsparkd.scheduler.core.handle"],
)
def test_the_client_and_the_scheduler_never_load_torch(module: str) -> None:
    code = f"import sys, {module}; import dsparkd; dsparkd.Client; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_engine_that_nobody_serves_is_an_error_with_its_address(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/nobody"
    with pytest.raises(EngineError, match=r"nobody"):
        Client(address, timeout_s=0.5)


def test_no_process_of_an_engine_outlives_its_command() -> None:
    marker = f"dsparkd-test-{os.getpid()}"
    environment = {**os.environ, "DSPARKD_MARKER": marker}
    command = [sys.executable, "-m", "dsparkd", "generate", PROMPT, "--max-tokens", "4"]
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=240)
    alive = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in entry.read_bytes():
                alive.append(entry.parent.name)
        except OSError:
            continue
    assert alive == []


def test_the_version_is_that_of_the_package() -> None:
    assert dsparkd("--version").stdout.strip() == f"dsparkd {__version__}"
