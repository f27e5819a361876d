"""`dsparkd demo`: a real pair answers, with and without drafting, and one sees what stood and what it brought.

Owns the pictures: text as it streams (accepted draft tokens marked apart from the target's own), then the tables.
`compare.py` measures.
"""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...statemachine import request
from ...statemachine.errors import Refused
from ..service.text import IncrementalText, Tokenizer, tokenizer_beside
from ..wire import messages as wire
from ..wire.client_async import AsyncClient
from .compare import NEAR_TIE, Comparison, compare
from .engines import (
    Concurrency,
    Drafter,
    DraftLen,
    Dtype,
    EngineFlags,
    MaxTokens,
    Model,
    Pair,
    Seed,
    Temperature,
    quiet_local,
)
from .files import writable

ACCEPTED, OWN = "green", "bold yellow"


def demo(
    context: typer.Context,
    model: Model = None,
    drafter: Drafter = None,
    concurrency: Concurrency = 4,
    draft_len: DraftLen = 7,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    max_tokens: MaxTokens = 256,
    dtype: Dtype = "float32",
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many of the pair's prompts.")] = 16,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the figures there.")] = None,
) -> None:
    """Answer the pair's prompts with and without drafting, in turns, and compare. Status 1 if a text really differs."""
    if dtype not in NEAR_TIE:
        raise Refused("BAD_CONFIG", f"--dtype {dtype}: expected one of {', '.join(NEAR_TIE)}")
    writable(json_, "--json")
    pair: Pair = context.obj
    flags = EngineFlags(model=model, drafter=drafter, draft_len=draft_len, concurrency=concurrency, dtype=dtype)
    settings = flags.settings(pair)
    prompts = [json.loads(line)["prompt"] for line in pair.prompts.read_text().splitlines()][:num_prompts]
    options: list[dict[str, Any]] = [
        {"max_tokens": max_tokens, "temperature": temperature, "seed": seed + index} for index in range(len(prompts))
    ]
    console = Console()
    view = Streaming(prompts, tokenizer_beside(settings["target"]), console)
    with quiet_local(settings) as spec, quiet_local(flags.settings(pair, plain=True)) as plain, view:
        addresses = (spec.address, plain.address)
        comparison = asyncio.run(
            _compare(addresses, prompts, concurrency=concurrency, options=options, dtype=dtype, view=view)
        )
    view.print_texts()
    _print_tables(console, comparison)
    if json_ is not None:
        json_.write_text(json.dumps(comparison.report(), indent=2) + "\n", encoding="utf-8")
    if not comparison.lossless:
        raise typer.Exit(1)


async def _compare(
    addresses: tuple[str, str],
    prompts: list[str],
    *,
    concurrency: int,
    options: list[dict[str, Any]],
    dtype: str,
    view: "Streaming",
) -> Comparison:
    async with AsyncClient(addresses[0]) as spec, AsyncClient(addresses[1]) as plain:
        return await compare(
            spec, plain, prompts, concurrency=concurrency, options=options, dtype=dtype, on_tokens=view.add
        )


class Streaming:
    """The texts as they grow: live on a terminal, and once at the end anywhere."""

    def __init__(self, prompts: list[str], tokenizer: Tokenizer | None, console: Console) -> None:
        self._console = console
        self._texts = [Text(prompt, style="dim") for prompt in prompts]
        self._pieces = [None if tokenizer is None else IncrementalText(tokenizer) for _ in prompts]
        self._recent: list[int] = []
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._picture)

    def __enter__(self) -> "Streaming":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def add(self, index: int, message: wire.Tokens) -> None:
        """Append a message's tokens: the drafts that stood first, then the target's own token."""
        if index not in self._recent:
            self._recent = [*self._recent[-3:], index]
        accepted, own = message.token_ids[: message.accepted_len], message.token_ids[message.accepted_len :]
        for token_ids, style in ((accepted, ACCEPTED), (own, OWN)):
            pieces = self._pieces[index]
            text = " ".join(map(str, token_ids)) + " " if pieces is None else pieces.push(token_ids)
            self._texts[index].append(text, style=style)

    def print_texts(self) -> None:
        """Show the first texts whole, in colours: what a live view showed in passing."""
        legend = Text.assemble(("accepted draft tokens", ACCEPTED), ", ", ("the target's own", OWN), ", prompt dim")
        self._console.print(legend)
        for text in self._texts[:2]:
            self._console.print(Panel(text))

    def _picture(self) -> Group:
        lines = max(4, self._console.height // max(1, len(self._recent)) - 2)
        panels = []
        for index in self._recent:
            shown = Text("\n").join(self._texts[index].split("\n")[-lines:])
            panels.append(Panel(shown, height=lines + 2))
        return Group(*panels)


def _print_tables(console: Console, comparison: Comparison) -> None:
    console.print(_requests_table(comparison))
    console.print(_states_table(comparison))
    report = comparison.report()
    whole = Table(title="all requests", show_header=False)
    for name in ("requests", "tokens", "acceptance_length", "plain_tokens_per_s", "spec_tokens_per_s", "speedup"):
        value = report[name]
        whole.add_row(name, f"{value:.2f}" if isinstance(value, float) else str(value))
    whole.add_row("accepted_per_position", " ".join(f"{rate:.2f}" for rate in report["accepted_per_position"]))
    whole.add_row("lossless", str(report["lossless"]))
    console.print(whole)


def _requests_table(comparison: Comparison) -> Table:
    table = Table(title="per request")
    for name in ("request", "tokens", "acceptance\nlength", "tokens/s", "tokens/s\nplain", "same\ntext"):
        table.add_column(name, justify="right")
    diverged = {one["request"]: str(one["kind"]) for one in comparison.divergences}
    for index, (spec, plain) in enumerate(zip(comparison.spec, comparison.plain, strict=True)):
        passes = spec.counts.num_passes - spec.counts.num_zero_passes
        table.add_row(
            str(index),
            str(len(spec.token_ids)),
            f"{spec.counts.num_emitted_drafting / passes:.2f}" if passes else "-",
            f"{spec.tokens_per_s:.0f}",
            f"{plain.tokens_per_s:.0f}",
            diverged.get(index, "yes"),
        )
    return table


def _states_table(comparison: Comparison) -> Table:
    """How often each request entered each state."""
    entered: list[dict[str, int]] = []
    for one in comparison.spec:
        counts: dict[str, int] = {}
        for name, count in (one.end.transitions if one.end is not None else {}).items():
            target = name.partition(">")[2]
            counts[target] = counts.get(target, 0) + count
        entered.append(counts)
    states = [state.name for state in request.State if any(state.name in counts for counts in entered)]
    table = Table(title="states entered (all began in QUEUED)")
    table.add_column("request", justify="right")
    for state in states:
        table.add_column(state.replace("_", "\n"), justify="right")
    for index, counts in enumerate(entered):
        table.add_row(str(index), *(str(counts.get(state, 0)) for state in states))
    return table
