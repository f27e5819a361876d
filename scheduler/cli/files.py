"""Files that a command writes at its end: that they cannot be written is found out before the work, not after it.

Owns that check, and the writing. Commands call it for each `--json`, `--plot` and `-o`.
"""

import os
from pathlib import Path

from ...statemachine.errors import Refused


def writable(path: Path | None, flag: str) -> None:
    """Raise `Refused` naming the flag when nothing can be written at `path`; None is no path. Leaves nothing behind."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder, expected a file")
        if not path.exists():
            path.touch()
            path.unlink()
        elif not os.access(path, os.W_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        raise Refused("BAD_CONFIG", f"{flag} {path}: cannot be written: {error}") from error


def write(path: Path, text: str, *, flag: str) -> None:
    """Write a whole file. Raises `Refused` naming the flag, for what could not be known before (a full disk)."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused("BAD_CONFIG", f"{flag} {path}: cannot be written: {error}") from error
