"""What `dsparkd top` shows: lines and a table of slots, made of two answers to `stats` and one to `health`.

Owns the arithmetic and the words; never asks anybody and never prints.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..wire import messages as wire

COLUMNS = ("slot", "state", "request", "doing", "draft", "held", "acceptance", "prompt", "output", "limit")
NUMBERS = COLUMNS[4:]


@attrs.frozen
class View:
    """`before` and `after` are stats, `seconds` apart."""

    address: str
    health: wire.Health
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    seconds: float

    def grown(self, name: str) -> int:
        return int(self.after[name] - self.before[name])

    def rate(self, name: str) -> float:
        return self.grown(name) / self.seconds

    # ---- lines --------------------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        return [self.states(), self.requests(), self.rates(), self.drafts(), self.faults()]

    def states(self) -> str:
        after = self.after
        health = "healthy" if self.health.ok else "NOT WELL: " + "; ".join(self.health.reasons)
        worker = f"worker {after['worker']} (session {after['session']}, {after['respawns']} respawned)"
        return f"{self.address}: engine {after['engine']}, {worker}, {health}"

    def requests(self) -> str:
        after = self.after
        live = sum(after["requests"].values())
        refused = sum(after["refused"].values()) + sum(after["refused_at_door"].values())
        ended = ", ".join(f"{count} {state.lower()}" for state, count in sorted(after["ended"].items()))
        slots = ", ".join(f"{count} {state.lower()}" for state, count in sorted(after["slots"].items()))
        waiting = after["queue_len"] + after["early_len"]
        return (
            f"requests: {live} live, {waiting} in the queue, {after['accepted']} accepted, {refused} refused"
            f"{', ' + ended if ended else ''}; slots: {slots}"
        )

    def rates(self) -> str:
        steps = self.grown("steps")
        rows = f"{self.grown('step_rows') / steps:.1f} rows a step" if steps else "no step"
        ended = (sum(self.after["ended"].values()) - sum(self.before["ended"].values())) / self.seconds
        return (
            f"rates: {self.rate('tokens_emitted'):.1f} tokens/s, {steps / self.seconds:.1f} steps/s, {rows}, "
            f"{self.rate('accepted'):.1f} accepted/s, {ended:.1f} ended/s"
        )

    def drafts(self) -> str:
        passes, resting = self.grown("passes"), self.grown("zero_passes")
        now = _acceptance(self.grown("emitted_drafting"), passes - resting)
        always = _acceptance(self.after["emitted_drafting"], self.after["passes"] - self.after["zero_passes"])
        settings = self.after["settings"]
        chosen = settings["policy"] or settings["draft_len_schedule"] or settings["max_concurrency"]
        share = f"{resting / passes:.0%} of passes without a draft" if passes else "no pass"
        mean = f"{self.grown('tokens_verified') / passes:.1f} drafts a pass" if passes else ""
        parts = [f"acceptance length {now} now, {always} since the start", share, mean, f"policy {chosen}"]
        return "drafts: " + ", ".join(part for part in parts if part)

    def faults(self) -> str:
        names = ("step_faults", "drafts_lost", "rows_discarded", "reports_dropped", "internal_errors")
        dropped = self.after["client_frames_dropped"] + self.after["worker_frames_dropped"]
        counts = [f"{self.after[name]} {name.replace('_', ' ')}" for name in names]
        return "faults: " + ", ".join([*counts, f"{dropped} frames dropped"])

    # ---- the table ----------------------------------------------------------------------------------------------

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each slot, by the order of `COLUMNS`."""
        return [_row(one) for one in self.after["slot_list"]]


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    about = (str(one["slot"]), one["state"])
    if "request" not in one:
        return (*about, *([""] * (len(COLUMNS) - len(about))))
    name = one.get("request_id", str(one["request"]))
    return (
        *about,
        f"{name} {one['label']}" if one.get("label") else name,
        one["request_state"],
        str(one.get("draft_len", "")),
        str(one["held_len"]),
        _acceptance(one["emitted_drafting"], one["drafting_passes"]),
        str(one["prompt_len"]),
        str(one["output_len"]),
        str(one["max_tokens"]),
    )


def _acceptance(emitted: int, passes: int) -> str:
    return f"{emitted / passes:.2f}" if passes else "-"


def plain(view: View, *, width: int = 24) -> str:
    """All of it as text; what a client named longer than `width` is cut."""
    table: Sequence[tuple[str, ...]] = [COLUMNS, *view.rows()]
    cells = [[_cut(cell, width) for cell in row] for row in table]
    widths = [max(len(row[at]) for row in cells) for at in range(len(COLUMNS))]
    lines = []
    for row in cells:
        aligned = [
            cell.rjust(wide) if name in NUMBERS else cell.ljust(wide)
            for name, cell, wide in zip(COLUMNS, row, widths, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join([*view.lines(), "", *lines])


def _cut(text: str, width: int) -> str:
    """Names are the clients': what would move a terminal's cursor is not shown."""
    shown = "".join(one if one.isprintable() else "?" for one in text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"
