"""`top`: what it shows is what two answers of the engine say, in any terminal and in none."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dsparkd import Client, Refused, local
from dsparkd.scheduler.cli.top import top
from dsparkd.scheduler.cli.top_view import COLUMNS, View, plain
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire import messages as wire
from hypothesis import given
from hypothesis import strategies as st

DEADLINE_S = 60.0
HEALTHY = wire.Health(ok=True, engine="OPEN", worker="READY")
AROUND = {  # what the service adds to the core's stats
    "early_len": 0,
    "refused_at_door": {},
    "drafts_lost": 0,
    "client_frames_dropped": 0,
    "worker_frames_dropped": 0,
    "settings": {"policy": None, "draft_len_schedule": None, "max_concurrency": None},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """An engine that is slow enough to be looked at."""
    with local(target="scripted:mean=3,step_us=20000", drafter="x", policy="fixed:5", num_slots=3) as client:
        yield client


def stats_of(bench: Bench) -> dict[str, Any]:
    return {**bench.core.stats(), **AROUND}


def test_rates_are_differences_over_the_time_between_two_looks() -> None:
    bench = Bench("fixed:7")
    bench.submit(0, [1, 2], max_tokens=200)
    bench.tick()
    bench.answer()
    before = stats_of(bench)
    for _ in range(6):
        bench.tick()
        bench.answer()
    after = stats_of(bench)
    text = plain(View("ipc://x", HEALTHY, before, after, 2.0))
    emitted = after["tokens_emitted"] - before["tokens_emitted"]
    assert f"rates: {emitted / 2:.1f} tokens/s, 3.0 steps/s, 1.0 rows a step" in text
    assert f"acceptance length {emitted / 6:.2f} now" in text
    assert "0% of passes without a draft, 7.0 drafts a pass" in text


def test_a_slots_row_says_whose_it_is_what_it_verifies_and_how_well_that_goes() -> None:
    bench = Bench("fixed:4")
    bench.submit(0, [1, 2], max_tokens=200)
    for _ in range(5):
        bench.tick()
        bench.answer()
    bench.tick()
    stats = stats_of(bench)
    (busy, idle) = stats["slot_list"]
    assert (busy["state"], busy["request_state"], busy["draft_len"], idle["state"]) == ("HELD", "VERIFYING", 4, "FREE")
    assert busy["output_len"] == len(bench.tokens[0])
    one = bench.core.ledger.requests[0]
    assert busy["emitted_drafting"] == one.num_emitted_drafting
    row = plain(View("a", HEALTHY, stats, stats, 1.0)).splitlines()[-2].split()
    expected = f"{busy['emitted_drafting'] / busy['drafting_passes']:.2f}"
    assert row == ["0", "HELD", "0", "VERIFYING", "4", "7", expected, "2", str(busy["output_len"]), "200"]


def test_the_list_of_slots_is_as_long_as_there_are_slots_whatever_waits() -> None:
    bench = Bench("fixed:4")
    for number in range(50):
        bench.submit(number, [1, 2], max_tokens=200)
    bench.tick()
    assert [one["slot"] for one in bench.core.stats()["slot_list"]] == [0, 1]


@given(name=st.text(min_size=1, max_size=60), label=st.text(max_size=60))
def test_no_name_of_a_client_moves_the_cursor_or_breaks_a_line(name: str, label: str) -> None:
    bench = Bench("fixed:4")
    bench.submit(0, [1, 2], max_tokens=200)
    bench.tick()
    stats = stats_of(bench)
    stats["slot_list"][0] |= {"request_id": name, "label": label}
    text = plain(View("a", HEALTHY, stats, stats, 1.0))
    assert all(one.isprintable() for line in text.split("\n") for one in line)
    assert len(text.split("\n")) == 5 + 1 + 1 + 2


def test_what_is_wrong_stands_in_the_first_line() -> None:
    bench = Bench("fixed:4")
    ill = wire.Health(ok=False, engine="OPEN", worker="DEGRADED", reasons=["the worker serves without drafter"])
    text = plain(View("a", ill, stats_of(bench), stats_of(bench), 1.0))
    assert "NOT WELL: the worker serves without drafter" in text.splitlines()[0]


def command(client: Client, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dsparkd", "top", "--connect", client.address, *arguments]


def test_once_prints_plain_text_with_a_line_for_each_slot(client: Client) -> None:
    streams = [client.submit([1, number], max_tokens=400, request_id=f"r{number}", label="who") for number in range(5)]
    shown = subprocess.run(
        command(client, "--once", "--interval", "0.2"), capture_output=True, text=True, timeout=DEADLINE_S, check=True
    ).stdout
    for stream in streams:
        stream.close()
    assert "\x1b" not in shown
    lines = shown.splitlines()
    assert "worker READY" in lines[0]
    assert "requests: 5 live, 2 in the queue" in shown
    assert re.search(r"rates: [1-9]\d*\.\d tokens/s", shown)
    assert "policy fixed:5" in shown
    assert lines[6].split() == list(COLUMNS)
    assert [line.split()[:4] for line in lines[7:]] == [[str(at), "HELD", f"r{at}", "who"] for at in range(3)]


def test_a_terminal_shows_it_live_until_ctrl_c(client: Client) -> None:
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        command(client, "--interval", "0.05"),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(inner)
    seen, until = b"", time.monotonic() + DEADLINE_S
    while seen.count(b"rates:") < 3 and time.monotonic() < until:
        if select.select([outer], [], [], 0.5)[0]:
            seen += os.read(outer, 65536)
    process.send_signal(signal.SIGINT)
    while process.poll() is None and time.monotonic() < until:
        if select.select([outer], [], [], 0.1)[0]:  # a process that cannot write does not end
            try:
                os.read(outer, 65536)
            except OSError:
                break
    assert process.wait(DEADLINE_S) == 0
    os.close(outer)
    assert b"acceptance" in seen
    assert seen.count(b"rates:") >= 3, "it is drawn again and again"


def test_no_engine_there_is_one_line_with_its_address() -> None:
    with pytest.raises(Refused, match=r"^--connect ipc:///nobody/there: no engine is there$"):
        top(connect="ipc:///nobody/there", once=True)
