"""Metrics tell what happened: sums over the trace, the page's names, and no influence on whom they watch."""

import itertools
import json
import os
import random
import re
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from dsparkd import Client, local
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.tables import TABLES
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.distribution import Distribution
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.service.metric_list import COUNTER, HISTOGRAM, METRICS
from dsparkd.scheduler.trace.replay import replay
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

Serve = Callable[..., Any]
ROOT = Path(__file__).parents[2]
ANY_PORT = "127.0.0.1:0"
SCRAPE = frozenset({"instance", "job"})  # labels that Prometheus itself adds


class Scrape:
    """One answer of an endpoint: samples by name, each with its labels."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=30) as answer:
            self.families = list(text_string_to_metric_families(answer.read().decode()))
        self.samples = [sample for family in self.families for sample in family.samples]

    def get(self, name: str, **labels: str) -> float:
        """The sum over the samples of a name with at least these labels."""
        return sum(one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """What is not 0."""
        found: Counter[str] = Counter()
        for one in self.samples:
            if one.name == name and one.value:
                found[one.labels[label]] += one.value
        return dict(found)


def scrape(client: Any) -> Scrape:
    return Scrape(client.stats()["metrics_url"])


def use_up(client: Any, number: int, *, rng: random.Random) -> tuple[int, int]:
    """Many requests with options of all kinds, some cancelled, one resumed. Return (tokens received, refusals)."""
    received = refused = 0
    streams = []
    shared = [rng.randrange(1000) for _ in range(40)]
    for at in range(number):
        options: dict[str, Any] = {"max_tokens": rng.randint(1, 60)}
        if rng.random() < 0.3:
            options["max_draft_len"] = rng.randint(0, 4)
        if rng.random() < 0.3:
            options["stop_token_ids"] = [rng.randrange(1000) for _ in range(60)]
        prompt = [*shared, at] if rng.random() < 0.4 else [rng.randrange(1000) for _ in range(rng.randint(1, 50))]
        streams.append((client.submit([] if at % 11 == 10 else prompt, **options), at % 7 == 3))
    for stream, cancels in streams:
        try:
            for message in stream:
                if isinstance(message, wire.Tokens):
                    received += len(message.token_ids)
                    if cancels:
                        stream.cancel()
        except Refused:
            refused += 1
    return received, refused


def said_in(path: Path) -> tuple[list[events.Input], list[results.Output]]:
    """The inputs of a trace, and what the core said to them; what it repeated for a resume is left out."""
    inputs, said = [], []
    for step in replay(path):
        assert step.same
        inputs.append(step.event.input)
        said += [] if isinstance(step.event.input, events.Resume) else step.outputs
    return inputs, said


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "schedule:2=7/4=3/8=1"},
        {"policy": "max_concurrency:3", "max_draft_len": 3, "max_step_tokens": 12},
    ],
)
def test_l084_every_deep_counter_of_the_endpoint_is_a_sum_over_the_trace(
    serve: Serve, tmp_path: Path, settings: dict[str, Any]
) -> None:
    path = tmp_path / "run.dsptrace"
    target = "scripted:mean=3.2,step_us=300,fault_at=9"
    engine = serve(target=target, metrics=ANY_PORT, trace=str(path), num_slots=4, min_reuse_len=8, **settings)
    client = engine.client()
    again = client.submit([5, 6], request_id="again", max_tokens=100)
    assert isinstance([next(again), next(again), next(again)][-1], wire.Tokens)
    list(client.resume("again"))
    received, refused = use_up(client, 20, rng=random.Random(7))
    found = scrape(client)
    engine.stop()

    inputs, said = said_in(path)
    rows = [row for one in said if isinstance(one, results.Command) for row in one.rows]
    kinds = Counter(type(row).__name__.lower() for row in rows)
    assert found.by("dsparkd_step_rows_total", "kind") == kinds
    assert found.get("dsparkd_steps_total") == sum(isinstance(one, results.Command) for one in said)
    decode = [row for row in rows if isinstance(row, events.Decode)]
    seeds = [row for row in rows if isinstance(row, events.Seed)]
    assert found.by("dsparkd_step_tokens_total", "kind") == {
        "seed": sum(len(row.token_ids) for row in seeds),
        "anchor": len(decode),
        "draft": sum(row.draft_len for row in decode),
    }
    hits = [row.opens.keep_len for row in seeds if row.opens is not None and row.opens.keep_len > 0]
    assert hits, "some prompts begin alike"
    assert found.get("dsparkd_prefix_hits_total") == len(hits)
    assert found.get("dsparkd_prefix_tokens_reused_total") <= sum(hits)

    told = [one for one in said if isinstance(one, results.Tokens)]
    passes = [one for one in told if one.draft_len is not None]
    lens = Counter(str(one.draft_len) for one in passes)
    assert found.by("dsparkd_passes_total", "draft_len") == lens
    assert found.get("dsparkd_emitted_tokens_total") == sum(len(one.token_ids) for one in told) >= received
    drafting = [one for one in passes if one.draft_len]
    assert found.get("dsparkd_emitted_drafting_tokens_total") == sum(len(one.token_ids) for one in drafting)
    assert found.get("dsparkd_verified_tokens_total") == sum(one.draft_len or 0 for one in passes)
    assert found.get("dsparkd_accepted_tokens_total") == sum(one.accepted_len for one in passes)
    for position in range(1, 8):
        label = {"position": str(position)}
        verified = sum((one.draft_len or 0) >= position for one in passes)
        assert found.get("dsparkd_position_verified_total", **label) == verified
        assert found.get("dsparkd_position_accepted_total", **label) == sum(
            one.accepted_len >= position for one in passes
        )
    ended = [one for one in said if isinstance(one, results.Ended)]
    assert found.get("dsparkd_drafted_tokens_total") == sum(one.counts.num_drafted for one in ended)
    assert found.get("dsparkd_requests_accepted_total") == len(ended)
    for one in ended:
        same = sum((other.state, other.reason) == (one.state, one.reason) for other in ended)
        assert found.get("dsparkd_requests_ended_total", state=one.state, reason=one.reason) == same
    assert found.by("dsparkd_requests_refused_total", "code") == {"EMPTY_PROMPT": refused}
    assert found.get("dsparkd_step_faults_total") == sum(isinstance(one, events.StepFault) for one in inputs) == 1

    # What only the loop sees is counted as often as the trace has it.
    assert found.get("dsparkd_step_seconds_count") == sum(isinstance(one, events.Report) for one in inputs)
    assert found.get("dsparkd_command_seconds_count") == found.get("dsparkd_steps_total")
    assert found.get("dsparkd_time_to_first_token_seconds_count") == len({one.request for one in told})
    firsts = sum(len(one.token_ids) for one in told if one.index == 0)
    gaps = found.get("dsparkd_inter_token_seconds_count")
    assert gaps == found.get("dsparkd_emitted_tokens_total") - firsts

    chosen = found.by("dsparkd_draft_choices_total", "chosen_by")
    assert sum(chosen.values()) == len(decode)
    assert chosen["request"] > 0
    assert ("engine" in chosen) == ("max_draft_len" in settings)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of an engine whose drafts nearly always stand."""
    with local(target="scripted:mean=8", drafter="x", metrics=ANY_PORT, policy="fixed:7") as client:
        yield client


