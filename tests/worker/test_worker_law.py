"""The law of windows: whatever happens in whatever order, every row that may be read is that of the slot's text.

Chunks, passes, zero-draft steps, cancelled tenants, reused slots, prefixes taken over and copied, faults in each phase:
after each step all readable rows are those of the same texts seeded from scratch, and every held draft is the readable
twin's. The worker watches itself meanwhile (paranoid mode).
"""

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from window_support import FAULTS, MAX_MODEL_LEN, House, house

MOST_PENDING = 6  # so that features are projected in bulk within an example, wider chunks at once


@attrs.frozen
class Move:
    """What one slot does in a step; numbers are taken modulo what is possible."""

    action: str
    first: int
    second: int
    propose: bool


MOVES = st.builds(
    Move,
    action=st.sampled_from(["go", "go", "go", "go", "rest", "cold", "in place", "copy", "leave"]),
    first=st.integers(0, 40),
    second=st.integers(0, 40),
    propose=st.booleans(),
)
STEPS = st.lists(
    st.tuples(st.tuples(MOVES, MOVES, MOVES), st.sampled_from([*FAULTS, *["none"] * 20])), min_size=1, max_size=14
)


def tail(move: Move) -> list[int]:
    """A few tokens to go on with, so that prompts differ."""
    return [(move.first * 7 + move.second * 3 + index * 11) % 250 for index in range(1 + move.first % 13)]


def begin(one: House, slot: int, move: Move) -> None:
    """A new tenant, cold or on content that is there."""
    sources = {"in place": [slot], "copy": [other for other in one.contents if other != slot]}.get(move.action, [])
    sources = [source for source in sources if one.contents.get(source)]
    # Who was not run yet has its Open still before it: its slot's content is about to go.
    sources = [source for source in sources if source not in one.tenants or one.tenants[source].opens is None]
    if not sources:
        one.begin(slot, tail(move))
        return
    source = sources[move.second % len(sources)]
    keep_len = min(1 + move.second % len(one.contents[source]), MAX_MODEL_LEN - 20)
    one.begin(slot, one.contents[source][:keep_len] + tail(move), source=source, keep_len=keep_len)


def row_of(one: House, slot: int, move: Move) -> Any:
    """The row that the slot's tenant runs, or None."""
    if move.action == "leave":
        one.tenants.pop(slot, None)
    if move.action in ("cold", "in place", "copy"):
        begin(one, slot, move)
    if move.action == "rest" or slot not in one.tenants:
        return None
    propose_len = one.block_len if move.propose else 0
    if one.tenants[slot].prompt:
        return one.chunk(slot, 1 + move.second % 17, propose_len=propose_len)
    if len(one.contents[slot]) >= MAX_MODEL_LEN:
        return None
    return one.decode(slot, move.first % (one.block_len + 1), propose_len)


def run(one: House, steps: list[Any]) -> None:
    for moves, fault in steps:
        rows: list[Any] = []
        for slot, move in enumerate(moves):
            # A source that goes on in this step is left in peace by those who copy from it: its Open comes first.
            row = row_of(one, slot, move)
            if row is not None:
                rows.append(row)
        if rows:
            note(f"{fault}: {rows}")
            one.step(*rows, fault=fault)
            one.check()
            for row in rows:
                if row.slot in one.tenants and one.tenants[row.slot].anchor is not None and row.slot in one.contents:
                    one.check_draft(row.slot)


@pytest.mark.parametrize(
    ("name", "init"),
    [
        ("vanilla", {}),
        ("vanilla", {"drafter_window": 5}),
        ("vanilla", {"drafter_window": 13}),
        ("block7", {"drafter_window": 8, "runner": "static"}),
    ],
    ids=["whole context", "shortest ring", "ring", "block7 on static buffers"],
)
def test_any_interleaving_leaves_the_rows_of_each_text_made_anew(name: str, init: dict[str, Any]) -> None:
    made = [house(name, **init)]
    compared = 0

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS)
    def law(steps: list[Any]) -> None:
        nonlocal compared
        one = made[-1] if getattr(made[-1].windows, "violation", None) is None else house(name, **init)
        assert one.windows.pending is not None
        one.windows.pending.limit = min(MOST_PENDING, one.windows.pending.length)
        for slot in range(3):
            one.windows.scrub(slot)
        made.append(House(name, one.driver))
        run(made[-1], steps)
        compared += made[-1].num_rows_compared

    with capture_logs():  # injected faults are logged at length
        law()
    assert compared > 300
