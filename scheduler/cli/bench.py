"""`dsparkd bench`: what each draft length policy brings at each concurrency, over plain decoding without a drafter.

Owns the order of the turns, the table, the JSON and the picture. `turns.py` measures.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ...statemachine.errors import Refused
from ..service.policy_settings import policy_from_text
from ..wire.client_async import AsyncClient
from .engines import Drafter, Dtype, EngineFlags, MaxModelLen, MaxTokens, Model, Pair, Seed, Temperature, quiet_local
from .files import writable, write
from .line_chart import Line, line_chart
from .prompts import Prompt, read_prompts
from .turns import Tally, percentile, run_turn

COLUMNS = (  # heading, key, digits
    ("at\nonce", "concurrency", 0),
    ("policy", "policy", 0),
    ("tok/s\na user", "tokens_per_s_per_user", 0),
    ("speed-\nup", "speedup", 2),
    ("accept\nlength", "acceptance_length", 2),
    ("tok/s\nin all", "tokens_per_s", 0),
    ("TTFT\nms p50", "ttft_ms_p50", 1),
    ("ITL\nms p50", "itl_ms_p50", 1),
    ("ITL\nms p99", "itl_ms_p99", 1),
    ("CPU us\na token", "worker_cpu_us_per_token", 0),
)
REQUESTS_A_USER = 4  # of a turn
PLAIN = "plain"  # without a drafter: what every policy is compared to
Tallies = dict[tuple[int, str], Tally]


def bench(
    context: typer.Context,
    policy: Annotated[str, typer.Option("--policy", help="Policies, comma-separated.")] = "fixed:0,fixed:7,auto",
    concurrency: Annotated[str, typer.Option("--concurrency", help="Requests at once.")] = "1,2,4,8,16,32,64",
    model: Model = None,
    drafter: Drafter = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="JSONL of prompts, or a trace.")] = None,
    max_tokens: MaxTokens = 64,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each policy at each concurrency.")] = 3,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    max_model_len: MaxModelLen = 512,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the rows there.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw rates by concurrency.")] = None,
) -> None:
    """Measure policies in turns on engines of their own, `plain` (no drafter) among them, and show a table.

    Nothing is reused between turns (prefix_reuse = false). Rates per user run from a request's first token to its last.
    """
    pair: Pair = context.obj
    policies, levels = _policies(policy), _levels(concurrency)
    for path, flag in ((json_, "--json"), (plot, "--plot")):
        writable(path, flag)
    texts = read_prompts(prompts or pair.prompts)
    flags = EngineFlags(
        model=model,
        drafter=drafter,
        draft_len=0,
        concurrency=max(levels),
        dtype=dtype,
        max_model_len=max_model_len,
    )
    options = {"max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
    console = Console(width=max(100, Console().width))
    with ExitStack() as engines, Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting engines", total=rounds * len(levels) * (1 + len(policies)))
        addresses = {
            name: engines.enter_context(quiet_local(_settings(flags, pair, name))).address
            for name in (PLAIN, *policies)
        }
        turns = Turns(texts, options, seed=seed, rounds=rounds, on_turn=lambda: progress.advance(task))
        progress.update(task, description="turns")
        tallies = asyncio.run(turns.run(addresses, levels))
    rows = [_row(level, name, tallies) for level in levels for name in (PLAIN, *policies)]
    console.print(_table(rows))
    if json_ is not None:
        write(json_, json.dumps({"rows": rows}, indent=2) + "\n", flag="--json")
    if plot is not None:
        write(plot, _picture(rows, levels), flag="--plot")


class Turns:
    """Who runs when: at each concurrency every engine in turn, the first one changing, `rounds` times."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        options: dict[str, Any],
        *,
        seed: int,
        rounds: int,
        on_turn: Callable[[], Any],
    ) -> None:
        self.prompts, self.options, self.seed, self.rounds, self.on_turn = prompts, options, seed, rounds, on_turn

    async def run(self, addresses: dict[str, str], levels: Sequence[int]) -> Tallies:
        tallies: Tallies = {(level, name): Tally() for level in levels for name in addresses}
        async with AsyncExitStack() as stack:
            clients = {name: await stack.enter_async_context(AsyncClient(at)) for name, at in addresses.items()}
            names = list(clients)
            for level in levels:
                for name in names:  # first touches of memory, and what a policy has to learn, are nobody's speed
                    await self._turn(clients[name], level, 0)
                for turn in range(self.rounds):
                    first = turn % len(names)
                    for name in names[first:] + names[:first]:
                        tallies[level, name].add(await self._turn(clients[name], level, turn))
                        self.on_turn()
        return tallies

    async def _turn(self, client: AsyncClient, level: int, turn: int) -> Tally:
        count = REQUESTS_A_USER * level
        numbers = range(turn * count, (turn + 1) * count)
        prompts = [self.prompts[number % len(self.prompts)] for number in numbers]
        options = [{**self.options, "seed": self.seed + number} for number in numbers]
        return await run_turn(client, prompts, options, num_users=level)


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        policy_from_text(name)
    if len(set(names)) < len(names):
        raise Refused("BAD_CONFIG", f"--policy {text}: expected each policy once")
    return names


def _levels(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise Refused("BAD_CONFIG", f"--concurrency {text}: expected whole numbers, 1 or more, as in 1,2,4")
    levels = [int(part) for part in parts]
    if len(set(levels)) < len(levels):
        raise Refused("BAD_CONFIG", f"--concurrency {text}: expected each number once")
    return levels


def _settings(flags: EngineFlags, pair: Pair, name: str) -> dict[str, Any]:
    settings = flags.settings(pair, plain=name == PLAIN)
    return {**settings, "policy": "fixed:0" if name == PLAIN else name, "prefix_reuse": False}


def _row(level: int, name: str, tallies: Tallies) -> dict[str, Any]:
    tally, plain = tallies[level, name], tallies[level, PLAIN]
    millis = {
        key: None if value is None else 1e3 * value
        for key, value in (
            ("ttft_ms_p50", percentile(tally.first_token_s, 0.5)),
            ("ttft_ms_p99", percentile(tally.first_token_s, 0.99)),
            ("itl_ms_p50", percentile(tally.gaps_s, 0.5)),
            ("itl_ms_p99", percentile(tally.gaps_s, 0.99)),
        )
    }
    return {
        "concurrency": level,
        "policy": name,
        "tokens_per_s": tally.tokens_per_s,
        "tokens_per_s_per_user": tally.tokens_per_s_per_user,
        "speedup": tally.tokens_per_s_per_user / plain.tokens_per_s_per_user if plain.tokens_per_s_per_user else None,
        "acceptance_length": tally.acceptance_length,
        **millis,
        "worker_cpu_us_per_token": tally.cpu_us_per_token,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="by requests at once and policy; speed-up over plain decoding without a drafter")
    for head, _, _ in COLUMNS:
        table.add_column(head, justify="left" if head == "policy" else "right", no_wrap=True)
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1]["concurrency"] != row["concurrency"]
        cells = [_shown(row[key], digits) for _, key, digits in COLUMNS]
        table.add_row(*cells, end_section=last)
    return table


def _shown(value: float | str | None, digits: int) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else f"{value:.{digits}f}"


def _picture(rows: Sequence[dict[str, Any]], levels: Sequence[int]) -> str:
    names = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [Line(name, [row["tokens_per_s_per_user"] for row in rows if row["policy"] == name]) for name in names]
    return line_chart("tokens/s a user, by requests at once", [str(level) for level in levels], lines)
