"""The one log line of a request, at its end.

Owns its fields; docs/operating.md lists them. `clients.py` calls it.
"""

import time

import structlog

from ..core import results
from .telling import Record

log = structlog.get_logger()


def log_request(record: Record | None, ended: results.Ended) -> None:
    """One line a request, with all that one would ask of it."""
    counts = ended.counts
    drafting = counts.num_passes - counts.num_zero_passes
    log.info(
        "request",
        client=ended.client,
        request_id=record.request_id if record else None,
        label=record.label if record else None,
        state=ended.state,
        reason=ended.reason,
        prompt_len=ended.prompt_len,
        output_len=ended.output_len,
        seconds=round((time.monotonic_ns() - record.arrived_ns) / 1e9, 6) if record else None,
        passes=counts.num_passes,
        zero_passes=counts.num_zero_passes,
        acceptance_len=round(counts.num_emitted_drafting / drafting, 3) if drafting else None,
        restarts=counts.num_restarts,
    )
