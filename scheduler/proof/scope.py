"""What one exploration may do: how many requests and slots, which draft lengths, and how often each trouble strikes.

Owns the bounds that make a space finite, nothing of what happens in it. `scopes.py` lists those that ship.
"""

from collections.abc import Mapping

import attrs

from ..core.events import Options
from ..core.limits import Limits

STOP_TOKEN = 7
# Distinct delays, so that a timer started with another state's delay is noticed. They are due in this order.
TIMES: Mapping[str, int] = {
    "respawn_delay_ns": 1,
    "client_grace_ns": 4,
    "drain_deadline_ns": 6,
    "step_deadline_ns": 20,
    "load_deadline_ns": 30,
    "warm_deadline_ns": 40,
    "heartbeat_deadline_ns": 50,
}
TROUBLES = (
    "cancel",
    "death",  # the worker dies
    "wait",  # time passes until the next timer is due, while something else could happen
    "row_fault",
    "step_fault",
    "drafter_fault",
    "broken",  # the worker breaks its contract
    "stop_token",  # the target emits a stop
    "away",
    "goodbye",
    "drain",
    "stop",
    "bug",  # our own illegal transition
    "partial",  # a worker is ready without something that was asked for
    "shrunk",  # a worker is smaller than the first
    "refused",  # a worker cannot serve what it was told to
    "unfit",  # a submit that is refused
)


@attrs.frozen(kw_only=True)
class Scope:
    """Bounds of one exploration. `troubles` says how often each may strike; what it does not name never does."""

    name: str
    num_requests: int
    num_slots: int
    prompt_len: int = 1
    max_tokens: int = 3
    max_step_tokens: int = 8
    max_model_len: int = 16
    shared_len: int = 0  # tokens that the prompts begin with in common
    min_reuse_len: int | None = None
    block_len: int = 2
    wants: tuple[int, ...] = (2,)  # draft lengths that the policy may choose for each row
    max_restarts: int = 1
    restart_budget: int = 2
    booted: bool = True  # start with a worker that is ready
    idle_drain: bool = True  # a drain or stop may come before every request was submitted
    deadlines: frozenset[int] = frozenset()  # of which requests
    clients: tuple[int, ...] = (0,)  # of the requests, in turn
    reuse_ids: bool = False  # an id is used again once its request is over
    late_words: bool = False  # late, repeated and unknown messages, which must change nothing
    accepted: tuple[int, ...] | None = None  # accepted lengths that are tried; None: every one
    troubles: Mapping[str, int] = attrs.field(factory=dict)

    def limits(self) -> Limits:
        return Limits(
            num_slots=self.num_slots,
            max_model_len=self.max_model_len,
            max_step_tokens=self.max_step_tokens,
            max_queue=max(1, self.num_requests),
            max_restarts=self.max_restarts,
            restart_budget=self.restart_budget,
            min_reuse_len=self.min_reuse_len,
            **TIMES,
        )

    def budget(self) -> tuple[int, ...]:
        return tuple(self.troubles.get(name, 0) for name in TROUBLES)

    def client(self, serial: int) -> int:
        return self.clients[serial % len(self.clients)]

    def request_id(self, serial: int) -> int:
        return 0 if self.reuse_ids else serial

    def prompt(self, serial: int) -> tuple[int, ...]:
        """Prompts name their request behind what they share, so that whoever sees a last chunk knows whose it is."""
        return tuple(
            position if position < self.shared_len else 1000 * (serial + 1) + position
            for position in range(self.prompt_len)
        )

    def token(self, serial: int, text_pos: int) -> int:
        """The target's token at a position of a request's text."""
        return 1000 * (serial + 1) + 500 + text_pos

    def options(self) -> Options:
        return Options(max_tokens=self.max_tokens, stop_token_ids=frozenset({STOP_TOKEN}))
