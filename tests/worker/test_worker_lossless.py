"""The core over the real worker: tokens depend on the request alone, and its drafts on its prefix alone."""

from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire import messages as wire
from worker_support import Driver, backend, bench, phases_of, samples, seed
from zero_draft_support import reference_draft

PROMPTS = [sample["prompt_ids"] for name in ("block7", "vanilla") for sample in samples(name)]
GREEDY = events.Params()


def sampled(number: int) -> events.Params:
    """Each prompt with filters of its own."""
    filters = ({}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_k": 50, "top_p": 0.95, "min_p": 0.01})
    return events.Params(temperature=0.8, seed=1000 + number, **filters[number % len(filters)])  # type: ignore[arg-type]


def run_all(engine: Bench, *, temperature: bool, length: int = 24, **options: Any) -> list[list[int]]:
    for number, prompt in enumerate(PROMPTS):
        params = sampled(number) if temperature else GREEDY
        engine.submit(number, prompt, max_tokens=length, params=params, **options)
    engine.run()
    return [engine.tokens[number] for number in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def plain() -> dict[bool, list[list[int]]]:
    """Every request alone, one slot, no drafter."""
    made = backend("block7", drafter=False, num_slots=1)
    return {temperature: run_all(bench("fixed:0", made=made), temperature=temperature) for temperature in (False, True)}


class Changing:
    """Another length at each step and row, zero included."""

    name, version, max_len = "changing", 1, None

    def __init__(self) -> None:
        self.calls = 0

    def decide(self, rows: Any, ledger: Any) -> list[int]:
        self.calls += 1
        return [(self.calls * 5 + index * 3) % 9 for index in range(len(rows))]


LENGTHS = [f"fixed:{length}" for length in range(8)]


@pytest.mark.parametrize("temperature", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("policy", "runner"),
    [*[(policy, "eager") for policy in (*LENGTHS, "changing")],
     *[(policy, "static") for policy in ("fixed:0", "fixed:1", "fixed:7", "changing")]],
)  # fmt: skip
def test_speculative_batched_chunked_equals_plain_alone(
    plain: dict[bool, list[list[int]]], policy: str, temperature: bool, runner: str
) -> None:
    made = backend("block7", num_slots=3, runner=runner)
    engine = bench(Changing() if policy == "changing" else policy, made=made, limits={"max_step_tokens": 40})
    assert run_all(engine, temperature=temperature) == plain[temperature]


@pytest.mark.parametrize("budget", [1, 5, 8, 9, 64])
def test_any_chunking_gives_the_same_tokens_and_the_same_drafts(budget: int) -> None:
    whole, chunked = Driver(backend("block7")), Driver(backend("block7"))
    for epoch, prompt in enumerate(PROMPTS, start=1):
        expected = whole.one(seed(0, epoch, prompt, propose_len=7))
        for start in range(0, len(prompt), budget):
            chunk = prompt[start : start + budget]
            last = start + budget >= len(prompt)
            row = chunked.one(
                seed(
                    0,
                    epoch,
                    chunk,
                    start_pos=start,
                    last=last,
                    propose_len=7 if last else 0,
                    opens=wire.Open() if start == 0 else None,
                )
            )
        assert row == expected
        assert chunked.window(0).held == whole.window(0).held


def test_l064_a_seed_decides_alone_and_in_a_crowd_and_seeds_differ() -> None:
    prompt = PROMPTS[0]
    alone: dict[int, list[int]] = {}
    for number in range(8):
        engine = bench(made=backend("block7", num_slots=1))
        engine.submit(0, prompt, max_tokens=20, params=events.Params(temperature=1.0, seed=number))
        engine.run()
        alone[number] = engine.tokens[0]
    crowd = bench(made=backend("block7", num_slots=8))
    for number in range(8):
        crowd.submit(number, prompt, max_tokens=20, params=events.Params(temperature=1.0, seed=number))
    crowd.run()
    assert crowd.tokens == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 8


def test_l066_greedy_and_sampled_rows_share_a_step_and_neither_notices() -> None:
    made = backend("block7", num_slots=4)
    engine = bench(made=made)
    for number in range(4):
        params = events.Params(temperature=float(number % 2), seed=number)
        engine.submit(number, PROMPTS[number], max_tokens=20, params=params)
    engine.run()
    for number in (0, 2):
        solo = bench(made=backend("block7", drafter=False, num_slots=1))
        solo.submit(0, PROMPTS[number], max_tokens=20)
        solo.run()
        assert engine.tokens[number] == solo.tokens[0]
    counts = [engine.ended[number][0].counts for number in range(4)]
    assert all(0 <= one.num_accepted <= one.num_verified for one in counts)


def test_l080_the_same_prompt_in_every_row_gets_the_same_drafts() -> None:
    for num_rows in (1, 2, 5, 8):
        driver = Driver(backend("block7", num_slots=8))
        driver.step(*[seed(slot, 1, PROMPTS[3], propose_len=7) for slot in range(num_rows)])
        for _ in range(4):
            assert len({tuple(driver.window(slot).held) for slot in range(num_rows)}) == 1
            driver.step(*[wire.Decode(slot, 1, 7, 7) for slot in range(num_rows)])


@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn", "dflash", "tied_embedding_tap", "block7"])
@pytest.mark.parametrize("num_zero", [1, 2, 40])
def test_after_zero_draft_steps_the_drafter_proposes_what_the_twin_proposes_from_scratch(
    name: str, num_zero: int
) -> None:
    driver = Driver(backend(name))
    size = phases_of(driver.backend).windows.shape.block_len
    prompt = samples(name)[1]["prompt_ids"]
    text = [*prompt, *driver.one(seed(2, 1, prompt, propose_len=size)).token_ids]
    text += driver.one(wire.Decode(2, 1, size, 0)).token_ids  # entering the phase still verifies what is held
    for _ in range(num_zero - 1):
        text += driver.one(wire.Decode(2, 1, 0, 0)).token_ids
    text += driver.one(wire.Decode(2, 1, 0, size)).token_ids
    assert driver.window(2).held == reference_draft(name, text).token_ids
