"""`dsparkd serve`: one engine in this process until it is told to stop."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ...statemachine.errors import Refused
from ..service.config import Settings
from ..service.logs import configure_logs
from ..service.run import serve as serve_settings
from ..service.setting_sources import toml_value, variable_of
from .engines import Pair


def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file of settings; flags win over it.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Folder of the target's checkpoint.")] = None,
    drafter: Annotated[str | None, typer.Option("--drafter", help="Folder of the drafter's; `none`: plain.")] = None,
    bind: Annotated[str | None, typer.Option("--bind", help="Where clients connect, e.g. ipc:///run/d/engine.")] = None,
    num_slots: Annotated[int | None, typer.Option("--num-slots", help="Requests that run at once.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="How long drafts are: fixed:7, auto, confidence, schedule:1=7/4=3.")
    ] = None,
    cost_table: Annotated[str | None, typer.Option("--cost-table", help="Step times that `costs -o` wrote.")] = None,
    confidence_calibration: Annotated[
        str | None, typer.Option("--confidence-calibration", help="Temperatures that `calibrate -o` wrote.")
    ] = None,
    paranoid: Annotated[
        bool | None, typer.Option("--paranoid", help="Watch every window for stale rows, at twice the time of a step.")
    ] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="Record to this new file, or into this FOLDER/.")] = None,
    journal: Annotated[
        str | None, typer.Option("--journal", metavar="FOLDER", help="Survive the scheduler's death with this folder.")
    ] = None,
    no_respawn: Annotated[
        bool, typer.Option("--no-respawn", help="With a journal: leave it to others to start a dead scheduler again.")
    ] = False,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics there.")
    ] = None,
    logs: Annotated[str | None, typer.Option("--logs", help="auto, console or json.")] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info or warning.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as TOML.")
    ] = None,
) -> None:
    """Serve until SIGTERM (finishes what is live) or SIGINT (stops now)."""
    pair: Pair = context.obj
    if model is not None and drafter is None and config is None and variable_of("drafter") not in os.environ:
        message = f"drafter: missing for --model {model}: expected a checkpoint's folder, or `none`"
        raise Refused("BAD_CONFIG", message)
    flags = {
        "target": model,
        "drafter": drafter,
        "bind": bind,
        "num_slots": num_slots,
        "policy": policy,
        "cost_table": cost_table,
        "trace": trace,
        "paranoid": paranoid,
        "confidence_calibration": confidence_calibration,
        "journal": journal,
        "metrics": metrics,
        "logs": logs,
        "log_level": log_level,
    }
    overrides = {**flags, **_assignments(set_ or [])}
    settings = Settings.load(config, overrides, pair=pair.settings(), environment=os.environ)
    configure_logs(settings.logs, settings.log_level)
    raise typer.Exit(serve_settings(settings, respawn=settings.journal is not None and not no_respawn))


def _assignments(pairs: list[str]) -> dict[str, Any]:
    """Read KEY=VALUE pairs."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise Refused("BAD_CONFIG", f"--set {pair!r}: expected KEY=VALUE")
        values[key.strip()] = toml_value(text)
    return values
