"""The log: one line a request, one line a transition when asked for, in the form that was asked for."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.core.tables import TABLES, Machine
from dsparkd.scheduler.testing import Bench

Serve = Callable[..., Any]


def lines_of(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def test_at_level_debug_every_step_of_every_machine_is_a_line_and_the_chain_is_whole(serve: Serve) -> None:
    engine = serve(log_level="debug", logs="json", policy="fixed:3")
    client = engine.client()
    for number in range(3):
        client.generate([number, 2, 3], max_tokens=12)
    counted = client.stats()["transitions"]
    engine.stop()
    told = [line for line in lines_of(engine.log()) if line["event"] == "transition"]
    assert {line["level"] for line in told} == {"debug"}
    rows = {
        (machine.name, row.state.name, row.event.name, None if row.case is None else row.case.name, row.next.name)
        for machine in Machine
        for row in TABLES[machine].page.rows
    }
    keys = ("machine", "from", "event_name", "case", "to")
    ignored = {
        (machine.name, one.state.name, one.event.name) for machine in Machine for one in TABLES[machine].page.ignores
    }
    for line in told:
        assert (
            tuple(line[key] for key in keys) in rows or (line["machine"], line["from"], line["event_name"]) in ignored
        )
    ways = Counter(f"{line['from']}>{line['to']}" for line in told if line["machine"] == "REQUEST")
    assert ways == counted["REQUEST"]
    for number in {line["id"] for line in told if line["machine"] == "REQUEST"}:
        states = [(line["from"], line["to"]) for line in told if (line["machine"], line["id"]) == ("REQUEST", number)]
        assert (states[0][0], states[-1][1]) == ("QUEUED", "FINISHED")
        assert all(before[1] == after[0] for before, after in itertools.pairwise(states))


def test_below_debug_there_is_one_line_a_request_with_what_one_would_ask_of_it(serve: Serve) -> None:
    engine = serve(logs="json")
    result = engine.client().generate([1, 2], max_tokens=9, label="who")
    assert environment_of(engine.worker_pid()) >= {"DSPARKD_LOGS=json", "DSPARKD_LOG_LEVEL=info"}
    engine.stop()
    lines = lines_of(engine.log())
    assert "transition" not in {line["event"] for line in lines}
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["request_id"], line["label"], line["state"]) == (result.request_id, "who", "FINISHED")
    assert (line["prompt_len"], line["output_len"], line["passes"]) == (2, 9, result.counts.num_passes)


def test_a_core_is_watched_only_by_who_asks_and_a_fork_by_nobody() -> None:
    bench = Bench()
    assert bench.core.watch is None
    seen: list[Any] = []
    bench.core.watch = lambda *told: seen.append(told)
    assert bench.core.fork().watch is None
    bench.submit(0, [1], max_tokens=4)
    bench.run()
    assert len(seen) > 4


def test_form_and_level_of_the_log_are_the_settings_in_scheduler_and_worker(serve: Serve) -> None:
    engine = serve(logs="console", log_level="warning", policy="max_concurrency:100")
    engine.client()
    assert environment_of(engine.worker_pid()) >= {"DSPARKD_LOGS=console", "DSPARKD_LOG_LEVEL=warning"}
    engine.stop()
    lines = engine.log().splitlines()
    assert any("key 100 is beyond num_slots" in line for line in lines), "a warning"
    assert not any("worker_ready" in line for line in lines), "no warning"
    assert not any(line.startswith("{") for line in lines)


RAISES = """
import structlog
from dsparkd.scheduler.service.logs import configure_logs
configure_logs("%s")
def fail(prompt):
    raise ValueError("no")
try:
    fail("".join(["sec", "ret"]))
except ValueError:
    structlog.get_logger().exception("failed")
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_logged_exception_shows_where_and_no_local_variable(run_python: Callable[[str], Any], form: str) -> None:
    said = run_python(RAISES % form).stderr
    assert "ValueError" in said
    assert "fail" in said
    assert "secret" not in said, "locals hold prompts"


def environment_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0"))
