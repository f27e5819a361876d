"""A ring shorter than the context: drafts are those of the readable twin that sees the last positions alone."""

from itertools import repeat

import pytest
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from dsparkd.worker.backend import TorchBackend
from window_support import MAX_MODEL_LEN, House, house, prompt_of
from worker_support import GOLDEN, seed

PAIRS = {"vanilla": 4, "block7": 7}  # names and their blocks


def run_to_the_end(one: House, slots: tuple[int, ...] = (0, 1, 2)) -> int:
    """Verify and draft until every window is full, each draft held against the twin. Returns the drafts checked."""
    checked = 0
    while rows := [one.decode(slot) for slot in slots if len(one.contents[slot]) < MAX_MODEL_LEN]:
        for row in rows:
            one.check_draft(row.slot)
            checked += bool(one.driver.window(row.slot).held)
        one.step(*rows)
    one.check()
    return checked


@pytest.mark.parametrize(
    ("name", "extra"), [("vanilla", 1), ("vanilla", 2), ("vanilla", 20), ("block7", 1), ("block7", 3), ("block7", 9)]
)
def test_a_ring_of_any_length_drafts_what_the_twin_drafts_through_several_wrap_arounds(name: str, extra: int) -> None:
    """Prompts of one token, of the window, of one more (where the ring first forgets), and chunks longer than it."""
    window = PAIRS[name] + extra
    one = house(name, drafter_window=window)
    ring = one.windows.shape.ring_len
    text = prompt_of(name, MAX_MODEL_LEN - 12)
    lengths = sorted({1, window, window + 1, ring - 1, ring, 2 * ring + 1} & set(range(1, MAX_MODEL_LEN - 12)))
    checked = 0
    for first in range(0, len(lengths), 3):
        slots = tuple(range(len(lengths[first : first + 3])))
        for slot in slots:
            one.begin(slot, text[: lengths[first + slot]])
            one.seed_all(slot)
        checked += run_to_the_end(one, slots)
    assert checked > 30


@pytest.mark.parametrize("width", [1, 3, 12, 40])
def test_chunks_shorter_and_longer_than_the_ring_leave_it_the_same(width: int) -> None:
    one = house("vanilla", drafter_window=7)  # 12 rows in all
    text = prompt_of("vanilla", 41)
    one.begin(0, text)
    one.seed_all(0, repeat(width))
    one.check()
    one.check_draft(0)


def test_accepted_runs_cross_the_edge_of_the_ring() -> None:
    """The shipped pair accepts whole blocks, so runs begin before the ring's last row and end after its first."""
    one = house("shipped", drafter_window=9, num_slots=1)
    ring = one.windows.shape.ring_len
    one.begin(0, list(range(10, 30)))
    one.seed_all(0)
    while len(one.contents[0]) < MAX_MODEL_LEN:
        one.check_draft(0)
        one.step(one.decode(0))
    crossing = [
        start for start, accepted in one.passes[0] if accepted > 0 and start // ring < (start + accepted) // ring
    ]
    assert crossing, f"no accepted run crossed position {ring}, {2 * ring} or {3 * ring}: {one.passes[0]}"


def test_a_window_of_the_block_is_refused_and_one_more_is_served() -> None:
    made = TorchBackend()
    folders = (str(GOLDEN / "vanilla" / "target"), str(GOLDEN / "vanilla" / "draft"))
    made.load(wire.Init(1, *folders, 1, 64, 64, drafter_window=4))
    with pytest.raises(Refused, match=r"drafter_window = 4: expected 5 \(block \+ 1\) or more"):
        made.warm()
    assert house("vanilla", drafter_window=5).windows.shape.drafter_window == 5


@pytest.mark.parametrize(("drafter_window", "expected"), [(None, 64), (9, 9), (64, 64), (100, 64)])
def test_ready_says_how_many_positions_the_drafter_sees(drafter_window: int | None, expected: int) -> None:
    folders = (str(GOLDEN / "vanilla" / "target"), str(GOLDEN / "vanilla" / "draft"))
    made = TorchBackend()
    made.load(wire.Init(1, *folders, 1, 64, 64, drafter_window=drafter_window))
    assert made.warm().drafter_window == expected
    plain = TorchBackend()
    plain.load(wire.Init(1, folders[0], None, 1, 64, 64))
    assert plain.warm().drafter_window == 0


def test_a_chunk_that_fails_after_it_overwrote_the_ring_gives_up_what_it_overwrote() -> None:
    """Rows beyond the spare ones cannot wait for the commit: what they replace is no longer offered to anybody."""
    one = house("vanilla", drafter_window=6)
    text = prompt_of("vanilla", 40)
    one.begin(0, text)
    one.step(one.chunk(0, 15))
    assert not one.step(one.chunk(0, 20), fault="context done")
    one.check()
    window = one.windows.table[0]
    assert (window.length, one.windows.first_context(window)) == (15, 15)
    assert one.usable(0, 15) == 9  # whoever keeps all 15 positions seeds the last window again
    one.seed_all(0)
    one.check()
    one.check_draft(0)


def test_a_draft_that_would_read_below_the_context_that_is_there_is_a_typed_fault() -> None:
    one = house("vanilla", drafter_window=6)
    text = prompt_of("vanilla", 40)
    one.begin(0, text)
    one.seed_all(0)
    # An Open that forgets the rule of lost rows: 20 positions kept, their context long gone from the ring.
    opens = wire.Open(20, 0, one.epochs[0])
    rows = [seed(1, 10**6, text[20 : 20 + more], start_pos=20, propose_len=4, opens=opens) for more in (1, 5)]
    for row in rows:
        answer = one.driver.one(row)
        assert isinstance(answer, wire.RowFault)
        assert answer.code == "CONTEXT"
        assert "reads context from" in answer.message
    assert one.windows.table[1].epoch is None
    one.check()
    answer = one.driver.one(seed(1, 10**6, text[20:26], start_pos=20, propose_len=4, opens=opens))
    assert isinstance(answer, wire.Emitted)
    assert answer.held_len == 4
