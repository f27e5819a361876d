"""`dsparkd simulate ARRIVALS`: what each policy would have made of these arrivals, on this machine or another.

Owns the sources (arrivals, step times, acceptance) and the presentation; `trace/` simulates.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ...statemachine.errors import Refused
from ..core.policies import Policy
from ..service.policy_settings import policy_from_text
from ..trace.arrivals import FORMATS, Arrival, read_arrivals
from ..trace.fitting import Recorded, fit_trace
from ..trace.outcome import outcome
from ..trace.published import PUBLISHED, published
from ..trace.reading import is_trace
from ..trace.report import of_runs, page
from ..trace.simulate import StepSeen, limits_for, simulate
from ..trace.simulated import Acceptance
from ..trace.step_times import StepTimes, TableTimes, point_times, table_times
from .engines import Pair
from .files import writable, write

COLUMNS = (
    ("policy", "policy", 0),
    ("goodput\nreq/s", "goodput_per_s", 2),
    ("tok/s", "tokens_per_s", 0),
    ("tok/s\na user", "tokens_per_s_per_user", 1),
    ("TTFT ms\np50", "ttft_ms_p50", 1),
    ("\np99", "ttft_ms_p99", 1),
    ("ITL ms\np50", "itl_ms_p50", 2),
    ("\np99", "itl_ms_p99", 2),
    ("queue ms\np99", "queue_ms_p99", 1),
    ("slots\nused", "slot_occupancy", 2),
    ("accept\nlength", "acceptance_length", 2),
    ("zero\ndraft", "zero_draft_share", 2),
)


def simulate_(
    context: typer.Context,
    arrivals: Annotated[Path, typer.Argument(metavar="ARRIVALS", help="Arrivals of any known format, or a trace.")],
    policy: Annotated[str, typer.Option("--policy", help="Policies, comma-separated.")] = "auto,fixed:7,fixed:0",
    cost_table: Annotated[
        str | None,
        typer.Option("--cost-table", help=f"A `costs -o` file, {{sps}} JSON, a trace, or {', '.join(PUBLISHED)}."),
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option("--acceptance", help="{chances} JSON, a trace, or a mean acceptance length.")
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", min=1, max=64, help="B, where the acceptance is a mean (7).")
    ] = None,
    slots: Annotated[int | None, typer.Option("--slots", min=1, help="Requests that run at once.")] = None,
    max_step_tokens: Annotated[int | None, typer.Option("--max-step-tokens", min=2, help="Tokens of a step.")] = None,
    overhead_us: Annotated[int, typer.Option("--overhead-us", min=0, help="Per step, over a cost table.")] = 0,
    format_: Annotated[str | None, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = None,
    scale: Annotated[float, typer.Option("--scale", min=1e-6, help="Multiply all lengths.")] = 1.0,
    first: Annotated[int | None, typer.Option("--first", min=1, help="Only so many arrivals.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the luck of drafts.")] = 0,
    ttft_ms: Annotated[float | None, typer.Option("--ttft-ms", min=0, help="Goodput: first token within.")] = None,
    itl_ms: Annotated[float | None, typer.Option("--itl-ms", min=0, help="Goodput: mean between tokens.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write everything there.")] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Draw the policies.")] = None,
) -> None:
    """Run the real scheduler in virtual time over recorded arrivals, one policy after another, and compare."""
    writable(json_, "--json")
    writable(report, "--report")
    recorded = fit_trace(arrivals) if is_trace(arrivals) else None
    asked = _arrivals(arrivals, recorded, format_=format_, scale=scale, first=first)
    times = _times(cost_table, recorded, context.obj, overhead_us=overhead_us)
    luck = _acceptance(acceptance, recorded, context.obj, block=block or 7)
    _refuse_idle(
        {
            "--format": format_ is not None and recorded is not None,
            "--overhead-us": overhead_us > 0 and not isinstance(times, TableTimes),
            "--block": block is not None and not luck.note.startswith("mean "),
        }
    )
    num_slots = slots or (recorded.num_slots if recorded else 32)
    budget = max_step_tokens or (recorded.max_step_tokens if recorded else 2048)
    limits = limits_for(asked, num_slots=num_slots, max_step_tokens=budget, block_len=len(luck.chances))
    policies = _policies(policy)
    rows = []
    steps: dict[str, list[StepSeen]] = {name: [] for name in policies if report is not None}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("policies", total=len(policies))
        for name, made in policies.items():
            watch = steps[name].append if report is not None else None
            run = simulate(
                asked, made, name=name, limits=limits, times=times, acceptance=luck, seed=seed, on_step=watch
            )
            rows.append(outcome(run, num_slots=num_slots, ttft_ms=ttft_ms, itl_ms=itl_ms))
            progress.advance(task)
    about = {
        "arrivals": str(arrivals),
        "scale": scale,
        "num_slots": num_slots,
        "max_step_tokens": limits.max_step_tokens,
        "max_model_len": limits.max_model_len,
        "step_times": times.note,
        "acceptance": {"note": luck.note, "chances": list(luck.chances)},
        "seed": seed,
        "overhead_us": overhead_us,
    }
    _print(about, rows)
    if json_ is not None:
        write(json_, json.dumps({**about, "rows": rows}, indent=2) + "\n", flag="--json")
    if report is not None:
        told = f"{len(asked)} requests of {arrivals.name}, {num_slots} slots; step times: {times.note}"
        write(report, page(f"policies on {arrivals.name}", of_runs(told, rows, steps)), flag="--report")


def _refuse_idle(flags: dict[str, bool]) -> None:
    for flag in (one for one, is_idle in flags.items() if is_idle):
        raise Refused("BAD_CONFIG", f"{flag}: what else was given leaves it without a meaning")


def _policies(text: str) -> dict[str, Policy]:
    policies = {name.strip(): policy_from_text(name.strip()) for name in text.split(",")}
    for name, made in policies.items():
        if getattr(made, "needs_confidence", False):
            raise Refused("BAD_CONFIG", f"--policy {name}: a simulated drafter has no confidences to decide by")
    return policies


def _arrivals(
    path: Path, recorded: Recorded | None, *, format_: str | None, scale: float, first: int | None
) -> list[Arrival]:
    asked = recorded.arrivals if recorded is not None else read_arrivals(path, format_)
    asked = asked[:first]
    return asked if scale == 1.0 else [one.scaled(scale) for one in asked]


def _times(text: str | None, recorded: Recorded | None, pair: Pair, *, overhead_us: int) -> StepTimes:
    if text is None and recorded is not None:
        return recorded.times
    if text in PUBLISHED:
        return published(text)
    path = pair.target.parent / "costs.json" if text is None else Path(text)
    if not path.exists():
        expected = f"expected a file, or one of {', '.join(PUBLISHED)}"
        raise Refused("BAD_CONFIG", f"--cost-table {path}: {expected}")
    if is_trace(path):
        return fit_trace(path).times
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        has_points = isinstance(values, dict) and "sps" in values
    except (OSError, ValueError, TypeError) as error:
        raise Refused("BAD_CONFIG", f"--cost-table {path}: cannot be read: {error}") from error
    return point_times(path) if has_points else table_times(path, overhead_ns=1000 * overhead_us)


def _acceptance(text: str | None, recorded: Recorded | None, pair: Pair, *, block: int) -> Acceptance:
    if text is None and recorded is not None:
        return recorded.acceptance
    path = pair.target.parent / "acceptance.json" if text is None else Path(text)
    if path.exists():
        if is_trace(path):
            return fit_trace(path).acceptance
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return Acceptance(tuple(map(float, values["chances"])), str(values.get("note", path.name)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused("BAD_CONFIG", f"--acceptance {path}: expected {{chances, note}}: {error}") from error
    try:
        return Acceptance.of_mean(float(text or ""), block)
    except ValueError as error:
        raise Refused("BAD_CONFIG", f"--acceptance {text}: expected a file or a number") from error


def _print(about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    console = Console(width=max(130, Console().width))
    scaled = "" if about["scale"] == 1.0 else f", lengths times {about['scale']:g}"
    title = f"{rows[0]['requests']} requests, {about['num_slots']} slots of {about['max_model_len']}{scaled}"
    table = Table(title=title, caption=f"step times: {about['step_times']}; drafts: {about['acceptance']['note']}")
    for head, _, _ in COLUMNS:
        table.add_column(head, justify="left" if head == "policy" else "right", no_wrap=True)
    for row in rows:
        values = [(row[key], digits) for _, key, digits in COLUMNS]
        table.add_row(*["-" if one is None else one if type(one) is str else f"{one:.{d}f}" for one, d in values])
    console.print(table)
