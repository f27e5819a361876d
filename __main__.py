"""`python -m dsparkd COMMAND`: the one place where the torch-free command line and the torch floors meet.

Owns the choice of a worker's backend, `--version`, and the joining of `inspect`, which knows checkpoints; torch is
loaded only by a worker of a real checkpoint.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from . import __version__
from .models.shipped import shipped_pair
from .scheduler.cli.app import app, run
from .scheduler.cli.engines import Pair
from .scheduler.service.logs import configure_logs
from .scheduler.service.setting_sources import variable_of
from .scheduler.service.supervisor import TOKEN_VARIABLE
from .scheduler.trace.scripted_backend import ScriptedBackend, is_scripted
from .scheduler.wire.messages import Init, Ready, Report, Step
from .scheduler.wire.workerside import Backend, serve_worker
from .statemachine.errors import LocalError, Refused
from .worker.inspect import inspect

app.command()(inspect)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dsparkd {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["worker"]:
        return worker(arguments[1:])
    shipped = shipped_pair()
    return run(Pair(shipped.target, shipped.drafter, shipped.prompts), arguments)


def worker(argv: Sequence[str]) -> int:
    """`dsparkd worker`: serve one session. A scheduler starts this, with a token in the environment."""
    parser = argparse.ArgumentParser(prog="dsparkd worker")
    parser.add_argument("--connect", required=True, metavar="ADDRESS")
    parser.add_argument("--session", type=int, required=True)
    parser.add_argument("--parent-pid", type=int)
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the scheduler decides
    configure_logs(os.environ.get(variable_of("logs"), "auto"), os.environ.get(variable_of("log_level"), "info"))
    token = os.environ.pop(TOKEN_VARIABLE, "")
    return serve_worker(
        arguments.connect,
        session=arguments.session,
        token=token,
        backend=_ByTarget(),
        parent_pid=arguments.parent_pid,
    )


class _ByTarget:
    """The `Backend` that the target's name asks for, made at `load`, so that a scripted worker never loads torch."""

    def __init__(self) -> None:
        self._inner: Backend | None = None

    def load(self, init: Init) -> None:
        self._inner = ScriptedBackend() if is_scripted(init.target) else _torch_backend()
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


def _torch_backend() -> Backend:
    try:
        from .worker.backend import TorchBackend
    except ModuleNotFoundError as error:
        raise Refused("BAD_CONFIG", f"{error}: a real checkpoint needs `pip install dsparkd[worker]`") from error
    return TorchBackend()


if __name__ == "__main__":
    sys.exit(main())