def test_l082_the_endpoint_counts_what_clients_got_and_nothing_behind_a_stop(client: Client) -> None:
    whole = client.generate([1], max_tokens=12).token_ids
    stop = whole[3]
    assert stop not in whole[:3]
    before = scrape(client)
    result = client.generate([1], max_tokens=40, stop_token_ids=[stop])
    after = scrape(client)
    assert result.token_ids == whole[:4]
    grown = {name: after.get(name) - before.get(name) for name in ("dsparkd_emitted_tokens_total",)}
    assert grown["dsparkd_emitted_tokens_total"] == 4
    drafting = "dsparkd_emitted_drafting_tokens_total"
    assert after.get(drafting) - before.get(drafting) == result.counts.num_emitted_drafting <= 4
    accepted = "dsparkd_accepted_tokens_total"
    assert after.get(accepted) - before.get(accepted) == result.counts.num_accepted <= 3


def test_a_death_shows_in_the_workers_state_its_session_and_its_requests_restarts(serve: Serve) -> None:
    engine = serve(target="scripted:mean=3,step_us=1000,exit_at=20", metrics=ANY_PORT, policy="fixed:0")
    client = engine.client()
    assert client.generate([1, 2], max_tokens=30).counts.num_restarts >= 1
    stats, found = client.stats(), scrape(client)
    assert found.get("dsparkd_worker_respawns_total") == stats["respawns"] >= 1
    assert found.get("dsparkd_worker_session") == stats["session"]
    assert found.get("dsparkd_request_restarts_total") >= 1
    assert found.by("dsparkd_worker_state", "state") == {stats["worker"]: 1}
    moves = Counter[str]()
    for one in found.samples:
        if one.name == "dsparkd_transitions_total" and one.labels["machine"] == "WORKER":
            moves[f"{one.labels['from']}>{one.labels['to']}"] += int(one.value)
    assert moves == stats["transitions"]["WORKER"]


