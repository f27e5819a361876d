"""`dsparkd top`: an engine, live in a terminal, by what any client may ask: `stats` and `health`.

Owns the asking and the drawing; `top_view.py` knows what to show.
"""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import attrs
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..service.config import Settings
from ..wire.client import Client
from .engines import keys_of_environment, refuse_nobody
from .top_view import COLUMNS, NUMBERS, View, plain

ANSWER_S = 5.0  # a scheduler answers at once, whatever its worker does
ADDRESS = str(attrs.fields(Settings).bind.default)


def top(
    connect: Annotated[str, typer.Option("--connect", metavar="ADDRESS", help="The engine's `bind`.")] = ADDRESS,
    once: Annotated[bool, typer.Option("--once", help="Print once, as plain text.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, max=3600.0, help="Seconds between looks; rates are of that time.")
    ] = 1.0,
) -> None:
    """Show what an engine does: slots with their states and draft lengths, acceptance, rates, queue, worker, faults."""
    refuse_nobody(connect)
    with Client(connect, timeout_s=ANSWER_S, keys=keys_of_environment()) as client:
        looks = _looks(client, interval)
        if once or not sys.stdout.isatty():
            for view in looks:
                typer.echo(plain(view))
                if once:
                    return
                typer.echo("")
        try:
            with Live(screen=True, auto_refresh=False) as live:
                for view in looks:
                    live.update(_drawn(view), refresh=True)
        except KeyboardInterrupt:
            return  # the way to leave


def _looks(client: Client, interval: float) -> Iterator[View]:
    before, asked_s = client.stats(), time.monotonic()
    while True:
        time.sleep(interval)
        health, after, now_s = client.health(), client.stats(), time.monotonic()
        yield View(client.address, health, before, after, now_s - asked_s)
        before, asked_s = after, now_s


def _drawn(view: View) -> Group:
    table = Table(expand=True, box=None, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True, overflow="ellipsis")
    for row in view.rows():
        table.add_row(*(Text("".join(one if one.isprintable() else "?" for one in cell)) for cell in row))
    states, *others = view.lines()
    return Group(Text(states, style="green" if view.health.ok else "bold red"), *map(Text, others), Text(""), table)
