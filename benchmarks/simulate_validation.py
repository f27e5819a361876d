"""How near a simulation comes to a live run of the shipped pair.

The pair serves requests that arrive at random times; its trace gives arrivals, acceptance and step times; the
simulation of these under the same policy is compared with what users saw. Goals: throughput and mean latency within
10 %, p99 within 25 %. Run: `OMP_WAIT_POLICY=PASSIVE python benchmarks/simulate_validation.py`.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

from dsparkd import AsyncClient, local
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.core.policies import parse_policy
from dsparkd.scheduler.trace.fitting import fit_trace
from dsparkd.scheduler.trace.outcome import outcome
from dsparkd.scheduler.trace.replay import replay
from dsparkd.scheduler.trace.simulate import limits_for, simulate
from dsparkd.scheduler.trace.steps_seen import StepColumns


async def arrive(address: str, prompts: list[str], arguments: argparse.Namespace) -> None:
    dice = random.Random(arguments.seed)
    async with AsyncClient(address) as client:
        await client.generate(prompts[0], max_tokens=8)
        began, at, jobs = time.monotonic(), 0.0, []
        for number in range(arguments.requests):
            at += dice.expovariate(arguments.rate)
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            options = {"max_tokens": dice.randrange(16, 96), "ignore_eos": True}
            jobs.append(asyncio.create_task(client.generate(prompts[number % len(prompts)], **options)))
        await asyncio.gather(*jobs)


def lived(path: Path) -> dict[str, float]:
    """What users saw, from the trace."""
    steps, begin_ns, now_ns, tokens = StepColumns(), 0, 0, 0
    for step in replay(path):
        now_ns = getattr(step.event.input, "now_ns", now_ns)
        begin_ns = begin_ns or now_ns
        if hasattr(step.event.input, "now_ns"):
            steps.tick(now_ns - begin_ns, step.core)
        steps.take(now_ns - begin_ns, step.event.input, step.outputs)
        tokens = step.core.totals.tokens_emitted
    span_s = (steps.begin[-1] + steps.took[-1] / 100 - steps.begin[0]) / 1e3
    ordered = sorted(steps.latency_ms)
    return {
        "tokens_per_s": tokens / span_s,
        "latency_ms_mean": sum(ordered) / len(ordered),
        "latency_ms_p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=5.0, help="arrivals a second")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--policy", default="fixed:7")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pair = shipped_pair()
    prompts = [json.loads(line)["prompt"] for line in pair.prompts.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.dsptrace"
        settings = {"num_slots": arguments.slots, "policy": arguments.policy, "trace": str(path), "prefix_reuse": False}
        with local(target=str(pair.target), drafter=str(pair.drafter), **settings) as client:
            asyncio.run(arrive(client.address, prompts, arguments))
        known, recorded = lived(path), fit_trace(path)
    limits = limits_for(
        recorded.arrivals, num_slots=arguments.slots, max_step_tokens=recorded.max_step_tokens, block_len=7
    )
    made = simulate(
        recorded.arrivals,
        parse_policy(arguments.policy),
        name=arguments.policy,
        limits=limits,
        times=recorded.times,
        acceptance=recorded.acceptance,
    )
    found = outcome(made, num_slots=arguments.slots)
    for name, goal in (("tokens_per_s", 0.10), ("latency_ms_mean", 0.10), ("latency_ms_p99", 0.25)):
        off = found[name] / known[name] - 1
        told = "within" if abs(off) <= goal else "BEYOND"
        print(f"{name:16} lived {known[name]:8.1f}  simulated {found[name]:8.1f}  {off:+.1%} ({told} {goal:.0%})")


if __name__ == "__main__":
    main()
