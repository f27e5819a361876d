"""Messages between client and scheduler: requests in, streams out.

Owns their shape; `messages.py` is the page to import them from.
"""

from typing import Any

import msgspec

from .base import PROTOCOL_VERSION, Message, RequestId

# ---- client -> scheduler ----------------------------------------------------------------------------------------


class ClientHello(Message, frozen=True):
    """`resume_token` is what an earlier Welcome handed out, to be the same client again."""

    version: int = PROTOCOL_VERSION
    resume_token: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: str
    content: str


class Submit(Message, frozen=True):
    """Exactly one of `prompt`, `prompt_token_ids` and `messages`, which the checkpoint's chat template makes a prompt.
    `options` is decoded apart, so that a bad one can be refused."""

    request_id: RequestId
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    options: msgspec.Raw = msgspec.Raw(b"\x80")
    messages: list[ChatMessage] | None = None


class RequestOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Every option of a request. An unknown one is refused by name (UNSUPPORTED_OPTION)."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    sample_index: int = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    deadline_ms: int | None = None
    max_draft_len: int | None = None
    margins: bool = False
    passes: bool = False
    label: str | None = None
    cache_salt: str | None = None  # prefixes are reused among requests of one salt only
    stop: list[str] = []  # the output ends before the first of these texts
    min_tokens: int = 0  # nothing but a limit ends the output before
    logprobs: bool = False  # of each token, before temperature, filters and masks
    top_logprobs: int = 0  # and of so many best tokens
    priority: int = 0  # the lower number leaves the queue first


class CancelRequest(Message, frozen=True):
    """End this request now. Answered by CancelAck, whatever has become of it."""

    request_id: RequestId


class ResumeRequest(Message, frozen=True):
    """Tell this request again from an output index on: Accepted, Tokens, and Finished if it has ended."""

    request_id: RequestId
    from_index: int = 0


class Heard(Message, frozen=True):
    """The client has the end of this request: nothing of it must be kept any longer, and its id may be used again."""

    request_id: RequestId


class GetStats(Message, frozen=True):
    """Answered by Stats."""


class GetHealth(Message, frozen=True):
    """Answered by Health."""


class KeepAlive(Message, frozen=True):
    """Any message shows that a client is there; this one says nothing else."""


# ---- scheduler -> client ----------------------------------------------------------------------------------------


class Connected(Message, frozen=True):
    """Nobody has said hello on this new connection: answers the empty frame that a probing DEALER sends first."""


class Welcome(Message, frozen=True):
    """`resumed`: the resume token of the hello is known, so its requests are there."""

    client_id: int
    resume_token: str
    keep_alive_s: float
    num_slots: int
    max_model_len: int
    has_text: bool
    resumed: bool = False
    version: int = PROTOCOL_VERSION


class Accepted(Message, frozen=True):
    """The request will be served: the first answer to a Submit, or the beginning of what a resume tells."""

    request_id: str
    prompt_len: int
    seed: int


class Pass(msgspec.Struct, frozen=True, omit_defaults=True):
    """One verify pass, for who asked for `passes`."""

    start_pos: int
    draft_len: int
    accepted_len: int
    emitted_token_ids: list[int]
    draft_token_ids: list[int] | None = None
    confidence_logits: list[float] | None = None


class Tokens(Message, frozen=True):
    """Output from `index` on: the first `accepted_len` token ids are drafts that stood. `text` never ends in half
    a character; what is held back comes with a later message."""

    request_id: str
    index: int
    token_ids: list[int]
    accepted_len: int = 0
    text: str | None = None
    verify: Pass | None = None
    margins: list[float] | None = None
    logprobs: list[float] | None = None  # one for each token id
    top_logprobs: list[list[tuple[int, float]]] | None = None  # for each token id: the best tokens, the best first


class RequestCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over this request's reported rows, after the cut."""

    num_passes: int = 0
    num_zero_passes: int = 0
    num_drafted: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    num_emitted_drafting: int = 0
    accepted_at: list[int] = []
    verified_at: list[int] = []
    num_restarts: int = 0
    prefix_tokens_reused: int = 0


class Finished(Message, frozen=True):
    """The one terminal event of an accepted request. `state`: FINISHED, CANCELLED or FAILED; `reason`: stop, length,
    cancelled, client_gone, or a failure's code in upper case with `message`."""

    request_id: str
    state: str
    reason: str
    prompt_len: int
    output_len: int
    counts: RequestCounts
    transitions: dict[str, int]
    text: str | None = None  # what was held back, at the end
    message: str = ""


class Refused(Message, frozen=True):
    """The one terminal event of a request that was not accepted, or the answer to a message that makes no sense."""

    code: str
    message: str
    request_id: str | None = None


class CancelAck(Message, frozen=True):
    """`live` tells whether there was something to cancel; cancelling twice is no error."""

    request_id: str
    live: bool


class Stats(Message, frozen=True):
    """What the engine does and has done, in one moment."""

    values: dict[str, Any]


class Health(Message, frozen=True):
    """Whether all is as it should be."""

    ok: bool
    engine: str
    worker: str
    reasons: list[str] = []
