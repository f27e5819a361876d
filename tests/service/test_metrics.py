"""Metrics tell what happened: sums over the trace, the page's names, and no influence on whom they watch."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, local
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.tables import TABLES
from dsparkd.scheduler.service.metric_list import COUNTER, HISTOGRAM, METRICS
from dsparkd.scheduler.trace.replay import replay
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from metrics_support import scrape

Serve = Callable[..., Any]
ROOT = Path(__file__).parents[2]
ANY_PORT = "127.0.0.1:0"
SCRAPE = frozenset({"instance", "job"})  # labels that Prometheus itself adds


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
