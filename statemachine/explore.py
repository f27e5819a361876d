"""Breadth-first exploration of any pure world: every state within its bounds, once, by a shortest way.

Owns the search, the shortest counterexample and the judgement that every state comes to rest. Knows nothing of
tables or engines: a world says what may happen (`moves`), what then is (`after`), what decides (`key`) and which move
happens when nothing goes wrong any more (`calm`). The engine's world is in `scheduler/proof/world.py`.
"""

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import attrs

M = TypeVar("M", bound=Hashable)
W = TypeVar("W", bound="World[Any]")

NOWHERE = -1


class World(Protocol[M]):
    """A value: `after` never changes the world that it is called on, and raises when something forbidden happens."""

    def moves(self) -> Sequence[M]:
        """Return everything that may happen now, the calm move among it."""

    def calm(self) -> M | None:
        """Return what happens next when no further fault does, or None at rest."""

    def after(self, move: M) -> "World[M]": ...

    def key(self) -> Hashable:
        """Return a value that is equal for worlds that behave alike."""


@attrs.frozen
class Violation:
    """What went wrong, and the moves that lead there from the start. There is no shorter way."""

    path: tuple[Any, ...]
    problem: str


@attrs.frozen(kw_only=True)
class Exploration:
    num_states: int
    num_transitions: int
    depth: int
    complete: bool  # every state within the world's own bounds was visited
    violation: Violation | None


Watch = Callable[[Any, Any, Any, Callable[[], tuple[Any, ...]]], None]  # (before, move, after, path to before)


def explore(
    start: W | Iterable[W], *, max_states: int | None = None, max_depth: int | None = None, watch: Watch | None = None
) -> Exploration:
    """Visit every state that `start` (one world or several) can reach; stop at the first violation.

    A violation is an exception out of `after`, or a state from which the calm moves alone never come to rest.
    """
    return _Search(max_states, max_depth, watch).run([start] if hasattr(start, "moves") else list(start))


class _Search:
    """One run: the tree of shortest paths as three parallel arrays, and the frontier with its worlds."""

    def __init__(self, max_states: int | None, max_depth: int | None, watch: Watch | None) -> None:
        self.max_states, self.max_depth, self.watch = max_states, max_depth, watch
        self.number: dict[int, int] = {}  # hash of a key -> number of its state, in order of discovery
        self.parent = array("q")
        self.came_by: list[Any] = []
        self.calm_next = array("q")
        self.frontier: deque[tuple[int, int, Any]] = deque()
        self.num_transitions = self.depth = 0
        self.complete = True

    def run(self, starts: list[Any]) -> Exploration:
        for world in starts:
            self._discover(world, parent=NOWHERE, move=None, depth=0)
        while self.frontier:
            here, depth, world = self.frontier.popleft()
            self.depth = depth
            if self.max_depth is not None and depth >= self.max_depth:
                self.complete = False
                problem = self._calm_walk(here, world)
            else:
                problem = self._expand(here, depth, world)
            if problem is not None:
                return self._result(problem)
        return self._result(self._restless())

    def _expand(self, here: int, depth: int, world: Any) -> Violation | None:
        calm = world.calm()
        for move in world.moves():
            self.num_transitions += 1
            try:
                after = world.after(move)
            except Exception as error:
                return Violation((*self._path(here), move), f"{type(error).__name__}: {error}")
            if self.watch is not None:
                self.watch(world, move, after, lambda: self._path(here))
            there = self._discover(after, parent=here, move=move, depth=depth + 1)
            if move == calm:
                self.calm_next[here] = there
        return None

    def _discover(self, world: Any, *, parent: int, move: Any, depth: int) -> int:
        digest = hash(world.key())
        known = self.number.get(digest)
        if known is not None:
            return known
        made = self._note(digest, parent=parent, move=move)
        if self.max_states is None or made < self.max_states:
            self.frontier.append((made, depth, world))
        else:
            self.complete = False
        return made

    def _note(self, digest: int, *, parent: int, move: Any) -> int:
        made = self.number[digest] = len(self.came_by)
        self.parent.append(parent)
        self.came_by.append(move)
        self.calm_next.append(NOWHERE)
        return made

    def _calm_walk(self, here: int, world: Any) -> Violation | None:
        """Beyond the depth limit only calm moves are followed, until rest or a state that is known already."""
        while (move := world.calm()) is not None:
            self.num_transitions += 1
            try:
                world = world.after(move)
            except Exception as error:
                return Violation((*self._path(here), move), f"{type(error).__name__}: {error}")
            digest = hash(world.key())
            known = self.number.get(digest)
            if known is not None:
                self.calm_next[here] = known
                return None
            there = self._note(digest, parent=here, move=move)
            self.calm_next[here] = there
            here = there
        return None

    def _restless(self) -> Violation | None:
        """Follow the calm moves: a loop of them never comes to rest."""
        settled = bytearray(len(self.came_by))  # 0 unknown, 1 on this walk, 2 comes to rest
        for first in range(len(self.came_by)):
            walk, here = [], first
            while here != NOWHERE and settled[here] == 0:
                settled[here] = 1
                walk.append(here)
                here = self.calm_next[here]
            if here != NOWHERE and settled[here] == 1:
                return Violation(self._path(first), "the calm moves from here never come to rest: they run in a loop")
            for one in walk:
                settled[one] = 2
        return None

    def _path(self, here: int) -> tuple[Any, ...]:
        moves: list[Any] = []
        while self.parent[here] != NOWHERE:
            moves.append(self.came_by[here])
            here = self.parent[here]
        return tuple(reversed(moves))

    def _result(self, violation: Violation | None) -> Exploration:
        return Exploration(
            num_states=len(self.came_by),
            num_transitions=self.num_transitions,
            depth=self.depth,
            complete=self.complete and violation is None,
            violation=violation,
        )
