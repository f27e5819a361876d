"""`python -m dsparkd.scheduler.service.run SETTINGS_JSON`: one engine as a child process.

Owns the process's outside (signals, logs, exit status); `local.py` and tests start it. `dsparkd serve` does the same
for people.
"""

import argparse
import sys

from ...statemachine.errors import EngineError
from ..wire.workerside import die_with_parent
from .config import Settings
from .logs import configure_logs
from .loop import Service


def serve(settings: Settings) -> int:
    """Run an engine in this process until it is told to stop; return the exit status."""
    service = Service(settings)
    service.install_signals()
    return service.run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="dsparkd-service")
    parser.add_argument("settings", help="settings as a JSON object")
    parser.add_argument("--parent-pid", type=int, help="end when this parent dies")
    arguments = parser.parse_args()
    configure_logs()
    if arguments.parent_pid is not None:
        die_with_parent(arguments.parent_pid)
    try:
        return serve(Settings.from_json(arguments.settings))
    except EngineError as error:
        print(f"dsparkd: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
