"""Typed faults of the worker: what a row or a step that cannot run is answered with, and where one can be put in.

Owns the codes and the points of a step at which tests let it fail; `runner.py` raises and reports them. A point is a
method of the running worker that is replaced for a while, so that without an injection nothing is asked or paid.
"""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import attrs
import torch

from ..statemachine.errors import EngineError


class RowRefused(EngineError):
    """One row does not fit its window: EPOCH, POSITION, HELD, LIMIT, TOKEN, OPEN or CONTEXT. The others go on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch's CPU allocator says so by a message alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


class Point(enum.Enum):
    """The phases of a step in their order, by the method of a `Runner` that each is; those marked run once a row."""

    OPEN = "windows.open"
    SCRUB = "windows.scrub"  # a row
    FORWARD = "phases.runner.forward"
    ACCEPT = "phases.accept"
    OVERWRITE = "windows.overwrite"  # a row whose context is written
    CONTEXT = "phases.write_context"
    PROJECT = "phases.project"
    SUCCESSOR = "phases.successor"  # a row
    COMMIT = "phases.commit"
    DRAFT = "phases.draft"
    PROPOSE = "phases.proposer.propose"
    REPORT = "answer"  # a row


class When(enum.Enum):
    ENTRY = "on entry"
    DONE = "when all is done"


@attrs.define
class Injection:
    """How often the point was passed, and whether the fault was raised."""

    num_calls: int = 0
    raised: bool = False


@contextmanager
def injected(
    runner: Any,
    point: Point,
    error: Callable[[], BaseException | None],
    *,
    when: When = When.ENTRY,
    call: int | None = 1,
) -> Iterator[Injection]:
    """Let the `call`th passage of `point` (None: each) raise `error()`, unless that is None.

    runner: the `Runner` whose step it is; a worker without a drafter has none of its points.
    """
    path, _, name = point.value.rpartition(".")
    owner = attrgetter(path)(runner) if path else runner
    plain, found = getattr(owner, name), Injection()

    def passage(*arguments: Any, **options: Any) -> Any:
        found.num_calls += 1
        due = error() if call is None or call == found.num_calls else None
        result = plain(*arguments, **options) if due is None or when is When.DONE else None
        if due is not None:
            found.raised = True
            raise due
        return result

    setattr(owner, name, passage)
    try:
        yield found
    finally:
        delattr(owner, name)
