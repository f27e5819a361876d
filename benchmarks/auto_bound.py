"""Whether `auto` loses to anybody: its worker CPU time a token against the better of plain decoding and a fixed length.

Plain decoding has no drafter at all. A scouting turn finds the best fixed length of each concurrency; then plain, that
length and `auto` take short turns on engines of their own. The ratio is better / auto: 1 is a draw, below 0.97 a loss.
Its interval is a bootstrap over the rounds; the run fails (status 1) if the upper end of one is below 0.97.
Run: `OMP_WAIT_POLICY=PASSIVE python benchmarks/auto_bound.py`.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from dsparkd import AsyncClient
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.cli.engines import quiet_local
from dsparkd.scheduler.cli.turns import Tally, run_turn

BOUND = 0.97
LENGTHS = (1, 2, 3, 4, 5, 7)
NUM_SCOUTS, NUM_WARM, NUM_DRAWS = 2, 3, 4000


async def turn(client: AsyncClient, prompts: Sequence[str], level: int, number: int, options: dict[str, Any]) -> Tally:
    """The same prompts for everybody in a round; other ones in the next round."""
    count = 4 * level
    chosen = [prompts[(number * count + index) % len(prompts)] for index in range(count)]
    return await run_turn(client, chosen, [options] * count, num_users=level)


async def best_fixed(client: AsyncClient, prompts: Sequence[str], level: int, options: dict[str, Any]) -> int:
    cost = {}
    for length in LENGTHS:
        whole = Tally()
        for number in range(NUM_SCOUTS):
            whole.add(await turn(client, prompts, level, number, {**options, "max_draft_len": length}))
        cost[length] = whole.cpu_us_per_token
    return min(cost, key=cost.__getitem__)


async def measure(
    addresses: dict[str, str], prompts: Sequence[str], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    rows = []
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(AsyncClient(at)) for name, at in addresses.items()}
        for level in map(int, arguments.concurrency.split(",")):
            options = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature, "ignore_eos": True}
            length = await best_fixed(clients["fixed"], prompts, level, options)
            of = {"plain": options, "fixed": {**options, "max_draft_len": length}, "auto": options}
            for number in range(NUM_WARM):
                for name, own in of.items():
                    await turn(clients[name], prompts, level, number, own)
            found: dict[str, list[Tally]] = {name: [] for name in of}
            for number in range(arguments.rounds):
                names = list(of)[number % 3 :] + list(of)[: number % 3]
                for name in names:
                    found[name].append(await turn(clients[name], prompts, level, number, of[name]))
            rows.append(judged(level, length, found))
            print(shown(rows[-1]), flush=True)
    return rows


def cost(turns: Sequence[Tally]) -> float:
    return sum(one.worker_cpu_s for one in turns) / sum(one.num_tokens for one in turns)


def ratio(found: dict[str, list[Tally]], rounds: Sequence[int]) -> float:
    costs = {name: cost([turns[number] for number in rounds]) for name, turns in found.items()}
    return min(costs["plain"], costs["fixed"]) / costs["auto"]


def judged(level: int, length: int, found: dict[str, list[Tally]]) -> dict[str, Any]:
    count = len(found["auto"])
    dice = random.Random(level)
    draws = sorted(ratio(found, dice.choices(range(count), k=count)) for _ in range(NUM_DRAWS))
    return {
        "concurrency": level,
        "rounds": count,
        "best_fixed": length,
        **{f"{name}_cpu_us_per_token": 1e6 * cost(turns) for name, turns in found.items()},
        "ratio": ratio(found, range(count)),
        "low": draws[int(0.025 * NUM_DRAWS)],
        "high": draws[int(0.975 * NUM_DRAWS)],
    }


def shown(row: dict[str, Any]) -> str:
    costs = " ".join(f"{name} {row[name + '_cpu_us_per_token']:6.0f}" for name in ("plain", "fixed", "auto"))
    verdict = "LOSES" if row["high"] < BOUND else "holds"
    return (
        f"{row['concurrency']:3} at once: us a token: {costs} (fixed:{row['best_fixed']})   "
        f"ratio {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]  {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pair = shipped_pair()
    prompts = [json.loads(line)["prompt"] for line in pair.prompts.read_text().splitlines()]
    slots = max(map(int, arguments.concurrency.split(",")))
    common = {"target": str(pair.target), "num_slots": slots, "prefix_reuse": False}
    with ExitStack() as engines:
        settings: dict[str, dict[str, Any]] = {
            "plain": {**common, "policy": "fixed:0"},
            "fixed": {**common, "drafter": str(pair.drafter), "policy": "fixed:7"},
            "auto": {**common, "drafter": str(pair.drafter), "policy": "auto"},
        }
        addresses = {name: engines.enter_context(quiet_local(one)).address for name, one in settings.items()}
        rows = asyncio.run(measure(addresses, prompts, arguments))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 1 if any(row["high"] < BOUND for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
