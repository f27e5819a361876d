"""`local(target=...)`: an engine of one's own for a `with` block.

Owns a child process on a socket in a private folder; the end of the block removes both. For scripts,
notebooks and tests.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...statemachine.errors import Refused
from ..wire.client import Client
from ..wire.result import EngineLost
from .config import Settings
from .folders import PrivateFolder
from .run import start

_STOP_S = 10.0
_TURN_S = 2.0


@contextmanager
def local(
    *, wait_s: float = 120.0, timeout_s: float = 30.0, log: Any = subprocess.DEVNULL, **settings: Any
) -> Iterator[Client]:
    """Yield a client of a fresh engine with `settings` (keys of `Settings`), once its worker serves.

    `log` is where the engine's log goes (a file; None: our stderr). Raises `Refused` for bad settings before anything
    starts, and when the engine will not serve them; `EngineLost` when it does not get ready. SIGKILL of the caller
    leaves the private folder behind for the next one to sweep, and nothing else.
    """
    folder = PrivateFolder()
    try:
        resolved = Settings.from_mapping({"bind": f"ipc://{folder.path}/engine", **settings})
        reason = folder.path / "reason"
        process = start(resolved, respawn=resolved.journal is not None, reason=reason, log=log)
        try:
            _wait_until_served(resolved.bind, process, wait_s, reason)
            with Client(resolved.bind, timeout_s=timeout_s) as client:
                yield client
        finally:
            stop(process)
    finally:
        folder.remove()


def _wait_until_served(bind: str, process: "subprocess.Popen[bytes]", wait_s: float, reason: Path) -> None:
    """Until its worker serves. Asked in short turns, as an engine that ends before would be waited for in vain."""
    path = Path(bind.removeprefix("ipc://"))
    until = time.monotonic() + wait_s
    while process.poll() is None and bind.startswith("ipc://") and not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    while process.poll() is None:
        try:
            with Client(bind, timeout_s=_TURN_S) as asking:
                asking.wait_ready(max(0.0, until - time.monotonic()))
            return
        except EngineLost:
            if time.monotonic() > until:
                raise
        except Refused as refused:
            if refused.code != "ENGINE_GONE":
                raise
            with suppress(subprocess.TimeoutExpired):  # it ends, and has said why in more than a last word
                process.wait(_STOP_S)
            break
    if reason.exists():
        code, _, message = reason.read_text().partition("\n")
        raise Refused(code, message)
    raise EngineLost(f"the engine at {bind} ended with status {process.returncode} before it served")


def stop(process: "subprocess.Popen[bytes]") -> int:
    """SIGINT (stop now), then SIGKILL; return the exit status. Its worker dies with it either way."""
    process.send_signal(2)
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
