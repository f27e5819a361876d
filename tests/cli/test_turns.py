"""The arithmetic of a measured turn: percentiles, sums over sums, and the steady window."""

import asyncio
import statistics
from typing import Any

import pytest
from dsparkd import AsyncClient, local
from dsparkd.scheduler.cli.turns import Tally, percentile, run_turn
from dsparkd.statemachine.errors import EngineError
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


@given(values=VALUES, hundredths=st.integers(0, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float], hundredths: int) -> None:
    found = percentile(values, hundredths / 100)
    assert found in values
    enough = [one for one in values if 100 * sum(other <= one for other in values) >= hundredths * len(values)]
    assert found == min(enough)


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None


@given(turns=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), VALUES), min_size=1, max_size=5))
def test_figures_of_several_turns_are_sums_over_sums(turns: list[tuple[int, int, list[float]]]) -> None:
    whole = Tally()
    for tokens, seconds, rates in turns:
        whole.add(Tally(seconds, tokens, tokens / 1e3, 2, tokens, rates, rates, rates))
    tokens, every = sum(one for one, _, _ in turns), [rate for *_, rates in turns for rate in rates]
    assert whole.tokens_per_s == tokens / sum(seconds for _, seconds, _ in turns)
    assert whole.acceptance_length == tokens / (2 * len(turns))
    assert whole.cpu_us_per_token == pytest.approx(1000 if tokens else 0)
    assert whole.tokens_per_s_per_user == pytest.approx(statistics.mean(every))
    assert whole.gaps_s == whole.first_token_s == every


def test_a_tally_of_nothing_divides_by_nothing() -> None:
    none = Tally()
    figures = (none.tokens_per_s, none.tokens_per_s_per_user, none.cpu_us_per_token, none.acceptance_length)
    assert figures == (0, 0, 0, None)


@pytest.mark.parametrize("num_users, num_prompts", [(1, 4), (3, 12)])
def test_the_clock_runs_in_the_steady_state_only(num_users: int, num_prompts: int) -> None:
    """Requests that are asked together end together here, so what counts is known: the rounds between the first that
    ended and the last prompt, which nobody asks."""

    async def turn(client_at: str) -> tuple[Tally, dict[str, Any]]:
        async with AsyncClient(client_at) as client:
            options = [{"max_tokens": 9, "ignore_eos": True}] * num_prompts
            made = await run_turn(client, [[1, 2, 3]] * num_prompts, options, num_users=num_users)
            return made, await client.stats()

    with local(target="scripted:mean=4", drafter="scripted", num_slots=num_users) as client:
        seen, stats = asyncio.run(turn(client.address))
    assert 0 < seen.num_tokens <= stats["tokens_emitted"] - 9 * num_users
    assert 1 <= len(seen.user_rates) <= num_prompts - num_users
    assert len(seen.first_token_s) + len(seen.gaps_s) >= 9 * len(seen.user_rates) - 9 * num_users
    if num_users == 1:  # requests lie whole in the window or outside, so rates and gaps speak of the same time
        assert sum(8 / rate for rate in seen.user_rates) == pytest.approx(sum(seen.gaps_s))
    assert len(seen.first_token_s) <= num_prompts - num_users
    assert stats["requests"] == {}, "what was unfinished is cancelled"
    assert seen.wall_s > 0
    assert 1 < (seen.acceptance_length or 0) <= 4


def test_a_request_that_fails_is_an_error_and_no_figure() -> None:
    async def turn(client_at: str) -> None:
        async with AsyncClient(client_at) as client:
            options = [{"max_tokens": 50, "ignore_eos": True, "deadline_ms": 10}] * 4
            await run_turn(client, [[1, 2, 3]] * 4, options, num_users=1)

    with local(target="scripted:step_us=5000") as client, pytest.raises(EngineError, match="DEADLINE"):
        asyncio.run(turn(client.address))


def test_too_few_prompts_for_a_steady_state_are_refused() -> None:
    with pytest.raises(ValueError, match="6 prompts for 3 users: expected more than 6"):
        asyncio.run(run_turn(AsyncClient("ipc:///nowhere"), ["p"] * 6, [{}] * 6, num_users=3))
