"""`local(target=...)`: an engine of one's own for a `with` block.

Owns a child process on a socket in a private folder; nothing of it is left behind. For scripts, notebooks and tests.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..wire.client import Client
from .config import Settings

_STOP_S = 10.0


@contextmanager
def local(*, wait_s: float = 120.0, timeout_s: float = 30.0, log: Any = None, **settings: Any) -> Iterator[Client]:
    """Yield a client of a fresh engine with `settings` (keys of `Settings`), once its worker serves.

    `log` is where the engine's stderr goes (a file; None: where ours goes). Raises `Refused` for bad settings before
    anything starts, `EngineLost` when the engine does not get ready.
    """
    folder = tempfile.mkdtemp(prefix="dsparkd-")
    try:
        resolved = Settings.from_mapping({"bind": f"ipc://{folder}/engine", **settings})
        process = start(resolved, log=log)
        try:
            with Client(resolved.bind, timeout_s=timeout_s) as client:
                client.wait_ready(wait_s)
                yield client
        finally:
            stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(settings: Settings, *, log: Any = None) -> "subprocess.Popen[bytes]":
    """Start an engine as a child that dies with us."""
    command = [sys.executable, "-m", f"{__package__}.run", settings.to_json(), "--parent-pid", str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)


def stop(process: "subprocess.Popen[bytes]") -> int:
    """SIGINT (stop now), then SIGKILL; return the exit status. Its worker dies with it either way."""
    process.send_signal(2)
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
