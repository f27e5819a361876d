"""Files that a command writes at its end: found out before the work, not after it.

Owns that check. Commands call it for each `--json`, `--plot` and `-o`.
"""

from pathlib import Path

from ...statemachine.errors import Refused


def writable(path: Path | None, flag: str) -> None:
    """Raise `Refused` naming the flag when nothing can be written at `path`; None is no path."""
    try:
        if path is not None:
            path.touch()
    except OSError as error:
        raise Refused("BAD_CONFIG", f"{flag} {path}: cannot be written: {error}") from error
