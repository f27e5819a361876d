"""The client in Node.js says what the Python client says, through a killed scheduler too."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client
from dsparkd.scheduler.service import local, run
from dsparkd.scheduler.service.config import Settings

NODE, NPM = shutil.which("node"), shutil.which("npm")
FOLDER = Path(__file__).parents[2] / "examples" / "node"
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")


@pytest.fixture(scope="module", autouse=True)
def modules() -> None:
    """What package.json pins; `.ci/run` has installed it where npm is."""
    if (FOLDER / "node_modules").is_dir():
        return
    if NPM is None:
        pytest.skip("no npm on this machine, and examples/node/node_modules is not there")
    done = subprocess.run([NPM, "ci", "--no-audit", "--no-fund"], cwd=FOLDER, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install what examples/node needs: {done.stderr.strip()[-300:]}")


def start(address: str, requests: Sequence[dict[str, Any]]) -> "subprocess.Popen[str]":
    command = [str(NODE), str(FOLDER / "generate.js"), address, *map(json.dumps, requests)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_node(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [str(NODE), str(FOLDER / "generate.js"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def ended(process: "subprocess.Popen[str]", status: int = 0) -> tuple[list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    return [json.loads(line) for line in out.splitlines()], err


def said_by(client: Client, request: dict[str, Any]) -> Any:
    prompt = request.get("prompt", request.get("prompt_token_ids"))
    return client.generate(prompt, **request.get("options", {}))


def test_it_is_short() -> None:
    assert len((FOLDER / "client.js").read_text().splitlines()) < 150


def test_node_prints_the_same_tokens_as_python(engine: Client) -> None:
    seeds = (5, 2**31, 2**52 + 1)  # as wide as JSON's numbers are
    requests = [
        {
            "prompt_token_ids": [3, 1, 4, number],
            "options": {"max_tokens": 40 + number, "temperature": 0.5 * (number % 3), "seed": seeds[number % 3]},
        }
        for number in range(12)
    ]
    rows, _ = ended(start(engine.address, requests))
    assert [row["ids"] for row in rows] == [said_by(engine, request).token_ids for request in requests]
    assert {(row["state"], row["reason"]) for row in rows} == {("FINISHED", "length")}


def test_node_prints_the_same_text_as_python(talking: Client) -> None:
    requests = [{"prompt": f"def f{number}():", "options": {"max_tokens": 50}} for number in range(3)]
    rows, _ = ended(start(talking.address, requests))
    results = [said_by(talking, request) for request in requests]
    assert [(row["ids"], row["text"]) for row in rows] == [(one.token_ids, one.text) for one in results]


def test_node_is_told_what_is_refused_by_name(engine: Client) -> None:
    _, err = ended(start(engine.address, [{"prompt_token_ids": [1], "options": {"top_z": 1}}]), status=1)
    assert "UNSUPPORTED_OPTION" in err
    assert "top_z" in err


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ({"prompt_token_ids": [1], "max_tokens": 3, "seed": 1}, "max_tokens,seed"),
        ({"prompt_token_ids": [1], "option": {}}, "option"),
    ],
)
def test_node_drops_no_key_of_a_request(engine: Client, request_: dict[str, Any], names: str) -> None:
    _, err = ended(start(engine.address, [request_]), status=1)
    assert err == f"node-0: {names}: unknown, expected prompt,prompt_token_ids,messages and options\n"


def test_node_sends_all_prompts_that_a_request_has(engine: Client) -> None:
    _, err = ended(start(engine.address, [{"prompt_token_ids": [1], "prompt": "x"}]), status=1)
    assert "BAD_PROMPT" in err


@pytest.mark.parametrize(
    "words", [[], ["ipc:///tmp/x"], ["--timeout"], ["--timeout", "x", "ipc:///tmp/x", "{}"], ["--help"], ["-x", "{}"]]
)
def test_node_without_its_arguments_says_how_it_is_used(words: list[str]) -> None:
    done = run_node(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: node generate.js ")


def test_node_waits_for_an_engine_no_longer_than_it_is_told(tmp_path: Path) -> None:
    done = run_node("--timeout", "0.2", f"ipc://{tmp_path}/none", '{"prompt": "x"}')
    assert (done.returncode, done.stderr) == (1, f"ipc://{tmp_path}/none: no engine answered within 0.2 s\n")


@pytest.mark.parametrize(("address", "request_"), [("nowhere", "{}"), ("ipc:///tmp/x", "{"), ("ipc:///tmp/x", "null")])
def test_node_says_in_one_line_what_it_cannot_read(address: str, request_: str) -> None:
    done = run_node(address, request_)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert ": expected an " in done.stderr or ", expected an " in done.stderr


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """An engine with a journal: its address, and the process of the small parent."""
    values = {"target": "scripted:mean=3.2,step_us=3000", "drafter": "scripted", "journal": str(tmp_path / "journal")}
    settings = Settings.from_mapping({**values, "bind": f"ipc://{tmp_path}/engine", "heartbeat_s": 0.2})
    process = run.start(settings, respawn=True, log=subprocess.DEVNULL)
    yield settings.bind, process.pid
    local.stop(process)


def test_a_stream_in_node_goes_on_through_a_killed_scheduler(durable: tuple[str, int]) -> None:
    address, parent = durable
    request = {"prompt_token_ids": [3, 1, 4], "options": {"max_tokens": 400}}
    with Client(address, timeout_s=60) as client:
        client.wait_ready(60)
        process = start(address, [request])
        until = time.monotonic() + 60
        while client.stats()["tokens_emitted"] < 40:
            assert time.monotonic() < until
        scheduler = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
        os.kill(scheduler, signal.SIGKILL)
        rows, _ = ended(process)
        assert rows[0]["ids"] == said_by(client, request).token_ids
