"""What goes into the core, and the rows of commands and reports: plain records, no behaviour.

Owns the core's vocabulary. `service/translate.py` makes inputs of frames; the core knows integers
(client, request, slot, epoch, session, step_id) and token ids only. All times are integer nanoseconds of one clock.
The records of the hot path are not frozen: a frozen one costs twice as much to make, and nobody keeps one to change it.
"""

import attrs

from .asked import Options as Options
from .asked import Params as Params
from .costs import CostTable

# ---- rows of a command and of a report --------------------------------------------------------------------------


@attrs.frozen
class Open:
    """The first Seed of a tenancy opens the window: nothing kept, or `keep_len` positions of a source's content."""

    keep_len: int = 0
    source_slot: int | None = None
    source_epoch: int | None = None


@attrs.define
class Seed:
    """A chunk of a prompt: `token_ids` at positions start_pos, start_pos + 1, ...; `last` also samples and drafts."""

    slot: int
    epoch: int
    start_pos: int
    token_ids: list[int]
    last: bool
    propose_len: int
    params: Params
    output_len: int  # how many trailing token ids of the whole text are output already
    opens: Open | None


@attrs.define
class Decode:
    """The anchor and the first `draft_len` held drafts."""

    slot: int
    epoch: int
    draft_len: int
    propose_len: int


@attrs.define
class Scrub:
    """Make a quarantined slot's window unreadable."""

    slot: int


CommandRow = Seed | Decode | Scrub


@attrs.define
class PassDetail:
    """Optional parts of a report row, for who asked for them."""

    draft_token_ids: list[int] | None = None
    confidence_logits: list[float] | None = None
    margins: list[float] | None = None
    logprobs: list[float] | None = None  # of each emitted token
    top_token_ids: list[list[int]] | None = None  # the best tokens in each one's place, and
    top_logprobs: list[list[float]] | None = None  # their log-probabilities


@attrs.frozen
class TextStop:
    """A stop string in a request's text: this row's token number `found_len` completes it, and the output ends after
    its first `keep_len` tokens, which lie wholly before it."""

    found_len: int
    keep_len: int


@attrs.define
class Emitted:
    """Tokens of a Decode row or of a last Seed row: `accepted_len` drafts and one extra token, uncut.

    The worker knows no text: the last two are what the service has found in it. They come with the report, so a replay
    has them as well.
    """

    slot: int
    epoch: int
    token_ids: list[int]
    accepted_len: int
    held_len: int
    detail: PassDetail | None = None
    held_confidence_logits: list[float] | None = None  # of the draft that the slot now holds, for who asked
    hold_len: int = 0  # how many of the output's last tokens may belong to a stop string: nobody hears of them yet
    text_stop: TextStop | None = None


@attrs.define
class Seeded:
    """A chunk that was not the last is in the window."""

    slot: int
    epoch: int


@attrs.define
class Scrubbed:
    slot: int


@attrs.define
class RowFault:
    """This row alone failed; its window is in doubt."""

    slot: int
    epoch: int
    code: str
    message: str


ReportRow = Emitted | Seeded | Scrubbed | RowFault

# ---- inputs -----------------------------------------------------------------------------------------------------


@attrs.frozen
class ClientHello:
    client: int


@attrs.frozen
class ClientUnreachable:
    client: int


@attrs.frozen
class ClientGoodbye:
    client: int


@attrs.frozen
class Submit:
    client: int
    request: int
    prompt: tuple[int, ...]
    options: Options = attrs.field(factory=Options)
    deadline_ns: int | None = None


@attrs.frozen
class Recover:
    """A request that an earlier scheduler accepted and that told its client `token_ids`: it goes on from there.

    It is not judged again. Its client has said hello; `request` is not live.
    """

    submit: Submit
    token_ids: tuple[int, ...] = ()


@attrs.frozen
class Cancel:
    client: int
    request: int


@attrs.frozen
class Resume:
    """Send the output of a live request again from `from_index` on."""

    client: int
    request: int
    from_index: int


@attrs.frozen
class WorkerHello:
    session: int


@attrs.frozen
class WorkerLoaded:
    session: int


@attrs.frozen
class WorkerReady:
    """`block_len` is B, or 0 without a drafter; `lost` names what was asked for and is missing."""

    session: int
    num_slots: int
    max_model_len: int
    block_len: int
    lost: tuple[str, ...] = ()
    costs: CostTable | None = None  # as measured; the core corrects what it adopts
    drafter_window: int = 1 << 62  # positions of the drafter's context ring
    has_confidence: bool = False


@attrs.frozen
class WorkerBeat:
    """An answer of the working loop: it is alive, and this is the last step it finished."""

    session: int
    last_step_id: int


@attrs.frozen
class WorkerDied:
    session: int
    reason: str


@attrs.frozen
class WorkerRefused:
    """The worker cannot serve what it was told to: a bad checkpoint or setting. Another one could not either."""

    session: int
    reason: str


@attrs.frozen
class WorkerBroke:
    """The worker sent what does not decode."""

    session: int
    reason: str


@attrs.define
class Report:
    """`lost` names what failed after the commit and cost only drafts (a drafter fault); `cost_ns` is what the step
    took by the clock of the cost table, 0 when nobody measured."""

    session: int
    step_id: int
    rows: list[ReportRow]
    lost: str | None = None
    cost_ns: int = 0


@attrs.frozen
class StepFault:
    """The whole step failed before its commit and moved nothing."""

    session: int
    step_id: int
    code: str
    message: str


@attrs.frozen
class Drain:
    """Finish what is live, refuse what is new, then stop."""


@attrs.frozen
class Stop:
    """Stop now."""


@attrs.frozen
class Tick:
    """The end of a poll: fires due timers, then plans. Only a Tick plans."""

    now_ns: int


Input = (
    ClientHello
    | ClientUnreachable
    | ClientGoodbye
    | Submit
    | Recover
    | Cancel
    | Resume
    | WorkerHello
    | WorkerLoaded
    | WorkerReady
    | WorkerBeat
    | WorkerDied
    | WorkerRefused
    | WorkerBroke
    | Report
    | StepFault
    | Drain
    | Stop
    | Tick
)
