"""Send arrivals to an engine at their times, and say what users saw.

    python examples/load.py day.csv --connect ipc:///tmp/me/engine --speed 2
    python examples/load.py run.dsptrace --connect ipc:///tmp/me/engine --speed 0     # all at once

FILE is a trace of this engine, whose requests are sent as they were (prompts, options, seeds), or arrivals in any
format of docs/simulate.md, which say times and lengths only: token ids are made up, shared prefixes are kept, and
outputs get their recorded length. One JSON object comes out; times are of this process's clock, from when a request was
sent.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from dsparkd import AsyncClient, EngineError, Refused
from dsparkd.scheduler.cli.turns import percentile
from dsparkd.scheduler.trace.arrivals import read_arrivals
from dsparkd.scheduler.trace.live import recorded_requests
from dsparkd.scheduler.trace.reading import is_trace
from dsparkd.scheduler.wire import messages as wire


@attrs.frozen
class Job:
    """One request: when, what, how."""

    at_s: float
    prompt: Sequence[int]
    options: dict[str, Any]


@attrs.define
class Seen:
    """What its user saw. `gaps_s` has one entry for each token after the first message's."""

    late_s: float = 0.0  # how long after its time it was sent: more than a little, and this process is too slow
    first_s: float | None = None
    gaps_s: list[float] = attrs.field(factory=list)
    num_tokens: int = 0
    end: str = ""  # the final state, or the code of a refusal
    counts: wire.RequestCounts = attrs.field(factory=wire.RequestCounts)


def jobs_of(path: Path, *, scale: float, vocab_size: int) -> list[Job]:
    """Read either kind of file. Raises `Refused` (BAD_FILE) for what is neither."""
    if is_trace(path):
        return [Job(one.at_s, one.prompt, one.options) for one in recorded_requests(path)]
    arrivals = [one.scaled(scale) for one in read_arrivals(path)]
    return [
        Job(
            one.at_ns / 1e9,
            one.prompt(serial, vocab_size=vocab_size),
            {"max_tokens": one.output_len, "ignore_eos": True},
        )
        for serial, one in enumerate(arrivals)
    ]


async def send_all(address: str, jobs: Sequence[Job], *, speed: float) -> tuple[list[Seen], float]:
    """Send each job at its time divided by `speed` (0: at once); return what was seen, and seconds in all."""
    async with AsyncClient(address) as client:
        await client.wait_ready()
        began = time.perf_counter()
        seen = await asyncio.gather(*(send(client, job, began, speed) for job in jobs))
        return seen, time.perf_counter() - began


async def send(client: AsyncClient, job: Job, began: float, speed: float) -> Seen:
    seen = Seen()
    due = began + (job.at_s / speed if speed else 0.0)
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    sent = last = time.perf_counter()
    seen.late_s = sent - due
    try:
        async for message in await client.submit(job.prompt, **job.options):
            now = time.perf_counter()
            if isinstance(message, wire.Finished):
                seen.end, seen.counts = message.state, message.counts
            elif isinstance(message, wire.Tokens) and message.token_ids:
                count = len(message.token_ids)
                if seen.first_s is None:
                    seen.first_s = now - sent
                else:  # each token of a message has an equal share of the time since the one before
                    seen.gaps_s += [(now - last) / count] * count
                last, seen.num_tokens = now, seen.num_tokens + count
    except Refused as refused:
        seen.end = refused.code
    return seen


def summary(seen: Sequence[Seen], span_s: float) -> dict[str, Any]:
    first = [one.first_s for one in seen if one.first_s is not None]
    gaps = [gap for one in seen for gap in one.gaps_s]
    passes = sum(one.counts.num_passes - one.counts.num_zero_passes for one in seen)
    return {
        "requests": len(seen),
        "ends": dict(Counter(one.end for one in seen)),
        "span_s": span_s,
        "tokens": sum(one.num_tokens for one in seen),
        "tokens_per_s": sum(one.num_tokens for one in seen) / span_s,
        **_shares("ttft_ms", first),
        **_shares("itl_ms", gaps),
        "acceptance_length": sum(one.counts.num_emitted_drafting for one in seen) / passes if passes else None,
        **_shares("late_ms", [one.late_s for one in seen]),
    }


def _shares(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    found = {share: percentile(seconds, share) for share in (0.5, 0.99)}
    return {f"{name}_p{round(100 * share)}": None if one is None else 1e3 * one for share, one in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--connect", required=True, metavar="ADDRESS")
    parser.add_argument("--speed", type=float, default=1.0, help="times the recorded pace; 0: all at once")
    parser.add_argument("--limit", type=int, help="only so many requests, from the first on")
    parser.add_argument("--scale", type=float, default=1.0, help="arrivals: all lengths times this")
    parser.add_argument("--vocab-size", type=int, default=1000, help="arrivals: token ids are made up below it")
    flags = parser.parse_args()
    for name, least in (("speed", 0), ("limit", 1), ("vocab_size", 2)):
        value = getattr(flags, name)
        if value is not None and not value >= least:
            parser.error(f"--{name.replace('_', '-')} {value}: expected {least} or more")
    try:
        jobs = jobs_of(flags.file, scale=flags.scale, vocab_size=flags.vocab_size)[: flags.limit]
        print(json.dumps(summary(*asyncio.run(send_all(flags.connect, jobs, speed=flags.speed))), indent=2))
    except EngineError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
