"""The numbers that the core may know: static limits and deadlines, fixed when it is built.

Owns their validation, every fault in one error; the service resolves settings into this value.
"""

import attrs

from ...statemachine import worker
from ...statemachine.errors import refuse_all

SECOND_NS = 1_000_000_000


@attrs.frozen(kw_only=True)
class Limits:
    """Lengths in tokens, times in nanoseconds. Raises `Refused` (BAD_CONFIG) listing every bad value."""

    num_slots: int = 8
    max_model_len: int = 512
    max_step_tokens: int = 512
    max_queue: int = 1024
    max_prompt_len: int | None = None  # None: whatever max_model_len leaves
    max_draft_len: int | None = None  # None: the drafter's block
    vocab_size: int | None = None  # None: not known here, so ids are checked by the worker alone
    min_reuse_len: int | None = 16  # the shortest prefix that is worth keeping; None: nothing is kept
    max_restarts: int = 3
    restart_budget: int = 5
    load_deadline_ns: int = 120 * SECOND_NS
    warm_deadline_ns: int = 120 * SECOND_NS
    step_deadline_ns: int = 30 * SECOND_NS
    heartbeat_deadline_ns: int = 10 * SECOND_NS
    drain_deadline_ns: int = 30 * SECOND_NS
    client_grace_ns: int = 10 * SECOND_NS
    respawn_delay_ns: int = SECOND_NS // 5
    max_client_requests: int | None = None  # live ones of one client; None: as many as the queue takes

    def __attrs_post_init__(self) -> None:
        problems = []
        positive = ("num_slots", "max_step_tokens", "max_queue", *(f for f in attrs.asdict(self) if f.endswith("_ns")))
        for name in positive:
            if getattr(self, name) < 1:
                problems.append(f"{name} = {getattr(self, name)}: expected 1 or more")
        for name in ("max_restarts", "restart_budget"):
            if getattr(self, name) < 0:
                problems.append(f"{name} = {getattr(self, name)}: expected 0 or more")
        if self.max_model_len < 2:
            problems.append(f"max_model_len = {self.max_model_len}: expected 2 or more (a prompt and one token)")
        if self.max_prompt_len is not None and not 1 <= self.max_prompt_len < self.max_model_len:
            problems.append(f"max_prompt_len = {self.max_prompt_len}: expected 1..{self.max_model_len - 1}")
        if self.max_draft_len is not None and self.max_draft_len < 0:
            problems.append(f"max_draft_len = {self.max_draft_len}: expected 0 or more")
        if self.max_client_requests is not None and self.max_client_requests < 1:
            problems.append(f"max_client_requests = {self.max_client_requests}: expected 1 or more, or None")
        if self.min_reuse_len is not None and self.min_reuse_len < 1:
            problems.append(f"min_reuse_len = {self.min_reuse_len}: expected 1 or more, or None")
        refuse_all("limits", problems)

    def progress_ns(self, state: worker.State) -> int:
        """The progress deadline of a worker in `state`; a step in flight has its own (step_deadline_ns)."""
        if state in (worker.State.SPAWNED, worker.State.LOADING):
            return self.load_deadline_ns
        return self.warm_deadline_ns if state is worker.State.WARMING else self.heartbeat_deadline_ns
