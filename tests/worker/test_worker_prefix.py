"""A tenancy that opens on content that is there goes on as if it had been seeded from nothing: rows, tokens, drafts."""

from typing import Any

import pytest
from dsparkd.scheduler.wire import messages as wire
from window_support import MAX_MODEL_LEN, House, house, prompt_of
from worker_support import samples, seed

NAMES = ("vanilla", "block7", "rnn")
WINDOWS = (None, 9, 20)


def first_tenant(name: str, *, window: int | None = None, length: int = 24, steps: int = 3) -> House:
    """Slot 0 in mid-life: a prompt and a few passes."""
    one = house(name, drafter_window=window)
    one.begin(0, prompt_of(name, length))
    one.seed_all(0)
    for _ in range(steps):
        one.step(one.decode(0))
    return one


def cold_beside(one: House, slot: int, cold: int) -> None:
    """Seed the text of `slot` from nothing in `cold`; both must then say, draft and accept the same to the end."""
    prompt = one.text(slot)[: len(one.contents[slot])]
    one.begin(cold, prompt)
    one.seed_all(cold)
    assert one.text(cold) == one.text(slot)
    one.passes[slot] = []
    while len(one.contents[slot]) < MAX_MODEL_LEN - 1:
        one.check_draft(slot)
        assert one.driver.window(slot).held == one.driver.window(cold).held
        one.step(one.decode(slot), one.decode(cold))
    assert one.text(slot) == one.text(cold)
    assert one.passes[slot] == one.passes[cold]
    one.check()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_l042_taken_over_in_place_a_hit_proposes_what_a_cold_run_proposes(name: str, window: int | None) -> None:
    one = first_tenant(name, window=window)
    prompt = [*one.contents[0][:20], 7, 80, 9]
    kept = one.begin(0, prompt, source=0, keep_len=20)
    # A ring has lost rows that a draft after these 20 positions reads: its last window is seeded again.
    assert kept == {None: 20, 9: 11, 20: 0}[window]
    one.seed_all(0)
    one.check()
    cold_beside(one, 0, 1)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_l042_copied_from_a_slot_that_decodes_in_the_same_step(name: str, window: int | None) -> None:
    one = first_tenant(name, window=window)
    twin = first_tenant(name, window=window)
    keep_len = len(one.contents[0])
    kept = one.begin(2, [*one.contents[0], 11, 90], source=0, keep_len=keep_len)
    assert kept == keep_len  # all that the source holds, nothing of it lost
    one.step(one.decode(0), one.chunk(2, 99))  # the source moves on, and is no other for it
    twin.step(twin.decode(0))
    assert one.text(0) == twin.text(0)
    assert one.driver.window(0).held == twin.driver.window(0).held
    one.check()
    cold_beside(one, 2, 1)


@pytest.mark.parametrize("beyond", [0, 2, 4])
@pytest.mark.parametrize("in_place", [True, False])
def test_features_that_wait_come_along_below_what_is_kept(in_place: bool, beyond: int) -> None:
    """Some positions of the source are committed and not projected yet: they are kept as features, cut like rows."""
    one = first_tenant("vanilla")
    for _ in range(5):
        one.step(one.decode(0, propose_len=0))
    source = one.driver.window(0)
    assert source.pending_len >= 5
    keep_len = source.context_len + beyond
    slot = 0 if in_place else 1
    one.begin(slot, [*one.contents[0][:keep_len], 3, 4], source=0, keep_len=keep_len)
    assert one.chunk(slot, 99).start_pos == keep_len
    one.seed_all(slot)
    assert one.driver.window(slot).pending_len == 0
    one.check()
    cold_beside(one, slot, 2)


def test_two_copies_may_cross_and_a_source_may_be_opened_in_the_same_step() -> None:
    """Content is what it was before the step, whoever else opens in it."""
    one = house("vanilla")
    texts = {0: prompt_of("vanilla", 20), 1: prompt_of("rnn", 17)}
    for slot, text in texts.items():
        one.begin(slot, text)
        one.seed_all(slot)
    one.begin(0, [*texts[1], 5], source=1, keep_len=17)
    one.begin(1, [*texts[0], 6], source=0, keep_len=20)
    one.begin(2, [*texts[0][:9], 8], source=0, keep_len=9)
    one.step(*[one.chunk(slot, 99) for slot in range(3)])
    one.check()
    for slot in range(3):
        one.check_draft(slot)


