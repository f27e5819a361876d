"""Messages between scheduler and worker: commands down, reports up.

Owns their shape; `messages.py` is the page to import them from.
"""

import msgspec

from .base import PROTOCOL_VERSION, Message

# ---- worker: rows of a command ----------------------------------------------------------------------------------


class Params(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to sample for a row (design of the filters: docs/sampling.md)."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sample_index: int = 0
    margins: bool = False
    passes: bool = False
    min_tokens: int = 0  # below this output index none of `masked_token_ids` is drawn
    masked_token_ids: list[int] = []
    logprobs: bool = False
    top_logprobs: int = 0


class Open(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sets the window's epoch and keeps `keep_len` positions of the source slot's content (none: keeps nothing)."""

    keep_len: int = 0
    source_slot: int | None = None
    source_epoch: int | None = None


class Seed(Message, frozen=True):
    """A chunk of a prompt into a slot's window."""

    slot: int
    epoch: int
    start_pos: int
    token_ids: list[int]
    last: bool
    propose_len: int
    params: Params
    output_len: int = 0
    opens: Open | None = None


class Decode(Message, frozen=True):
    """One pass over a slot's anchor and its draft."""

    slot: int
    epoch: int
    draft_len: int
    propose_len: int


class Scrub(Message, frozen=True):
    """Forget all that a slot holds, after a fault."""

    slot: int


# ---- worker: rows of a report -----------------------------------------------------------------------------------


class Emitted(Message, frozen=True):
    """What a Decode, or the last Seed of a prompt, added to the output."""

    slot: int
    epoch: int
    token_ids: list[int]
    accepted_len: int
    held_len: int
    draft_token_ids: list[int] | None = None
    confidence_logits: list[float] | None = None
    margins: list[float] | None = None
    held_confidence_logits: list[float] | None = None  # of the draft that the slot now holds, when Init asks
    logprobs: list[float] | None = None  # of each token
    top_token_ids: list[list[int]] | None = None
    top_logprobs: list[list[float]] | None = None


class Seeded(Message, frozen=True):
    """A chunk that was not the last one is in the window."""

    slot: int
    epoch: int


class Scrubbed(Message, frozen=True):
    """The slot holds nothing any more."""

    slot: int


class RowFault(Message, frozen=True):
    """This row could not run; its slot must be scrubbed. The others ran."""

    slot: int
    epoch: int
    code: str
    message: str


# ---- scheduler -> worker ----------------------------------------------------------------------------------------


class CostTable(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Times in ns of a verify pass by rows and tokens a row (`widths`), and of a drafter's block by rows (or none).

    `context_len`: positions that each row's window held meanwhile; `fingerprint`: what was measured.
    """

    fingerprint: dict[str, str]
    context_len: int
    rows: list[int]
    widths: list[int]
    target_ns: list[list[int]]
    draft_ns: list[int] = []


class Init(Message, frozen=True):
    """The worker's settings, all resolved; `drafter` None means plain decoding. Times in seconds."""

    session: int
    target: str
    drafter: str | None
    num_slots: int
    max_model_len: int
    max_step_tokens: int
    acceptance: str = "coupled"
    dtype: str = "float32"
    device: str = "cpu"
    num_threads: int = 1
    runner: str = "eager"  # eager | static (the CPU twin of graphs) | cuda
    drafter_window: int | None = None
    measure_costs: bool = False
    memory_limit_mb: int | None = None  # for windows and steps, beside the weights; None: what is free
    paranoid: bool = False  # watch every window: for tests and suspicions, at twice the time of a step
    confidences: bool = False  # report the confidence logits of every held draft
    costs: CostTable | None = None  # of an earlier worker or of a file: nothing is measured then


class Step(Message, frozen=True):
    """A command. The worker runs `last + 1`, answers a repeat with its stored report, treats a gap as a fault."""

    session: int
    step_id: int
    rows: list[Seed | Decode | Scrub]


class Ping(Message, frozen=True):
    """A question for a sign of life, while there is no step."""

    session: int


class Leave(Message, frozen=True):
    """Say goodbye and exit."""

    session: int


# ---- worker -> scheduler ----------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First word of a worker: `token` proves that this scheduler spawned it."""

    session: int
    token: str
    pid: int
    version: int = PROTOCOL_VERSION


class Loaded(Message, frozen=True):
    """The checkpoints are loaded."""

    session: int


class Ready(Message, frozen=True):
    """Resolved limits. `block_len` is B, or 0 without a drafter; `lost` names what was asked for and is missing."""

    session: int
    num_slots: int
    max_model_len: int
    vocab_size: int
    block_len: int = 0
    has_confidence: bool = False
    drafter_window: int = 0  # context positions that the drafter sees, 0 without one
    eos_token_ids: list[int] = []
    lost: list[str] = []
    warnings: list[str] = []
    window_bytes: int = 0  # memory of one slot
    costs: CostTable | None = None


class Report(Message, frozen=True):
    """One row for each row of the command, in its order. Times in nanoseconds; `cpu_ns` is thread CPU time, `cost_ns`
    the step's time by the clock of the cost table, `wait_ns` how long the worker had waited for the command since its
    last report: scheduler and wire, when work never ends."""

    session: int
    step_id: int
    rows: list[Emitted | Seeded | Scrubbed | RowFault]
    target_ns: int = 0
    draft_ns: int = 0
    cpu_ns: int = 0
    cost_ns: int = 0
    wait_ns: int = 0
    lost: str | None = None
    drafts_lost: int = 0  # rows whose drafter computed what is not finite: they hold nothing
    passes_uncaptured: int = 0  # passes of the target that fit none of the captured graphs and ran eagerly


class StepFault(Message, frozen=True):
    """The step failed before its commit and moved nothing."""

    session: int
    step_id: int
    code: str
    message: str


class Pong(Message, frozen=True):
    """The answer to a Ping, from the loop that does the work: alive is not progressing."""

    session: int
    last_step_id: int


class Goodbye(Message, frozen=True):
    """Last word of a worker or of a client. `refused`: the worker cannot serve its Init, nor could another one."""

    reason: str = ""
    session: int | None = None
    refused: bool = False
