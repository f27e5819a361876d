"""One turn of a measurement: so many requests at once on one engine, and what each user saw of it.

Owns the clock readings of a turn and their sums over turns; never prints. `bench.py` and `benchmarks/` let several
engines take turns, so that a machine that slows down slows all of them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs

from ...statemachine.errors import EngineError
from ..wire import messages as wire
from ..wire.client_async import AsyncClient, AsyncStream
from .prompts import Prompt


@attrs.define
class Tally:
    """Sums over the turns of one engine at one concurrency. Times in seconds."""

    wall_s: float = 0.0
    num_tokens: int = 0
    worker_cpu_s: float = 0.0
    num_drafting: int = 0  # passes that verified a draft, and
    num_emitted_drafting: int = 0  # what these emitted
    user_rates: list[float] = attrs.field(factory=list)  # tokens a second from the first token to the last
    first_token_s: list[float] = attrs.field(factory=list)
    gaps_s: list[float] = attrs.field(factory=list)  # one for each token that came after another one

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def tokens_per_s_per_user(self) -> float:
        return sum(self.user_rates) / len(self.user_rates) if self.user_rates else 0.0

    @property
    def acceptance_length(self) -> float | None:
        return self.num_emitted_drafting / self.num_drafting if self.num_drafting else None

    @property
    def cpu_us_per_token(self) -> float:
        """Thread CPU time of the worker's steps: what other processes of the machine do is not in it."""
        return 1e6 * self.worker_cpu_s / self.num_tokens if self.num_tokens else 0.0

    def add(self, other: "Tally") -> None:
        for field in attrs.fields(Tally):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


async def run_turn(
    client: AsyncClient, prompts: Sequence[Prompt], options: Sequence[dict[str, Any]], *, num_users: int
) -> Tally:
    """Let `num_users` users work through the prompts, each one request at a time, and return the sums.

    The clock runs in the steady state: from when as many requests have ended as there are users, until the last prompt
    is asked; what is unfinished then is cancelled. Before, all prompts would be seeded at once, behind it few requests
    would be another concurrency. Needs more than twice as many prompts as users, four times as many are good.
    """
    turn = _Turn(client, deque(zip(prompts, options, strict=True)), num_users=num_users)
    await asyncio.gather(*(turn.use() for _ in range(num_users)))
    return turn.tally()


class _Turn:
    def __init__(self, client: AsyncClient, jobs: deque[tuple[Prompt, dict[str, Any]]], *, num_users: int) -> None:
        if len(jobs) <= 2 * num_users:
            raise ValueError(f"{len(jobs)} prompts for {num_users} users: expected more than {2 * num_users}")
        self.client, self.jobs, self.num_users = client, jobs, num_users
        self.seen = Tally()
        self.live: set[AsyncStream] = set()
        self.num_ended = 0
        self.marks: list[tuple[float, dict[str, Any]]] = []  # (time, stats) when the clock starts and when it stops

    async def use(self) -> None:
        while self.jobs:
            prompt, options = self.jobs.popleft()
            if not self.jobs:
                return await self._stop()
            submitted_s = time.perf_counter()
            stream = await self.client.submit(prompt, **options)
            self.live.add(stream)
            await self._read(stream, submitted_s)
            self.live.discard(stream)
            self.num_ended += 1
            if self.num_ended == self.num_users:
                self.marks.append((time.perf_counter(), await self.client.stats()))
        return None

    async def _stop(self) -> None:
        self.marks.append((time.perf_counter(), await self.client.stats()))
        for stream in list(self.live):
            await stream.cancel()

    async def _read(self, stream: AsyncStream, submitted_s: float) -> None:
        """A message that brings several tokens gives each an equal share of the time since the message before it."""
        first_s = last_s = 0.0
        num_tokens = 0
        async for message in stream:
            now = time.perf_counter()
            if isinstance(message, wire.Finished) and message.state == "FAILED":
                raise EngineError(f"request {message.request_id}: {message.reason}: {message.message}")
            if not isinstance(message, wire.Tokens):
                continue
            count, counts = len(message.token_ids), len(self.marks) == 1
            if num_tokens == 0:
                first_s = now
                self.seen.first_token_s += [now - submitted_s] * counts
            else:
                self.seen.gaps_s += [(now - last_s) / count] * count * counts
            last_s, num_tokens = now, num_tokens + count
        if last_s > first_s and len(self.marks) == 1:
            self.seen.user_rates.append((num_tokens - 1) / (last_s - first_s))

    def tally(self) -> Tally:
        (began_s, before), (ended_s, after) = self.marks

        def grown(name: str) -> int:
            return int(after[name] - before[name])

        self.seen.wall_s = ended_s - began_s
        self.seen.worker_cpu_s = grown("cpu_ns") / 1e9
        self.seen.num_tokens = grown("tokens_emitted")
        self.seen.num_drafting = grown("passes") - grown("zero_passes")
        self.seen.num_emitted_drafting = grown("emitted_drafting")
        return self.seen


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(share * len(ordered) + 0.999999) - 1))]
