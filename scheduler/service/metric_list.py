"""Every metric: its name, kind, labels and meaning, and how it is read off a `Reading`.

Owns the list, which the endpoint serves (`metrics_server.py`) and the page prints (`metric_pages.py`). All deep
counters are the core's, so they equal sums over a trace; nothing is derived from settings.
"""

import time

import attrs

from ...statemachine import client, engine, request, slot, worker
from .metric_readers import (
    Reader,
    by_draft_len,
    by_key,
    charged,
    choices,
    distribution,
    positions,
    refused,
    row_faults,
    rows,
    stat,
    state_of,
    states_of,
    tokens,
    transitions,
    worker_seconds,
)

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@attrs.frozen
class Metric:
    """`name` is what a query says, `_total` included; a histogram has `_bucket`, `_sum` and `_count` behind it."""

    name: str
    kind: str
    meaning: str
    read: Reader
    labels: tuple[str, ...] = ()


METRICS: tuple[Metric, ...] = (
    # requests
    Metric("dsparkd_requests_accepted_total", COUNTER, "requests that were accepted", stat("accepted")),
    Metric(
        "dsparkd_requests_ended_total",
        COUNTER,
        "accepted requests that are over, by final state and reason",
        lambda reading: reading.ended.items(),
        ("state", "reason"),
    ),
    Metric(
        "dsparkd_requests_refused_total",
        COUNTER,
        "what clients asked for and was refused (requests, resumes), by code",
        refused,
        ("code",),
    ),
    Metric(
        "dsparkd_requests",
        GAUGE,
        "live requests by state",
        states_of("requests", [state for state in request.State if state not in request.FINALS]),
        ("state",),
    ),
    Metric("dsparkd_queue_length", GAUGE, "accepted requests that wait for a slot", stat("queue_len")),
    Metric(
        "dsparkd_early_requests",
        GAUGE,
        "submits that wait for the first worker, not accepted yet",
        lambda reading: [((), reading.early_len)],
    ),
    Metric(
        "dsparkd_request_restarts_total",
        COUNTER,
        "times that a request was charged a worker's death or a fault, and queued again",
        lambda reading: [((), charged(reading))],
    ),
    Metric(
        "dsparkd_time_to_first_token_seconds",
        HISTOGRAM,
        "from a submit's arrival to its first token, waiting for a slot or a worker included",
        distribution("first"),
    ),
    Metric(
        "dsparkd_inter_token_seconds",
        HISTOGRAM,
        "between tokens of a request after the first; several that come at once share their time equally",
        distribution("gap"),
    ),
    # slots and clients
    Metric("dsparkd_slots", GAUGE, "slots by state", states_of("slots", slot.State), ("state",)),
    Metric(
        "dsparkd_clients",
        GAUGE,
        "clients by state",
        states_of("clients", [state for state in client.State if state is not client.State.GONE]),
        ("state",),
    ),
    # steps
    Metric("dsparkd_steps_total", COUNTER, "commands sent to the worker", stat("steps")),
    Metric("dsparkd_step_rows_total", COUNTER, "rows of these commands", rows, ("kind",)),
    Metric(
        "dsparkd_step_tokens_total",
        COUNTER,
        "what the target was given in these rows: prompt tokens (`seed`), anchors, drafted tokens (`draft`)",
        tokens,
        ("kind",),
    ),
    Metric(
        "dsparkd_step_seconds",
        HISTOGRAM,
        "from a command's leaving to its report's arrival",
        distribution("step"),
    ),
    Metric(
        "dsparkd_command_seconds",
        HISTOGRAM,
        "scheduler time that the worker waits for: from the end of a poll to the next command's leaving",
        distribution("command"),
    ),
    Metric(
        "dsparkd_turn_seconds",
        HISTOGRAM,
        "scheduler time of a turn that took a report, telling clients and writing the trace included",
        distribution("turn"),
    ),
    Metric(
        "dsparkd_worker_seconds_total",
        COUNTER,
        "the worker's own account of its steps: target and drafter, thread CPU time, waiting for commands",
        worker_seconds,
        ("part",),
    ),
    # drafts
    Metric("dsparkd_drafted_tokens_total", COUNTER, "tokens that the drafter left in slots", stat("tokens_drafted")),
    Metric(
        "dsparkd_verified_tokens_total",
        COUNTER,
        "drafted tokens that a reported pass verified",
        stat("tokens_verified"),
    ),
    Metric(
        "dsparkd_accepted_tokens_total", COUNTER, "verified tokens that stood, after the cut", stat("tokens_accepted")
    ),
    Metric(
        "dsparkd_emitted_tokens_total",
        COUNTER,
        "output of all requests, after the cut at stops and limits",
        stat("tokens_emitted"),
    ),
    Metric(
        "dsparkd_emitted_drafting_tokens_total",
        COUNTER,
        'of these, what passes with a draft emitted; over `dsparkd_passes_total{draft_len!="0"}`: acceptance length',
        stat("emitted_drafting"),
    ),
    Metric(
        "dsparkd_position_verified_total",
        COUNTER,
        "passes that verified the draft at this position, 1 is the first",
        positions("verified_at"),
        ("position",),
    ),
    Metric(
        "dsparkd_position_accepted_total",
        COUNTER,
        "passes that accepted the draft at this position",
        positions("accepted_at"),
        ("position",),
    ),
    Metric(
        "dsparkd_passes_total",
        COUNTER,
        "reported decode rows by the length of the draft that they verified; 0: only the anchor",
        by_draft_len,
        ("draft_len",),
    ),
    Metric(
        "dsparkd_draft_choices_total",
        COUNTER,
        "planned decode rows by what chose the length: the `policy` (`auto` decides within the limits that follow), or "
        "what allowed less than it wanted: the `request`'s or the "
        "`engine`'s max_draft_len, the `remaining` output, what the slot `held`, the step's `budget`, or `no_drafter`",
        choices,
        ("chosen_by",),
    ),
    Metric(
        "dsparkd_prefix_hits_total",
        COUNTER,
        "tenancies that began with a prefix that was there already",
        lambda reading: [((), reading.sums["prefix_hits"])],
    ),
    Metric(
        "dsparkd_prefix_tokens_reused_total",
        COUNTER,
        "prompt positions that were taken over and not seeded",
        stat("prefix_tokens_reused"),
    ),
    # worker, faults
    Metric(
        "dsparkd_worker_state",
        GAUGE,
        "1 for the state that the worker is in",
        state_of("worker", worker.State),
        ("state",),
    ),
    Metric(
        "dsparkd_engine_state",
        GAUGE,
        "1 for the state that the engine is in",
        state_of("engine", engine.State),
        ("state",),
    ),
    Metric("dsparkd_healthy", GAUGE, "1 while health is ok", lambda reading: [((), int(reading.healthy))]),
    Metric(
        "dsparkd_reading_age_seconds",
        GAUGE,
        "how old these numbers are: more than a moment when the scheduler is busy with something else",
        lambda reading: [((), (time.monotonic_ns() - reading.taken_ns) / 1e9)],
    ),
    Metric("dsparkd_worker_session", GAUGE, "which worker this is, counted from 1", stat("session")),
    Metric("dsparkd_worker_respawns_total", COUNTER, "workers that were spawned after a death", stat("respawns")),
    Metric("dsparkd_step_faults_total", COUNTER, "steps that failed whole and moved nothing", stat("step_faults")),
    Metric(
        "dsparkd_row_faults_total",
        COUNTER,
        "faults that cost a live request its slot",
        lambda reading: [((), row_faults(reading))],
    ),
    Metric("dsparkd_internal_errors_total", COUNTER, "requests failed by a bug of ours", stat("internal_errors")),
    Metric("dsparkd_rows_discarded_total", COUNTER, "report rows of requests that had ended", stat("rows_discarded")),
    Metric("dsparkd_tokens_discarded_total", COUNTER, "tokens in these rows, told to nobody", stat("tokens_discarded")),
    Metric("dsparkd_reports_dropped_total", COUNTER, "messages of dead or earlier workers", stat("reports_dropped")),
    Metric(
        "dsparkd_frames_dropped_total",
        COUNTER,
        "frames that made no sense, or came from a stranger",
        by_key(lambda reading: reading.dropped),
        ("edge",),
    ),
    Metric(
        "dsparkd_drafts_lost_total",
        COUNTER,
        "rows that hold no draft because the drafter computed what is not finite",
        lambda reading: [((), reading.worker_times["drafts_lost"])],
    ),
    Metric(
        "dsparkd_passes_uncaptured_total",
        COUNTER,
        "passes of the target that fit none of the captured graphs and ran eagerly",
        lambda reading: [((), reading.worker_times["passes_uncaptured"])],
    ),
    Metric(
        "dsparkd_transitions_total",
        COUNTER,
        "steps of the state machines, by row of their tables; rows that were never taken are not there",
        transitions,
        ("machine", "from", "event", "case", "to"),
    ),
)
