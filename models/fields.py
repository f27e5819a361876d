"""Typed reads from a JSON object that collect problems instead of raising.

Owns the wording of a problem: key, value, expectation. Never decides what a key means; called by `config`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST = 1 << 40  # no size is near it; what is beyond cannot even be multiplied and printed


def read_json(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """The object in `path`, or None with a problem noted (absent, unreadable, not an object)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name}: expected a file in {path.parent}, found none")
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: expected readable JSON, found {error}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name}: expected a JSON object, found {type(value).__name__}")
        return None
    return value


class Fields:
    """One JSON object under inspection. A failed read notes a problem and returns a harmless stand-in.

    Nothing built from stand-ins is served: the caller refuses when `problems` is not empty. `wrong_keys` says for which
    keys a stand-in may have been returned.
    """

    def __init__(self, values: Mapping[str, Any], problems: list[str], *, prefix: str = "") -> None:
        self.values = values
        self.problems = problems
        self.prefix = prefix
        self.wrong_keys: set[str] = set()

    def wrong(self, key: str, expectation: str) -> None:
        """Note that `key` does not hold what was expected."""
        self.wrong_keys.add(key)
        found = repr(self.values[key]) if key in self.values else "absent"
        self.problems.append(f"{self.prefix}{key} = {found}: expected {expectation}")

    def spelling(self, newer: str, older: str) -> str:
        """Which of two names of one setting is used here. Both may be, if they agree."""
        if self.values.get(newer) is None:
            return older
        if self.values.get(older) not in (None, self.values[newer]):
            self.wrong(older, f"{self.values[newer]!r}, as {newer} says, or nothing")
        return newer

    def integer(self, key: str, *, default: int | None = None) -> int | None:
        """An int; bool is not one. None after a problem was noted."""
        value = self.values.get(key, default)
        if type(value) is int and abs(value) < LARGEST:
            return value
        self.wrong(key, f"an integer{_bound(value, LARGEST)}")
        return None

    def positive(self, key: str, *, most: int = LARGEST) -> int:
        """An int of 1..most; 0 after a problem was noted."""
        value = self.values.get(key)
        if type(value) is int and 0 < value <= most:
            return value
        self.wrong(key, f"a positive integer{_bound(value, most)}")
        return 0

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number above 0; 1.0 after a problem was noted."""
        value = self.values.get(key, default)
        if type(value) in (int, float) and 0 < value <= sys.float_info.max:
            return float(value)
        self.wrong(key, "a positive number")
        return 1.0

    def flag(self, key: str, *, default: bool) -> bool:
        """A JSON boolean; the default when the key is absent, which is what the format says."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(key, "true or false")
        return default

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of `allowed`; the first of them after a problem was noted."""
        value = self.values.get(key)
        if isinstance(value, str) and value in allowed:
            return value
        self.wrong(key, f"one of {', '.join(allowed)}")
        return allowed[0]


def _bound(value: Any, most: int) -> str:
    """The upper bound, for who is beyond it."""
    return f" up to {most}" if type(value) is int and value > most else ""
