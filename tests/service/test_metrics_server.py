"""The metrics endpoint as a server: who may reach it, what hangs on it, and what it leaves behind."""

import itertools
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.distribution import Distribution
from dsparkd.scheduler.service.loop import Service
from dsparkd.statemachine.errors import Refused
from hypothesis import given
from hypothesis import strategies as st
from metrics_support import Scrape, scrape
from prometheus_client import REGISTRY

Serve = Callable[..., Any]
ROOT = Path(__file__).parents[2]
ANY_PORT = "127.0.0.1:0"
SCRAPE = frozenset({"instance", "job"})  # labels that Prometheus itself adds


def listening(pid: int) -> int:
    """How many TCP sockets the process listens on."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(str(entry.readlink()))
        except OSError:
            continue
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[3] == "0A" and f"socket:[{fields[9]}]" in own for fields in lines)


def test_nothing_listens_unless_metrics_are_asked_for_and_every_setting_is_shown_in_stats_and_said_once(
    serve: Serve,
) -> None:
    engine = serve(policy=None, draft_len_schedule={2: 7, 4: 3})
    stats = engine.client().stats()
    assert listening(engine.process.pid) == 0
    assert stats["metrics_url"] is None
    shown = stats["settings"]
    assert set(shown) == {field.name for field in attrs.fields(Settings)}
    assert Settings.from_mapping(shown) == engine.settings
    lines = [json.loads(line) for line in engine.log().splitlines() if '"serving"' in line]
    assert [{key: line[key] for key in shown} for line in lines] == [shown]


def test_a_taken_port_ends_the_start_with_one_error_that_names_it(serve: Serve, tmp_path: Path) -> None:
    trace = tmp_path / "run.dsptrace"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        engine = serve(metrics=address, trace=str(trace))
        assert engine.process.wait(60) == 1
    assert f"metrics = '{address}': cannot listen there" in engine.log()
    assert "Traceback" not in engine.log()
    assert not trace.exists(), "an engine that does not start leaves no file"


def test_scrapers_that_hang_hold_up_neither_requests_nor_other_scrapes_nor_the_end(serve: Serve) -> None:
    engine = serve(metrics=ANY_PORT)
    client = engine.client()
    port = int(client.stats()["metrics_url"].rpartition(":")[2].partition("/")[0])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    deaf = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    try:
        for one in deaf:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        assert len(client.generate([1, 2], max_tokens=40).token_ids) == 40
        assert scrape(client).get("dsparkd_emitted_tokens_total") == 40
        assert engine.stop() == 0
    finally:
        for one in [*silent, *deaf]:
            one.close()


def test_two_engines_in_one_process_count_apart_and_leave_nothing_in_the_librarys_registry(tmp_path: Path) -> None:
    before = listening(os.getpid())
    services = [
        Service(Settings(target="scripted", bind=f"ipc://{tmp_path}/{at}", metrics=ANY_PORT)) for at in range(2)
    ]
    try:
        urls = [service._watch.url for service in services]
        assert len({*urls, None}) == 3
        assert listening(os.getpid()) == before + 2
        assert not any(family.name.startswith("dsparkd") for family in REGISTRY.collect())
        found = Scrape(str(urls[0]))  # nobody ends its turns: what is known is told
        assert found.get("dsparkd_slots", state="FREE") == 8
    finally:
        for service in services:
            service.close()


def test_an_engine_that_cannot_start_leaves_no_server_behind(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(Refused, match="trace"):
        Service(
            Settings(
                target="scripted", bind=f"ipc://{tmp_path}/e", metrics=ANY_PORT, trace=f"{tmp_path}/no/run.dsptrace"
            )
        )
    assert threading.active_count() == threads


def test_who_asks_for_no_metrics_loads_no_web_server(run_python: Callable[[str], Any]) -> None:
    code = "import sys, dsparkd.scheduler.service.run; assert 'prometheus_client' not in sys.modules"
    assert run_python(code).returncode == 0


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "192.168.1.1:1", "[::]:9464", "example.org:80"])
def test_a_host_that_others_reach_needs_a_second_setting_and_is_told_with_every_other_fault(address: str) -> None:
    with pytest.raises(Refused) as caught:
        Settings.from_mapping({"target": "t", "metrics": address, "num_slots": 0, "wibble": 1})
    text = str(caught.value)
    for part in (f"metrics = {address!r}: anybody who reaches", "num_slots = 0", "wibble: unknown", "3 problem(s)"):
        assert part in text
    assert Settings(target="t", metrics=address, metrics_any_interface=True).metrics == address


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "localhost:0", "[::1]:9464", "127.1.2.3:65535"])
def test_a_loopback_host_needs_no_second_setting(address: str) -> None:
    assert Settings(target="t", metrics=address).metrics == address


@pytest.mark.parametrize(
    "address", ["9464", ":9464", "127.0.0.1", "127.0.0.1:", "::1:9464", "127.0.0.1:65536", "h:-1", ""]
)
def test_what_is_no_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(Refused, match=r"metrics = .*expected HOST:PORT"):
        Settings.from_mapping({"target": "t", "metrics": address})


def test_the_second_setting_alone_is_refused() -> None:
    with pytest.raises(Refused, match="expected metrics = HOST:PORT with it"):
        Settings(target="t", metrics_any_interface=True)


@given(
    bounds=st.lists(st.floats(0.001, 10), min_size=1, max_size=8, unique=True).map(sorted),
    added=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5))),
)
def test_a_distribution_counts_each_value_in_the_first_bucket_that_holds_it(
    bounds: list[float], added: list[tuple[float, int]]
) -> None:
    one = Distribution(bounds)
    for value, times in added:
        one.add(value, times)
    sums = list(itertools.accumulate(one.counts))
    expected = [sum(times for value, times in added if value <= bound) for bound in bounds]
    assert sums == [*expected, sum(times for _, times in added)]
    assert one.total == pytest.approx(sum(value * times for value, times in added))
    twin = one.copy()
    twin.add(1.0)
    assert sum(one.counts) == sum(times for _, times in added)
