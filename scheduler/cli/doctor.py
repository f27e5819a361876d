"""`dsparkd doctor`: what is there and what is missing for an engine of these settings, without starting one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import attrs
import typer
from rich.console import Console
from rich.text import Text

from ...statemachine.errors import Refused
from ..service.config import Settings
from ..service.doctor import GOOD, MISSING, NOTE, Finding, examine, examine_machine
from .engines import Pair

STYLES = {GOOD: "green", NOTE: "yellow", MISSING: "red"}


def doctor(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file of settings, as for `serve`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Say what is there and what is missing, a line each; status 1 when an engine of these settings cannot serve."""
    pair: Pair = context.obj
    console = Console(soft_wrap=True, highlight=False)
    found: list[Finding] = []
    for finding in _findings(config, pair):
        found.append(finding)
        if not as_json:
            console.print(_line(finding))
    serves = all(one.verdict != MISSING for one in found)
    if as_json:
        typer.echo(json.dumps({"serves": serves, "findings": [attrs.asdict(one) for one in found]}, indent=2))
    raise typer.Exit(0 if serves else 1)


def _findings(config: Path | None, pair: Pair) -> Iterator[Finding]:
    """Settings that are refused are a finding like others; without them no more than the machine can be looked at."""
    try:
        settings = Settings.load(config, pair=pair.settings(), environment=os.environ)
    except Refused as refused:
        yield Finding("settings", MISSING, str(refused))
        yield from examine_machine(Settings.load(None, pair=pair.settings()))
        return
    yield Finding("settings", GOOD, f"{config or 'the defaults'}, and the environment")
    yield from examine(settings)


def _line(one: Finding) -> Text:
    return Text.assemble((f"{one.verdict:8}", STYLES[one.verdict]), f"{one.name:18}{one.detail}")
