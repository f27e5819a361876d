"""What makes effect handlers strict: data of another kind, or nothing to act on, is our bug and a `LocalError`.

Owns the two checks that handlers share. A table whose row has a wrong effect is found out by them, not by a crash.
"""

from typing import Any, TypeVar

from ...statemachine.errors import LocalError

T = TypeVar("T")


def given(data: Any, kind: type[T], effect: str) -> T:
    """Return `data`, which the event must have brought along."""
    if not isinstance(data, kind):
        raise LocalError(f"effect {effect}: expected {kind.__name__} with its event, got {data!r}")
    return data


def take_out(one: T, others: list[T], effect: str) -> None:
    """Remove `one` from a list that must hold it."""
    try:
        others.remove(one)
    except ValueError:
        raise LocalError(f"effect {effect}: {one!r} is not there to be removed") from None
