"""`python -m dsparkd.scheduler.service.run SETTINGS_JSON`: one engine as a child process.

Owns the process's outside (signals, logs, exit status); `local.py` and tests start it. `dsparkd serve` does the same
for people.
"""

import argparse
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from ...statemachine.errors import EngineError, LocalError, Refused
from ..wire.workerside import die_with_parent, inherit_orphans, tie_to_parent
from .config import Settings
from .journal import JournalLost
from .logs import configure_logs
from .loop import Service
from .respawn import BROKEN, TAKEN, Parent, end_orphans


def serve(settings: Settings, *, respawn: bool = False, reason: Path | None = None) -> int:
    """Run an engine until it is told to stop; return the exit status.

    In this process, or with `respawn` in a child that is replaced when it dies. `reason`: a file for why it gave up.
    """
    if respawn:
        inherit_orphans()
        parent = Parent(
            lambda: start(settings, replaceable=True, reason=reason),
            budget=settings.respawn_budget,
            bury=end_orphans,
        )
        parent.install_signals()
        return parent.run()
    told = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:  # a signal waits for the handlers: what was made until then would stay behind
        service = Service(settings)
        service.install_signals()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, told)
    status = service.run()
    if service.gave_up and reason is not None:
        reason.write_text(f"NO_WORKER\n{service.gave_up}")
    return status


def start(
    settings: Settings,
    *,
    respawn: bool = False,
    replaceable: bool = False,
    reason: Path | None = None,
    log: Any = None,
) -> "subprocess.Popen[bytes]":
    """Start an engine as a child that dies with us.

    `replaceable`: it tells a taken address from other faults. `reason`: a file for why it will not serve.
    """
    command = [sys.executable, "-m", __spec__.name, settings.to_json(), "--parent-pid", str(os.getpid())]
    command += ["--respawn"] * respawn + ["--replaceable"] * replaceable
    command += [] if reason is None else ["--reason", str(reason)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, preexec_fn=tie_to_parent)


def main() -> int:
    parser = argparse.ArgumentParser(prog="dsparkd-service")
    parser.add_argument("settings", help="settings as a JSON object")
    parser.add_argument("--parent-pid", type=int, help="end when this parent dies")
    parser.add_argument("--respawn", action="store_true", help="serve in a child, and replace it when it dies")
    parser.add_argument("--replaceable", action="store_true", help=f"end with {TAKEN} when an address is taken")
    parser.add_argument("--reason", type=Path, help="a file for the code and the message of why it will not serve")
    arguments = parser.parse_args()
    if arguments.parent_pid is not None:
        die_with_parent(arguments.parent_pid)
    try:
        settings = Settings.from_json(arguments.settings)
        configure_logs(settings.logs, settings.log_level)
        return serve(settings, respawn=arguments.respawn, reason=arguments.reason)
    except (LocalError, JournalLost) as error:
        print(f"dsparkd: {error}", file=sys.stderr)
        return BROKEN
    except EngineError as error:
        print(f"dsparkd: {error}", file=sys.stderr)
        if arguments.reason is not None:
            arguments.reason.write_text(f"{getattr(error, 'code', 'INTERNAL')}\n{error}")
        taken = isinstance(error, Refused) and error.code == "ADDRESS_IN_USE"
        return TAKEN if taken and arguments.replaceable else 1
    except Exception:  # our bug, as a LocalError is
        traceback.print_exc()
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
