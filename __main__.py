"""The command line's door: `python -m dsparkd COMMAND`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from .scheduler.service.logs import configure_logs
from .scheduler.service.supervisor import TOKEN_VARIABLE
from .scheduler.trace.scripted_backend import ScriptedBackend, is_scripted
from .scheduler.wire.messages import Init, Ready, Report, Step
from .scheduler.wire.workerside import Backend, serve_worker
from .statemachine.errors import LocalError, Refused


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="dsparkd")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="serve one session as a worker (started by a scheduler)")
    worker.add_argument("--connect", required=True, metavar="ADDRESS")
    worker.add_argument("--session", type=int, required=True)
    worker.add_argument("--parent-pid", type=int)
    arguments = parser.parse_args(argv)
    return run_worker(arguments.connect, session=arguments.session, parent_pid=arguments.parent_pid)


def run_worker(address: str, *, session: int, parent_pid: int | None) -> int:
    """Serve one session; which backend it takes is known when the target's name comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the scheduler decides
    configure_logs()
    token = os.environ.pop(TOKEN_VARIABLE, "")
    return serve_worker(address, session=session, token=token, backend=_ByTarget(), parent_pid=parent_pid)


class _ByTarget:
    """The `Backend` that the target's name asks for, made at `load`, so that a scripted worker never loads torch."""

    def __init__(self) -> None:
        self._inner: Backend | None = None

    def load(self, init: Init) -> None:
        if not is_scripted(init.target):
            raise Refused("BAD_CONFIG", f"target = {init.target!r}: this build has only the scripted worker")
        self._inner = ScriptedBackend()
        self._inner.load(init)

    def warm(self) -> Ready:
        return self._made().warm()

    def run(self, step: Step) -> Report:
        return self._made().run(step)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _made(self) -> Backend:
        if self._inner is None:
            raise LocalError("the worker's backend is used before it is loaded")
        return self._inner


if __name__ == "__main__":
    sys.exit(main())
