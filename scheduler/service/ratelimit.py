"""Counting what is dropped, and logging it at most once a second: junk must not fill the disk.

Owns one counter an edge; the edges call `drop`.
"""

import time

import structlog

log = structlog.get_logger()
_INTERVAL_S = 1.0


class Drops:
    """Counts drops under one event name; a log line gives the newest reason and how many came since the last line."""

    def __init__(self, event: str) -> None:
        self.count = 0
        self._event = event
        self._unlogged = 0
        self._logged_at = float("-inf")

    def drop(self, reason: str) -> None:
        self.count += 1
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at >= _INTERVAL_S:
            log.warning(self._event, reason=reason[:500], dropped=self._unlogged)
            self._unlogged, self._logged_at = 0, now
