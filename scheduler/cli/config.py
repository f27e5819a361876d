"""`dsparkd config --example | --check FILE`: a file of settings to begin with, and everything that is wrong with one.

Owns nothing of settings: `service/` knows them.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ...statemachine.errors import Refused, refuse_all
from ..service.config import Settings
from ..service.setting_files import file_problems
from ..service.setting_pages import example_toml
from .engines import Pair


def config(
    context: typer.Context,
    example: Annotated[bool, typer.Option("--example", help="Print a file with every key and its meaning.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="List every fault of a file, and of the files that it names; status 1 if there is one.",
        ),
    ] = None,
) -> None:
    """Print an example file of settings, or check a file. The file alone is judged, no variable and no flag."""
    if example == (check is not None):
        raise Refused("BAD_CONFIG", "config: expected exactly one of --example and --check FILE")
    if check is None:
        typer.echo(example_toml(), nl=False)
        return
    pair: Pair = context.obj
    settings = Settings.load(check, pair=pair.settings())
    found = [f"{key} = {value!r}: {problem}" for key, value, problem in file_problems(settings) if problem]
    refuse_all(str(check), found)
    policy = settings.draft_policy()
    told = f"{check}: fine: target {settings.target}, {settings.num_slots} slots, policy {policy.name}"
    Console(soft_wrap=True).print(told, markup=False, highlight=False)
