"""Every key of an engine's settings: its type, default, what it may be, its unit and its meaning, in one place.

Owns nothing but that list. `config.py` makes `Settings` of it, which is what everybody else uses; the page of settings
and the example file are made of it too (`setting_pages.py`).
"""

import attrs

from .setting_checks import (
    ANY,
    FLAG,
    HOST_PORT,
    POLICY_TEXT,
    SECONDS,
    TEXT,
    about,
    by_rows,
    integer,
    one_of,
    optional,
    setting,
)


@attrs.frozen(kw_only=True)
class Keys:
    """The fields of `Settings`, in the order of the page."""

    target: str = setting(
        attrs.NOTHING,
        TEXT,
        "folder of the target's checkpoint",
        unset="the shipped pair's",
        example="/models/target",
    )
    drafter: str | None = setting(
        None,
        optional(TEXT),
        "folder of the drafter's checkpoint; `none` decodes plainly",
        unset="the shipped pair's when no target is named, else none",
        example="/models/drafter",
    )
    bind: str = setting("tcp://127.0.0.1:5599", TEXT, "where clients connect: `ipc://PATH` or tcp on loopback")
    curve_secret: str | None = setting(
        None,
        optional(TEXT),
        "the engine's secret key file, for a `bind` beyond loopback ([security](security.md))",
        example="keys/engine.key_secret",
    )
    curve_clients: str | None = setting(
        None, optional(TEXT), "folder of the public key files of clients that are let in", example="keys/clients"
    )
    num_slots: int = setting(8, integer(1), "requests that run at once")
    max_model_len: int = setting(512, integer(2), "longest prompt + output", unit="tokens")
    max_step_tokens: int = setting(
        512, integer(1), "most tokens in one step: decode rows first, then chunks of prompts", unit="tokens"
    )
    max_queue: int = setting(1024, integer(1), "requests that may wait; more are refused (QUEUE_FULL)", unit="requests")
    max_prompt_len: int | None = setting(
        None,
        optional(integer(1)),
        "longer prompts are refused (PROMPT_TOO_LONG); so is text of more than 64 characters for each of max_model_len",
        unit="tokens",
        unset="max_model_len - 1",
        example=256,
    )
    max_draft_len: int | None = setting(
        None,
        optional(integer(0)),
        "the longest draft that any policy gets",
        unit="tokens",
        unset="the drafter's block",
        example=4,
    )
    drafter_window: int | None = setting(
        None,
        optional(integer(1)),
        "context positions that the drafter sees",
        unit="tokens",
        unset="the checkpoint's sliding window, else max_model_len",
        example=256,
    )
    prefix_reuse: bool = setting(
        True, FLAG, "a prompt takes over what a slot still holds of its beginning ([prefix reuse](prefix-reuse.md))"
    )
    min_reuse_len: int = setting(16, integer(1), "the shortest prefix that is worth it", unit="tokens")
    acceptance: str = setting(
        "coupled", one_of("coupled", "rejection"), "`coupled` or `rejection` ([sampling](sampling.md))"
    )
    policy: str | None = setting(
        None,
        optional(POLICY_TEXT),
        "how long drafts are ([policies](policies.md)): `fixed:N`, `schedule:1=7/4=3/8=1`, `max_concurrency:4`, "
        "`confidence`, `auto`, or a policy of your own",
        unset="auto",
        example="auto",
    )
    draft_len_schedule: dict[int, int] | None = attrs.field(
        default=None,
        converter=by_rows,
        metadata=about(
            ANY,
            'the same as `policy = "schedule:..."`, as a table: `{1 = 7, 4 = 3, 8 = 1}`',
            unit="tokens by rows",
            example={1: 7, 4: 3, 8: 1},
        ),
    )
    max_concurrency: int | None = setting(
        None, optional(integer(1)), 'the same as `policy = "max_concurrency:N"`', unit="rows", example=4
    )
    max_restarts: int = setting(3, integer(0), "worker deaths or faults that one request survives")
    restart_budget: int = setting(
        5, integer(0), "workers in a row that are spawned anew with no token between, before the engine gives up"
    )
    heartbeat_s: float = setting(
        2.0, SECONDS, "how often an idle worker is asked; five silent ones in a row are its death", unit="s"
    )
    load_deadline_s: float = setting(120.0, SECONDS, "how long loading, and then warming up, may take", unit="s")
    step_deadline_s: float = setting(
        30.0, SECONDS, "how long a step may take; half of it makes health bad, all of it kills the worker", unit="s"
    )
    drain_deadline_s: float = setting(
        30.0, SECONDS, "what is not finished by then after SIGTERM fails (DRAIN_DEADLINE)", unit="s"
    )
    client_grace_s: float = setting(10.0, SECONDS, "how long requests of an unreachable client go on", unit="s")
    dtype: str = setting("float32", one_of("float32", "bfloat16", "float16"), "`float32`, `bfloat16` or `float16`")
    device: str = setting("cpu", TEXT, "a torch device")
    num_threads: int = setting(1, integer(1), "torch's threads in the worker")
    runner: str = setting(
        "eager",
        one_of("eager", "static", "cuda"),
        "`eager`; `cuda`: decode steps as CUDA graphs; `static`: their twin on the CPU",
    )
    memory_limit_mb: int | None = setting(
        None,
        optional(integer(1)),
        "for windows and the work of a step; what does not fit is refused with the bytes of a slot and a `num_slots` "
        "that would ([warm-up](warm-up.md))",
        unit="MiB",
        unset="what is free when the weights are loaded",
        example=2048,
    )
    measure_costs: bool = setting(
        True,
        FLAG,
        "measure what steps cost while the worker warms up ([costs](policies.md#what-steps-cost)): at most some 300 ms "
        "more",
    )
    cost_table: str | None = setting(
        None,
        optional(TEXT),
        "a file of such times, measured earlier: nothing is measured then",
        example="costs.json",
    )
    max_client_requests: int | None = setting(
        None,
        optional(integer(1)),
        "live requests that one client may have; more are refused (CLIENT_LIMIT)",
        unit="requests",
        unset="as many as the queue takes",
        example=64,
    )
    max_kept: int = setting(
        256,
        integer(1),
        "ended requests of a client that are kept for it until it says that it has heard the end; the oldest go first",
        unit="requests",
    )
    journal: str | None = setting(
        None,
        optional(TEXT),
        "keep what clients were promised in this folder, so that a new scheduler goes on ([recovery](recovery.md))",
        example="journal/",
    )
    journal_sync: str = setting(
        "accept",
        one_of("accept", "interval", "never"),
        "when to wait for the disk: whenever a request is accepted, every journal_interval_s, or never",
    )
    journal_interval_s: float = setting(1.0, SECONDS, "for journal_sync = interval", unit="s")
    journal_segment_mb: int = setting(64, integer(1), "how long its file gets before it is begun anew", unit="MiB")
    respawn_budget: int = setting(
        5, integer(0), "how often in a row the scheduler may die soon after its start, and is started again"
    )
    trace: str | None = setting(
        None,
        optional(TEXT),
        "record every input there: a new file, or rotating files in a `FOLDER/` ([traces](traces.md))",
        example="traces/",
    )
    trace_outputs: str = setting(
        "digest", one_of("digest", "full"), "`digest`: 64 bits of what was said to each input; `full`: all of it"
    )
    trace_segment_mb: int = setting(256, integer(1), "how long files in a folder get", unit="MiB")
    trace_redact: str | None = setting(
        None,
        optional(TEXT),
        "file with a key of 16 bytes or more: token ids are renamed by a permutation that the key decides",
        example="trace.key",
    )
    paranoid: bool = setting(
        False,
        FLAG,
        "the worker watches itself: unwritten rows are poison, every window is compared around every step "
        "([what for](invariants.md)); for tests and suspicions, a step takes about twice as long",
    )
    confidence_calibration: str | None = setting(
        None,
        optional(TEXT),
        "temperatures for the policy [confidence](policies.md#confidence), which `dsparkd calibrate -o FILE` wrote",
        example="calibration.json",
    )
    metrics: str | None = setting(
        None,
        optional(HOST_PORT),
        "serve Prometheus metrics at `HOST:PORT`, a loopback host ([metrics](metrics.md)); port 0: any free one, the "
        "log says which",
        example="127.0.0.1:9464",
    )
    metrics_any_interface: bool = setting(
        False, FLAG, "let `metrics` name a host that others reach: everybody there can read them, nothing is encrypted"
    )
    logs: str = setting(
        "auto",
        one_of("auto", "console", "json"),
        "the log on stderr: `console` for people, `json` one object a line; `auto`: by whether it is a terminal",
    )
    log_level: str = setting(
        "info",
        one_of("debug", "info", "warning"),
        "`debug` also tells every step of every state machine (`transition`), which costs much time",
    )
