"""What can go wrong on the scripted worker, asked for or not.

Owns the kinds; `scripted.py` raises them, `scripted_backend.py` tells them.
"""

import attrs

from ...statemachine.errors import EngineError


class ScriptedFault(EngineError):
    """A whole-step fault that was asked for, or a command that no lawful scheduler sends. Nothing moved."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen(kw_only=True)
class Faults:
    """What shall go wrong: steps by number (counted from 1), rows by (step number, slot)."""

    steps: frozenset[int] = frozenset()  # fail before the commit
    rows: frozenset[tuple[int, int]] = frozenset()
    drafter: frozenset[int] = frozenset()  # the drafter fails after the commit: no draft is held, `lost` says so


class RowRefused(Exception):
    """An entry check of one row failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
