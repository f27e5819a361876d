"""The small parent of a scheduler that has a journal: it starts another one whenever one dies.

Owns the child's life and nothing else: no socket, no request. A scheduler that ends by itself (drained, stopped, or
refused what it was told) is the last one; so is one that dies soon after its start too often in a row. `run.py` and
`dsparkd serve` are it when they are asked to.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger()
BROKEN = 70  # exit status of a scheduler that broke: another one may do better
TAKEN = 75  # of one whose address somebody else has: after one that had it, that may be for a moment
_SOON_S = 30.0  # after its start a death counts as one of a row
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0


class Parent:
    """Runs what `start` starts, again and again."""

    def __init__(
        self,
        start: "Callable[[], subprocess.Popen[bytes]]",
        *,
        budget: int,
        bury: Callable[[], None] = lambda: None,
    ) -> None:
        """`bury` is called when a child has ended, before there is another one."""
        self._start, self._budget, self._bury = start, budget, bury
        self._told_to_end = os.eventfd(0)  # a threading.Event has a lock, which a signal handler may find held
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Return the exit status of the last child."""
        deaths = 0
        while True:
            began = time.monotonic()
            self._child = self._start()
            if self._is_told_to_end():  # while there was nobody to tell
                self._child.send_signal(signal.SIGINT)
            status = self._child.wait()
            self._bury()
            if self._is_told_to_end() or not (is_death(status) or (deaths and status == TAKEN)):
                return _own(status)
            deaths = 1 if time.monotonic() - began > _SOON_S else deaths + 1
            log.warning("scheduler_died", status=status, deaths_in_a_row=deaths)
            if deaths > self._budget:
                log.error("scheduler_given_up", respawn_budget=self._budget)
                return _own(status)
            if self._is_told_to_end(within_s=min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (deaths - 1))):
                return 1

    def _is_told_to_end(self, within_s: float = 0.0) -> bool:
        return bool(select.select([self._told_to_end], [], [], within_s)[0])

    def pass_on(self, number: int, frame: Any) -> None:
        """A signal handler: what ends the child ends us, too."""
        os.eventfd_write(self._told_to_end, 1)
        if self._child is not None:
            self._child.send_signal(number)

    def install_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.pass_on)


def end_orphans() -> None:
    """Kill what the last child has left: a worker that was stopped between its fork and its exec is tied to nobody yet.

    For a process that inherits orphans, and has no other children when this is called.
    """
    while True:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def is_death(status: int) -> bool:
    """Whether a scheduler that ended so is to be replaced: it was killed, or it broke."""
    return status < 0 or status == BROKEN


def _own(status: int) -> int:
    """The parent's own exit status for its last child's."""
    return 1 if status < 0 or status == TAKEN else status