def test_the_endpoint_answers_while_no_worker_is_ready(serve: Serve, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = serve(target=f"scripted:gate={gate}", metrics=ANY_PORT).client(ready=False)
    stream = client.submit([1], max_tokens=2)
    found = scrape(client)
    assert found.get("dsparkd_early_requests") == 1
    assert found.get("dsparkd_worker_state", state="READY") == 0
    assert found.get("dsparkd_healthy") == 0
    gate.touch()
    assert len(stream.result().token_ids) == 2
    assert scrape(client).get("dsparkd_time_to_first_token_seconds_count") == 1


# ---- names ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    """Of each sample's name, the labels that it carries, by the list of metrics."""
    found = {}
    for metric in METRICS:
        if metric.kind == HISTOGRAM:
            found[metric.name + "_bucket"] = {*metric.labels, "le"}
            found[metric.name + "_sum"] = found[metric.name + "_count"] = set(metric.labels)
        else:
            found[metric.name] = set(metric.labels)
    return found


def test_the_endpoint_serves_what_the_page_lists_with_these_labels_and_nothing_else(
    client: Client, names: dict[str, set[str]]
) -> None:
    use_up(client, 12, rng=random.Random(3))
    found = scrape(client)
    assert {sample.name for sample in found.samples} == set(names)
    for sample in found.samples:
        assert set(sample.labels) == names[sample.name]
    kinds = {family.name: family.type for family in found.families}
    for metric in METRICS:
        assert kinds[metric.name.removesuffix("_total")] == metric.kind
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [metric.name for metric in METRICS]


def test_names_follow_the_convention() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"dsparkd_[a-z_]+", metric.name)
        assert (metric.kind == COUNTER) == metric.name.endswith("_total"), metric.name
        assert (metric.kind == HISTOGRAM) <= metric.name.endswith("_seconds"), metric.name


def queries() -> list[tuple[str, str]]:
    board = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
    return [(one["expr"], one["legendFormat"]) for panel in board["panels"] for one in panel["targets"]]


@pytest.mark.parametrize(("query", "legend"), queries())
def test_every_query_of_the_dashboard_names_metrics_and_labels_that_exist(
    query: str, legend: str, names: dict[str, set[str]]
) -> None:
    used = re.findall(r"\b(dsparkd_\w+)(\{[^}]*\})?", query)
    assert used
    for name, matchers in used:
        assert name in names
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        assert set(labels) <= names[name] | SCRAPE
        assert bool(matchers) == bool(labels)
    known = set[str]().union(*(names[name] for name, _ in used)) | SCRAPE
    grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query)
    kept = {label.strip() for group in grouped for label in group.split(",")}
    assert kept <= known
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept
    every = {event.name for table in TABLES.values() for event in table.page.events}
    for pattern in re.findall(r'event=~"([^"]*)"', query):
        assert set(pattern.split("|")) <= every


def test_the_dashboard_shows_most_metrics(names: dict[str, set[str]]) -> None:
    shown = set(re.findall(r"dsparkd_\w+", " ".join(query for query, _ in queries())))
    families = {re.sub(r"_bucket$", "", name) for name in shown}
    assert families <= {metric.name for metric in METRICS}
    assert len(families) > 0.9 * len(METRICS)


# ---- the server -------------------------------------------------------------------------------------------------


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