def test_a_failed_open_leaves_the_slot_empty_or_what_was_kept_in_place_and_the_source_as_it_was() -> None:
    for fault in ("target entry", "target done", "context entry", "context done"):
        one = first_tenant("vanilla")
        content, epoch = list(one.contents[0]), one.epochs[0]
        one.begin(1, [*content[:15], 5, 6], source=0, keep_len=15)
        one.begin(2, [1, 2, 3])
        assert not one.step(one.chunk(1, 99), one.chunk(2, 99), fault=fault)
        assert [one.windows.table[slot].epoch for slot in range(3)] == [epoch, None, None]
        one.check()
        one.begin(0, [*content[:15], 5, 6], source=0, keep_len=15)
        assert not one.step(one.chunk(0, 99), fault=fault)
        assert (one.windows.table[0].epoch, one.windows.table[0].length) == (epoch, 15)
        assert one.driver.one(wire.Decode(0, epoch, 0, 0)).code == "POSITION"  # nobody decodes there any more
        one.check()
        one.step(one.chunk(1, 99), one.chunk(0, 99))  # the same rows once more
        one.check()
        assert one.text(0) == one.text(1)


REFUSED: dict[str, tuple[Any, int, str]] = {
    "content of no slot": (wire.Open(3), 3, "keep_len 3 of no slot"),
    "an epoch of no slot": (wire.Open(0, None, 1), 0, "of no slot"),
    "another epoch": (wire.Open(3, 0, 999), 3, "source_epoch 999: expected "),
    "an empty slot": (wire.Open(3, 1, 1), 3, "expected None"),
    "an empty slot by no epoch": (wire.Open(3, 1), 3, "expected None"),
    "more than the slot holds": (wire.Open(60, 0, -1), 60, "keep_len 60: expected 1.."),
    "nothing of a slot": (wire.Open(0, 0, -1), 0, "keep_len 0: expected 1.."),
    "the scratch slot": (wire.Open(3, 3, None), 3, "source_slot 3: expected 0..2"),
    "a slot before the first": (wire.Open(3, -1, None), 3, "source_slot -1: expected 0..2"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_open_that_does_not_fit_is_a_typed_fault_and_moves_nothing(kind: str) -> None:
    opens, start_pos, words = REFUSED[kind]
    one = first_tenant("vanilla")
    if opens.source_epoch == -1:
        opens = wire.Open(opens.keep_len, opens.source_slot, one.epochs[0])
    answer = one.driver.one(seed(2, 10**6, [5], start_pos=start_pos, opens=opens))
    assert (answer.code, words in answer.message) == ("OPEN", True), answer
    answer = one.driver.one(seed(2, 10**6, [5], start_pos=4, opens=wire.Open(3, 0, one.epochs[0])))
    assert answer.code == "POSITION"  # the chunk must begin where the content ends
    one.check()


def test_a_finished_slot_keeps_its_content_until_another_tenancy_opens_there() -> None:
    one = first_tenant("vanilla")
    del one.tenants[0]
    for _ in range(3):
        one.begin(1, samples("vanilla")[1]["prompt_ids"])
        one.seed_all(1)
        one.step(one.decode(1))
        one.check()  # slot 0 too
    assert one.windows.table[0].epoch == one.epochs[0]


def test_l046_two_chats_that_take_turns_on_one_slot_are_served_like_chats_alone() -> None:
    """A long and a short conversation, twenty turns: each turn goes on from whatever of it the slot still holds."""
    one = house("vanilla", num_slots=1)
    alone = house("vanilla", num_slots=1)
    chats = {"long": prompt_of("vanilla", 16), "short": [*prompt_of("vanilla", 3), 9]}  # one system prompt
    hits = 0
    for turn in range(20):
        name = "long" if turn % 2 else "short"
        text = chats[name]
        content = one.contents.get(0, [])
        same = [mine == its for mine, its in zip(content, text, strict=False)]
        keep_len = min([*same, False].index(False), len(text) - 1)
        hits += keep_len > 0
        one.begin(0, text, source=0 if keep_len else None, keep_len=keep_len)
        alone.begin(0, text)
        for each in (one, alone):
            each.seed_all(0)
            each.step(each.decode(0))
        assert one.text(0) == alone.text(0)
        assert one.driver.window(0).held == alone.driver.window(0).held
        one.check()
        chats[name] = [*one.text(0)[:50], (turn * 13) % 250][: 16 if name == "short" else 55]
    assert hits == 19
