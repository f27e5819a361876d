"""Runs prompts through two engines in turns, with and without drafting, and compares tokens, time and passes.

Owns the measurement and the classification of a first divergence (exact, near tie, real). Never prints; `demo.py` does.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ..wire import messages as wire
from ..wire.client_async import AsyncClient

NEAR_TIE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.05}

OnTokens = Callable[[int, wire.Tokens], None]


@attrs.define
class Outcome:
    """One request on one engine. `seconds` run from the first token to the last."""

    token_ids: list[int] = attrs.field(factory=list)
    first_s: float = 0.0
    last_s: float = 0.0
    end: wire.Finished | None = None

    @property
    def tokens_per_s(self) -> float:
        return (len(self.token_ids) - 1) / (self.last_s - self.first_s) if self.last_s > self.first_s else 0.0

    @property
    def counts(self) -> wire.RequestCounts:
        return self.end.counts if self.end is not None else wire.RequestCounts()


@attrs.define
class Comparison:
    """All requests on both engines; `seconds` is the wall time of the groups, summed."""

    prompts: list[str]
    spec: list[Outcome]
    plain: list[Outcome]
    spec_s: float = 0.0
    plain_s: float = 0.0
    divergences: list[dict[str, Any]] = attrs.field(factory=list)

    @property
    def lossless(self) -> bool:
        return not any(one["kind"] == "real" for one in self.divergences)

    def report(self) -> dict[str, Any]:
        """The numbers, by their documented names."""
        counts = [one.counts for one in self.spec]
        tokens = sum(len(one.token_ids) for one in self.spec)
        passes = sum(one.num_passes - one.num_zero_passes for one in counts)
        transitions: dict[str, int] = {}
        for one in self.spec:
            for name, count in (one.end.transitions if one.end is not None else {}).items():
                transitions[name] = transitions.get(name, 0) + count
        plain_rate = sum(len(one.token_ids) for one in self.plain) / self.plain_s
        spec_rate = tokens / self.spec_s
        return {
            "requests": len(self.spec),
            "tokens": tokens,
            "acceptance_length": sum(one.num_emitted_drafting for one in counts) / passes if passes else None,
            "accepted_per_position": _rates(counts),
            "plain_tokens_per_s": plain_rate,
            "spec_tokens_per_s": spec_rate,
            "speedup": spec_rate / plain_rate,
            "lossless": self.lossless,
            "first_divergences": self.divergences,
            "transitions": {"REQUEST": transitions},
        }


def _rates(counts: Sequence[wire.RequestCounts]) -> list[float]:
    """Per position: of the passes that verified it, the share that accepted it (and so all before it)."""
    width = max((len(one.verified_at) for one in counts), default=0)

    def total(name: str, position: int) -> int:
        columns = [getattr(one, name) for one in counts]
        return sum(column[position] for column in columns if position < len(column))

    sums = [(total("accepted_at", position), total("verified_at", position)) for position in range(width)]
    return [accepted / verified for accepted, verified in sums if verified]


async def compare(
    spec: AsyncClient,
    plain: AsyncClient,
    prompts: list[str],
    *,
    concurrency: int,
    options: Sequence[dict[str, Any]],
    dtype: str,
    on_tokens: OnTokens | None = None,
) -> Comparison:
    """Run the prompts in groups of `concurrency`, each group on one engine and then on the other, in turns."""
    outcome = Comparison(prompts, [Outcome() for _ in prompts], [Outcome() for _ in prompts])
    for client in (spec, plain):
        await client.generate(prompts[0], max_tokens=8)  # first touches of memory are nobody's speed
    for turn, first in enumerate(range(0, len(prompts), concurrency)):
        group = range(first, min(first + concurrency, len(prompts)))
        # Who goes first alternates, so that a machine that slows down slows both.
        for drafting in (True, False) if turn % 2 == 0 else (False, True):
            client, results = (spec, outcome.spec) if drafting else (plain, outcome.plain)
            began = time.perf_counter()
            await _run_group(
                client, prompts, group, results=results, options=options, on_tokens=on_tokens if drafting else None
            )
            if drafting:
                outcome.spec_s += time.perf_counter() - began
            else:
                outcome.plain_s += time.perf_counter() - began
    for index in range(len(prompts)):
        await _classify(plain, outcome, index, options[index], dtype=dtype)
    return outcome


async def _run_group(
    client: AsyncClient,
    prompts: list[str],
    group: range,
    *,
    results: list[Outcome],
    options: Sequence[dict[str, Any]],
    on_tokens: OnTokens | None,
) -> None:
    streams = [(index, await client.submit(prompts[index], **options[index])) for index in group]
    # Read at once: a token's time is when it is read, and who looks on sees all of them grow.
    await asyncio.gather(*(_read(stream, results[index], index, on_tokens) for index, stream in streams))


async def _read(stream: Any, result: Outcome, index: int, on_tokens: OnTokens | None) -> None:
    async for message in stream:
        now = time.perf_counter()
        if isinstance(message, wire.Tokens):
            if not result.token_ids:
                result.first_s = now
            result.last_s = now
            result.token_ids += message.token_ids
            if on_tokens is not None:
                on_tokens(index, message)
        elif isinstance(message, wire.Finished):
            result.end = message


async def _classify(
    plain: AsyncClient, outcome: Comparison, index: int, options: dict[str, Any], *, dtype: str
) -> None:
    """Say of a request whose texts differ where they part and how near the plain run was to the other token."""
    drafted, alone = outcome.spec[index].token_ids, outcome.plain[index].token_ids
    if drafted == alone:
        return
    at = next(
        (place for place, (one, other) in enumerate(zip(drafted, alone, strict=False)) if one != other),
        min(len(drafted), len(alone)),
    )
    margins: list[float] = []
    again = await plain.submit(outcome.prompts[index], **{**options, "max_tokens": at + 1, "margins": True})
    async for message in again:
        if isinstance(message, wire.Tokens) and message.margins is not None:
            margins += message.margins
    margin = margins[at] if at < len(margins) else None
    near = margin is not None and margin < NEAR_TIE[dtype]
    outcome.divergences.append(
        {"request": index, "index": at, "kind": "near_tie" if near else "real", "margin": margin}
    )
