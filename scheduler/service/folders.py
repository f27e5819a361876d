"""Private folders under the system's temporary one: for sockets of one process, gone with it.

Owns their making and removal, and the sweep of what killed processes have left. Each holds a lock as long as its owner
lives; a folder whose lock can be taken has no owner, whatever numbers processes have. A folder that does not bear our
mark is somebody else's, whatever its name.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "dsparkd-run-"
MARK = b"a private folder of dsparkd, removed with its owner\n"
_LOCK = "lock"
_YOUNG_S = 60.0  # a folder may be older than its lock, and its lock than the mark in it, by a moment


class PrivateFolder:
    """Made 0700 for this process alone; `remove` it at the end."""

    def __init__(self) -> None:
        for stale in stale_folders():
            shutil.rmtree(stale, ignore_errors=True)  # links are removed, not followed
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, MARK)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def stale_folders() -> Iterator[Path]:
    """Folders of ours whose owner is gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, or it has just gone
            found = path.stat()
            young = time.time() - found.st_mtime < _YOUNG_S
            if (
                path.is_dir()
                and found.st_uid == os.getuid()
                and not young
                and _is_ours(path)
                and _unlocked(path / _LOCK)
            ):
                yield path


def _is_ours(path: Path) -> bool:
    """An owner that was killed before it left its mark has left nothing else either."""
    held = {one.name for one in path.iterdir()}
    return held <= {_LOCK} if _mark_in(path) == b"" else _mark_in(path) == MARK


def _mark_in(path: Path) -> bytes:
    try:
        with (path / _LOCK).open("rb") as lock:
            return lock.read(len(MARK) + 1)
    except FileNotFoundError:
        return b""


def _unlocked(lock: Path) -> bool:
    if not lock.exists():
        return True
    handle = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
