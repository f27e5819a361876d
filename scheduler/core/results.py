"""What comes out of the core: plain records, no behaviour. `service/translate.py` makes frames of them.

All times are integer nanoseconds. Those of the hot path are not frozen, as in `events.py`.
"""

import attrs

from .events import CommandRow, PassDetail


@attrs.frozen
class SpawnWorker:
    session: int


@attrs.frozen
class KillWorker:
    session: int
    reason: str


@attrs.frozen
class SendInit:
    session: int


@attrs.frozen
class SendDrain:
    session: int


@attrs.define
class Command:
    session: int
    step_id: int
    rows: list[CommandRow]


@attrs.frozen
class Welcome:
    client: int


@attrs.frozen
class ForgetClient:
    client: int


@attrs.frozen
class Accepted:
    client: int
    request: int


@attrs.frozen
class Refusal:
    client: int
    request: int
    code: str
    message: str


@attrs.define
class Tokens:
    """Output tokens from `index` on; the first `accepted_len` of them were drafts that stood.

    `draft_len` is None for the token that a prompt's last chunk samples (no pass verified anything).
    """

    client: int
    request: int
    index: int
    token_ids: list[int]
    accepted_len: int
    draft_len: int | None
    start_pos: int
    detail: PassDetail | None = None


@attrs.frozen
class Counts:
    """Truth in numbers for one request: sums over its reported rows, after the cut."""

    num_passes: int  # decode rows reported
    num_zero_passes: int  # of these, with draft_len 0
    num_drafted: int  # tokens that the drafter left in the slot
    num_verified: int
    num_accepted: int
    num_emitted_drafting: int  # emitted by passes with draft_len >= 1
    accepted_at: tuple[int, ...]  # per position: passes that accepted it
    verified_at: tuple[int, ...]  # per position: passes that verified it
    num_restarts: int
    prefix_tokens_reused: int  # prompt positions that were there already, summed over its tenancies


@attrs.frozen
class Ended:
    """The one terminal event. `state` is the REQUEST state's name, `reason` a stable word."""

    client: int
    request: int
    state: str
    reason: str
    message: str
    prompt_len: int
    output_len: int
    counts: Counts
    transitions: dict[str, int]  # "QUEUED>SEED_READY" -> how often


@attrs.frozen
class CancelAck:
    client: int
    request: int
    live: bool  # whether there was something to cancel


@attrs.frozen
class EngineStopped:
    """The engine is at rest and the worker gone: the service may end."""


Output = (
    SpawnWorker
    | KillWorker
    | SendInit
    | SendDrain
    | Command
    | Welcome
    | ForgetClient
    | Accepted
    | Refusal
    | Tokens
    | Ended
    | CancelAck
    | EngineStopped
)
