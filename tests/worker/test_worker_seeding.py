"""Seeding: any chunking leaves the same rows, the same proposals and the same acceptance."""

from collections.abc import Iterator

import pytest
from dsparkd.scheduler.wire import messages as wire
from hypothesis import given, settings
from hypothesis import strategies as st
from window_support import House, house
from worker_support import samples

BLOCK_LEN = 4
PROMPT = samples("vanilla")[1]["prompt_ids"]


@pytest.fixture(scope="module")
def one() -> House:
    return house("vanilla")


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, len(PROMPT)), data=st.data())
def test_any_chunking_leaves_the_rows_and_the_draft_of_the_whole_prompt(
    one: House, length: int, data: st.DataObject
) -> None:
    """Rows within 2e-5 (a chunk and a token go through kernels of other shapes), tokens and drafts to the token."""
    one.begin(0, PROMPT[:length])
    widths: Iterator[int] = iter(lambda: data.draw(st.integers(1, length), label="width"), 0)
    one.seed_all(0, widths)
    one.begin(1, PROMPT[:length])
    one.seed_all(1)
    one.check()
    one.check_draft(0)
    mine, whole = one.driver.window(0), one.driver.window(1)
    assert (mine.anchor, mine.held) == (whole.anchor, whole.held)


@pytest.mark.parametrize("length", [BLOCK_LEN, BLOCK_LEN + 1, BLOCK_LEN + 2, BLOCK_LEN + 5])
def test_a_prompt_as_long_as_a_verify_pass_is_a_prompt(one: House, length: int) -> None:
    """Its width is that of a pass; what it is was said. All of it is kept and one token comes out."""
    prompt = PROMPT[:length]
    one.begin(0, prompt)
    one.begin(1, PROMPT[:9])
    one.seed_all(1)
    one.step(one.chunk(0, length), one.decode(1, BLOCK_LEN))  # beside a pass of as many tokens
    assert one.contents[0] == prompt
    assert one.tenants[0].anchor is not None
    assert len(one.driver.window(0).held) == BLOCK_LEN
    one.check()
    one.check_draft(0)


def test_l048_every_chunk_and_not_the_last_alone_leaves_its_context(one: House) -> None:
    """Five chunks and one token against a single chunk: all rows are there, and acceptance is the same."""
    prompt = PROMPT[:26]
    one.begin(0, prompt)
    one.seed_all(0, iter([5, 5, 5, 5, 5, 1]))
    one.begin(1, prompt)
    one.seed_all(1)
    assert one.driver.window(0).context_len == one.driver.window(1).context_len == len(prompt)
    for _ in range(6):
        one.step(one.decode(0), one.decode(1))
    assert one.passes[0] == one.passes[1]
    assert one.text(0) == one.text(1)
    one.check()


@pytest.mark.parametrize("widths", [[1] * 30, [29, 1], [15, 15], [7, 7, 7, 7, 2]])
def test_acceptance_does_not_depend_on_the_chunking_on_the_shipped_pair(widths: list[int]) -> None:
    one = house("shipped", num_slots=2)
    prompt = list(range(10, 40))
    one.begin(0, prompt)
    one.seed_all(0, iter(widths))
    one.begin(1, prompt)
    one.seed_all(1)
    for _ in range(4):
        one.step(one.decode(0), one.decode(1))
    assert one.passes[0] == one.passes[1]
    assert sum(accepted for _, accepted in one.passes[0]) > 0
    assert one.text(0) == one.text(1)


def test_a_chunk_that_is_not_the_last_emits_nothing_and_leaves_no_anchor(one: House) -> None:
    one.begin(0, PROMPT[:9])
    assert isinstance(one.driver.one(one.chunk(0, BLOCK_LEN + 1)), wire.Seeded)
    assert one.driver.window(0).anchor is None
    assert one.driver.window(0).held == []
    one.windows.scrub(0)  # the house was not told of this step
    one.contents.pop(0, None)
