"""What a table is made of: rows, ignored cells, classifiers and escape laws, all frozen values.

Owns the vocabulary of a machine's page; never executes anything. Every machine file and `check.py` use it.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Generic, TypeVar

import attrs

# IntEnum, because lists indexed by small integers are the compiled form: hashing a plain Enum is Python code in 3.11.
S = TypeVar("S", bound=IntEnum)
E = TypeVar("E", bound=IntEnum)
F = TypeVar("F", bound=IntEnum)

ALWAYS = None  # the row applies whatever the facts are


@attrs.frozen
class Row(Generic[S, E, F]):
    """In `state`, `event` (classified as `case`) leads to `next` and then runs `effects` in order."""

    state: S
    event: E
    next: S
    case: IntEnum | None = ALWAYS
    effects: tuple[F, ...] = ()

    def __str__(self) -> str:
        case = "" if self.case is ALWAYS else f"[{self.case.name}]"
        return f"{self.state.name} --{self.event.name}{case}--> {self.next.name}"


@attrs.frozen
class Ignore(Generic[S, E]):
    """In `state`, `event` is expected and changes nothing; `why` says so to the reader."""

    state: S
    event: E
    why: str


@attrs.frozen
class Classifier:
    """A total function from an event's facts to a member of `cases`; so exactly one row of a cell applies."""

    cases: type[IntEnum]
    classify: Callable[[Any], IntEnum]


@attrs.frozen
class Escape(Generic[S, E]):
    """A law: from every non-final state `event` leads into `to` in every case, or is ignored in a state of `stays`."""

    event: E
    to: frozenset[S]
    stays: frozenset[S] = frozenset()


@attrs.frozen
class Bond(Generic[S, F]):
    """A law: `effect` stands only in rows that lead `into` these states; when `always`, in each row that enters one.

    A row that stays in its state enters nothing, but may carry the effect.
    """

    effect: F
    into: frozenset[S]
    always: bool = True


@attrs.frozen
class Declaration(Generic[S, E, F]):
    """A machine's page as one value: what `check.defects` judges and `table.Table` compiles."""

    name: str
    states: type[S]
    events: type[E]
    effects: type[F]
    initial: S
    finals: frozenset[S]
    rows: tuple[Row[S, E, F], ...]
    ignores: tuple[Ignore[S, E], ...] = ()
    classifiers: Mapping[E, Classifier] = attrs.field(factory=dict)
    laws: tuple[Escape[S, E], ...] = ()
    bonds: tuple[Bond[S, F], ...] = ()
    home: S | None = None  # a state that every other must be able to reach, for machines that never end


class NoEffect(IntEnum):
    """The effect enum of a machine that has no effects."""
