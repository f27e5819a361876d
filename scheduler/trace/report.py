"""A run as one self-contained page: requests on slots by state, steps, acceptance, latencies, policies side by side.

Owns what goes into the page; `page/` holds its text, style and script, and the plotting library that draws. Columns of
steps travel as typed arrays, deflated: a million steps are some megabytes, and the page shows means of as many as fit.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from .columns import packed
from .replay import replay
from .simulate import StepSeen
from .spans import Spans
from .steps_seen import StepColumns

NUM_BARS = 24


def page(title: str, data: Mapping[str, Any]) -> str:
    """The page's text. `data` is what `of_trace` or `of_runs` made."""
    folder = files(__package__) / "page"

    def text(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    deflated = base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()
    shown = title.replace("&", "&amp;").replace("<", "&lt;")
    parts = {
        "__TITLE__": shown,
        "__UPLOT_CSS__": text("uplot.css"),
        "__CSS__": text("report.css"),
        "__UPLOT_JS__": text("uplot.js"),
        "__JS__": text("report.js") + text("lanes.js"),
        "__DATA__": deflated,
    }
    made = text("report.html")
    for name, part in parts.items():
        made = made.replace(name, part)
    return made


def of_trace(path: Path) -> dict[str, Any]:
    """Replay a trace into what the page shows. Raises `Refused` for what does not replay or holds no step."""
    spans, steps = Spans(), StepColumns()
    now_ns = begin_ns = 0
    names: dict[int, str] = {}
    for step in replay(path):
        if step.event.name is not None:
            names[int(step.event.input.request)] = step.event.name  # type: ignore[union-attr]
        ticked = getattr(step.event.input, "now_ns", None)
        if ticked is not None:
            begin_ns = begin_ns or ticked
            now_ns = ticked - begin_ns
            steps.tick(now_ns, step.core)
        spans.take(now_ns, step.event.input, step.outputs, step.core)
        steps.take(now_ns, step.event.input, step.outputs)
        core = step.core
    steps.refuse_none(path)
    spans.end(now_ns)
    totals = core.totals.values(core.ledger.requests.values())
    verified, accepted = totals["verified_at"], totals["accepted_at"]
    about = (
        f"{totals['accepted']} requests, {totals['steps']} steps, {totals['tokens_emitted']} tokens, policy "
        f"{core.policy.name}, {core.limits.num_slots} slots of {core.limits.max_model_len}"
    )
    return {
        "about": about,
        "end_ms": now_ns / 1e6,
        "spans": spans.columns(names),
        "steps": {"": steps.columns()},
        "acceptance": [stood / tested for stood, tested in zip(accepted, verified, strict=False) if tested],
        "ttft": histogram(steps.first_ms),
        "itl": histogram(steps.gaps_ms),
    }


def of_runs(about: str, rows: Sequence[Mapping[str, Any]], steps: Mapping[str, Sequence[StepSeen]]) -> dict[str, Any]:
    """Simulated runs: the policies' outcomes, and each one's steps."""
    ends = [one.end_ns for seen in steps.values() for one in seen]
    return {
        "about": about,
        "end_ms": max(ends, default=0) / 1e6,
        "policies": list(rows),
        "steps": {name: _simulated(seen) for name, seen in steps.items()},
    }


def _simulated(seen: Sequence[StepSeen]) -> dict[str, Any]:
    return {
        "first": 1,
        "begin": packed("f64", [one.begin_ns / 1e6 for one in seen]),
        "took": packed("u32", [(one.end_ns - one.begin_ns) / 1e4 for one in seen]),
        "rows": packed("u16", [one.num_rows for one in seen]),
        "chunk": packed("u16", [one.num_chunk_tokens for one in seen]),
        "verified": packed("u16", [one.num_verified for one in seen]),
        "emitted": packed("u16", [one.num_emitted for one in seen]),
        "decodes": packed("u16", [one.num_decodes for one in seen]),
    }


def histogram(values: Sequence[float]) -> dict[str, Any]:
    """Counts over edges that grow by equal factors, from the smallest value to the largest."""
    kept = sorted(max(one, 1e-3) for one in values)
    if not kept:
        return {"edges": [], "counts": []}
    low, high = kept[0], kept[-1]
    num = 1 if low == high else NUM_BARS
    factor = (high / low) ** (1 / num) if num > 1 else 2.0
    edges = [low * factor**index for index in range(num)]
    counts = [0] * num
    index = 0
    for one in kept:
        while index + 1 < num and one >= edges[index + 1]:
            index += 1
        counts[index] += 1
    return {"edges": edges, "counts": counts}
