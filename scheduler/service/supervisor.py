"""The worker process: spawned, watched by a pidfd, killed and reaped.

Owns child processes and their secret tokens; never a message. `workers.py` polls `pidfd` and drives it. Linux
only, for the pidfd.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping

import attrs
import structlog

from ...statemachine.errors import LocalError
from ..core import events
from ..wire.workerside import tie_to_parent

log = structlog.get_logger()
TOKEN_VARIABLE = "DSPARKD_WORKER_TOKEN"
# What a worker's process wants of its libraries, unless the user's environment says otherwise: threads that sleep while
# they wait (spinning ones cost shared cores dearly), and huge pages for weights (a pass streams all of them).
HABITS = {"OMP_WAIT_POLICY": "PASSIVE", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_PACKAGE = __name__.split(".", maxsplit=1)[0]


@attrs.define
class Child:
    session: int
    token: str
    process: "subprocess.Popen[bytes]"
    pidfd: int


class Supervisor:
    """At most one worker lives at a time. `address` is where it connects, `variables` it finds in its environment."""

    def __init__(self, address: str, *, variables: Mapping[str, str]) -> None:
        self.address = address
        self._variables = variables
        self._child: Child | None = None

    @property
    def pidfd(self) -> int | None:
        """A descriptor that polls readable when the worker has exited; None without a worker."""
        return None if self._child is None else self._child.pidfd

    def spawn(self, session: int) -> None:
        """Start the worker of `session`; an earlier one is made sure to be gone."""
        self.kill("a new session starts")
        token = secrets.token_urlsafe(24)
        command = [sys.executable, "-m", _PACKAGE, "worker", "--connect", self.address]
        command += ["--session", str(session), "--parent-pid", str(os.getpid())]
        environment = {**HABITS, **os.environ, **self._variables, TOKEN_VARIABLE: token}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=tie_to_parent)
        self._child = Child(session, token, process, os.pidfd_open(process.pid))
        log.info("worker_spawned", session=session, pid=process.pid)

    def proves(self, session: int, token: str) -> bool:
        """Whether a Hello's session and token are those of the worker that we spawned."""
        child = self._child
        return (
            child is not None
            and session == child.session
            and secrets.compare_digest(token.encode(), child.token.encode())
        )

    def reap(self) -> events.WorkerDied | None:
        """Return the worker's death, once, when it has exited."""
        child = self._child
        if child is None or child.process.poll() is None:
            return None
        self._forget(child)
        return events.WorkerDied(child.session, exit_reason(child.process.returncode))

    def kill(self, reason: str) -> None:
        """Kill and reap the worker, if there is one. Its death was known, so it is not reported again."""
        child = self._child
        if child is None:
            return
        log.info("worker_killed", session=child.session, pid=child.process.pid, reason=reason)
        child.process.kill()
        child.process.wait()
        self._forget(child)

    def leave(self, timeout_s: float) -> None:
        """Give a worker that was asked to leave a moment, then kill it."""
        child = self._child
        if child is None:
            return
        try:
            child.process.wait(timeout_s)
            self._forget(child)
        except subprocess.TimeoutExpired:
            self.kill("it did not leave")

    def _forget(self, child: Child) -> None:
        if self._child is not child:
            raise LocalError(f"worker session {child.session} is not the present one")
        os.close(child.pidfd)
        self._child = None


def exit_reason(code: int) -> str:
    if code >= 0:
        return f"its process exited with code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"
