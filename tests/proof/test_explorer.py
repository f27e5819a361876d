"""The explorer itself: it finds the shortest way to what is forbidden, and notices what never comes to rest."""

import attrs
from dsparkd.statemachine.explore import explore


@attrs.frozen
class Counter:
    """Counts up by one or doubles, and is calm at multiples of ten; `forbidden` may not be reached."""

    value: int = 1
    forbidden: int = -1
    restless: bool = False

    def moves(self) -> list[str]:
        return [] if self.value >= 40 else ["up", "double"]

    def calm(self) -> str | None:
        return None if self.value >= 40 or (self.value % 10 == 0 and not self.restless) else "up"

    def after(self, move: str) -> "Counter":
        value = self.value + 1 if move == "up" else self.value * 2
        if value == self.forbidden:
            raise ValueError(f"{value} is forbidden")
        return attrs.evolve(self, value=5 if self.restless and value == 8 else value)

    def key(self) -> int:
        return self.value


def test_every_state_is_visited_once() -> None:
    found = explore(Counter())
    assert found.violation is None
    assert found.complete
    reachable = set(range(1, 41)) | {2 * value for value in range(20, 40)}
    assert found.num_states == len(reachable)


def test_a_violation_comes_with_a_shortest_path() -> None:
    found = explore(Counter(forbidden=12))
    assert found.violation is not None
    assert found.violation.path == ("up", "up", "double", "double")
    assert "12 is forbidden" in found.violation.problem


def test_a_loop_of_calm_moves_is_a_violation() -> None:
    found = explore(Counter(restless=True))
    assert found.violation is not None
    assert "never come to rest" in found.violation.problem


def test_limits_are_kept_and_said() -> None:
    found = explore(Counter(), max_states=5)
    assert not found.complete
    found = explore(Counter(value=1), max_depth=2)
    assert not found.complete
    # Two moves in all ways reach 1, 2, 3, 4; from these the calm walk goes on to ten.
    assert found.num_states == 10


def test_beyond_the_depth_limit_calm_walks_still_find_what_is_forbidden() -> None:
    found = explore(Counter(forbidden=9), max_depth=1)
    assert found.violation is not None
    assert found.violation.path == ("up", *["up"] * 7)


def test_several_starts_are_explored_together_and_watched() -> None:
    seen: list[tuple[int, str]] = []

    def watch(before: Counter, move: str, after: Counter, path: object) -> None:
        seen.append((before.value, move))

    found = explore([Counter(38), Counter(39)], watch=watch)
    assert found.num_states == 5
    assert set(seen) == {(38, "up"), (38, "double"), (39, "up"), (39, "double")}


def test_the_path_to_a_transition_is_told_on_demand() -> None:
    collected: list[tuple[str, ...]] = []
    explore(Counter(), max_states=4, watch=lambda before, move, after, path: collected.append(path()))
    assert collected[0] == ()
    assert ("up",) in collected
