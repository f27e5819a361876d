"""A simulated run in numbers: rates, latencies, queueing, occupancy, what was verified and what stood.

Owns the sums and their names; docs/simulate.md says what each means. `cli/simulate.py` prints them.
"""

from collections.abc import Sequence
from typing import Any

from .simulate import Run

SHARES = (0.5, 0.9, 0.99)


def outcome(run: Run, *, num_slots: int, ttft_ms: float | None = None, itl_ms: float | None = None) -> dict[str, Any]:
    """`ttft_ms`, `itl_ms`: what a request must keep to count as good (first token; mean time between tokens)."""
    totals, seen = run.totals, run.requests
    span_s = max(1, run.end_ns - min(one.at_ns for one in seen)) / 1e9
    first = [(one.first_ns - one.at_ns) / 1e6 for one in seen]
    between = [gap / 1e6 for one in seen for gap in one.gaps_ns]
    rates = [(one.num_tokens - 1) * 1e9 / (one.last_ns - one.first_ns) for one in seen if one.last_ns > one.first_ns]
    good = 0
    for one, ttft in zip(seen, first, strict=True):
        mean = sum(one.gaps_ns) / len(one.gaps_ns) / 1e6 if one.gaps_ns else 0.0
        good += (ttft_ms is None or ttft <= ttft_ms) and (itl_ms is None or mean <= itl_ms)
    passes, verified, accepted = totals["passes"], totals["tokens_verified"], totals["tokens_accepted"]
    drafting = passes - totals["zero_passes"]
    return {
        "policy": run.policy,
        "requests": len(seen),
        "span_s": span_s,
        "goodput_per_s": good / span_s,
        "tokens_per_s": totals["tokens_emitted"] / span_s,
        "tokens_per_s_per_user": sum(rates) / len(rates) if rates else None,
        **_percentiles("ttft_ms", first),
        **_percentiles("itl_ms", between),
        "latency_ms_mean": sum(one.last_ns - one.at_ns for one in seen) / len(seen) / 1e6,
        **_percentiles("latency_ms", [(one.last_ns - one.at_ns) / 1e6 for one in seen]),
        **_percentiles("queue_ms", [max(0, one.seated_ns - one.at_ns) / 1e6 for one in seen]),
        "busy_share": run.busy_ns / 1e9 / span_s,
        "slot_occupancy": run.slot_ns / (num_slots * span_s * 1e9),
        "steps": totals["steps"],
        "tokens_verified": verified,
        "tokens_accepted": accepted,
        "accepted_share": accepted / verified if verified else None,
        "acceptance_length": totals["emitted_drafting"] / drafting if drafting else None,
        "zero_draft_share": totals["zero_passes"] / passes if passes else None,
        "prefix_tokens_reused": totals["prefix_tokens_reused"],
    }


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {f"{name}_p{round(100 * share)}": _at(ordered, share) for share in SHARES}


def _at(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
