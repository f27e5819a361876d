"""Typed faults of the worker: what a row or a step that cannot run is answered with.

Owns the codes; `runner.py` raises and reports them.
"""

from ..statemachine.errors import EngineError


class RowRefused(EngineError):
    """One row does not fit its window: EPOCH, POSITION, HELD, LIMIT, TOKEN, OPEN or CONTEXT. The others go on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
