"""Requests through a real engine: two processes over ipc, the worker scripted."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dsparkd import AsyncClient, Refused
from dsparkd.scheduler.trace.scripted import ScriptedModel
from dsparkd.scheduler.wire import messages as wire

Serve = Callable[..., Any]
PROMPT = [3, 1, 4, 1, 5]


def reference(prompt: list[int], length: int) -> list[int]:
    """What any lawful engine answers, greedily."""
    return ScriptedModel(num_slots=1, max_model_len=4096).continuation(prompt, length)


def first_unique(tokens: list[int], index: int) -> bool:
    return tokens.index(tokens[index]) == index


def test_a_request_is_answered_with_the_targets_own_tokens(serve: Serve) -> None:
    client = serve().client()
    result = client.generate(PROMPT, max_tokens=50, passes=True, seed=9)
    assert result.token_ids == reference(PROMPT, 50)
    assert (result.state, result.finish_reason, result.prompt_len, result.seed) == ("FINISHED", "length", 5, 9)
    assert result.error is None
    emitted = [token for verify in result.passes for token in verify.emitted_token_ids]
    assert emitted == result.token_ids[1:], "all but the token that the prompt's last chunk sampled"
    assert sum(verify.accepted_len for verify in result.passes) == result.counts.num_accepted
    assert result.transitions["QUEUED>SEED_READY"] == 1


def test_a_stream_is_accepted_then_tokens_in_order_then_one_end(serve: Serve) -> None:
    client = serve().client()
    messages = list(client.submit(PROMPT, max_tokens=30))
    assert [type(one) for one in (messages[0], messages[-1])] == [wire.Accepted, wire.Finished]
    tokens = messages[1:-1]
    assert [one.index for one in tokens] == [sum(len(t.token_ids) for t in tokens[:i]) for i in range(len(tokens))]
    assert sum(isinstance(one, wire.Finished) for one in messages) == 1


def test_l003_cancelling_one_id_ends_no_id_that_begins_with_it(serve: Serve) -> None:
    client = serve(target="scripted:mean=1.5,step_us=2000").client()
    names = ["a", "a1", "a10", "aa"]
    streams = {
        name: client.submit([*PROMPT, index], request_id=name, max_tokens=120) for index, name in enumerate(names)
    }
    for stream in streams.values():
        assert isinstance(next(stream), wire.Accepted)
        assert isinstance(next(stream), wire.Tokens)
    assert client.cancel("a1")
    results = {name: [*stream] for name, stream in streams.items()}
    assert results["a1"][-1].state == "CANCELLED"
    for index, name in enumerate(names):
        if name != "a1":
            assert results[name][-1].state == "FINISHED"
            told = [token for one in results[name][:-1] for token in one.token_ids]
            assert told == reference([*PROMPT, index], 120)[1:]


def test_l005_the_second_of_two_live_requests_with_one_id_is_refused_and_the_first_goes_on(serve: Serve) -> None:
    client = serve(target="scripted:mean=2,step_us=1000").client()
    first = client.submit(PROMPT, request_id="x", max_tokens=60)
    second = client.submit([9, 9], request_id="x", max_tokens=60)
    with pytest.raises(Refused) as caught:
        next(second)
    assert caught.value.code == "DUPLICATE_ID"
    assert first.result().token_ids == reference(PROMPT, 60)
    assert client.generate([9, 9], request_id="x", max_tokens=5).token_ids == reference([9, 9], 5), (
        "the id is free again"
    )
    assert min(_numbers(client.stats())) >= 0


def _numbers(values: Any) -> list[float]:
    if isinstance(values, dict):
        return [number for value in values.values() for number in _numbers(value)] or [0]
    if isinstance(values, list):
        return [number for value in values for number in _numbers(value)] or [0]
    return [values] if isinstance(values, int | float) else [0]


@pytest.mark.parametrize("ready", [True, False], ids=["after-ready", "before-ready"])
def test_l007_a_full_queue_is_told_to_the_client_that_asked(serve: Serve, ready: bool, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    if ready:
        gate.touch()
    engine = serve(target=f"scripted:gate={gate}", num_slots=1, max_queue=1)
    clients = [engine.client(ready=ready) for _ in range(2)]
    streams = [[client.submit([1, 2, owner], request_id=f"{owner}-{n}", max_tokens=20) for n in range(12)]
               for owner, client in enumerate(clients)]  # fmt: skip
    gate.touch()
    outcomes = []
    for owner, mine in enumerate(streams):
        for n, stream in enumerate(mine):
            try:
                result = stream.result()
                assert result.request_id == f"{owner}-{n}"
                assert result.token_ids == reference([1, 2, owner], 20)
                outcomes.append(result.state)
            except Refused as refused:
                assert f"{owner}-{n}" in str(refused)
                outcomes.append(refused.code)
    assert len(outcomes) == 24
    assert set(outcomes) <= {"FINISHED", "QUEUE_FULL"}
    assert "FINISHED" in outcomes
    assert "QUEUE_FULL" in outcomes


def test_l024_a_request_without_drafting_verifies_no_made_up_draft(serve: Serve) -> None:
    client = serve(target="scripted:mean=8").client()
    result = client.generate(PROMPT, max_tokens=20, max_draft_len=0, passes=True)
    assert result.token_ids == reference(PROMPT, 20)
    assert {verify.draft_len for verify in result.passes} == {0}
    counts = result.counts
    assert (counts.num_passes, counts.num_zero_passes, counts.num_drafted, counts.num_verified) == (19, 19, 0, 0)


def test_l052_whichever_of_stop_and_limit_comes_first_in_a_block_ends_the_output(serve: Serve) -> None:
    tokens = reference(PROMPT, 8)
    assert first_unique(tokens, 3), "the prompt was chosen so"
    client = serve(target="scripted:mean=8").client()
    stopped = client.generate(PROMPT, max_tokens=6, stop_token_ids=[tokens[3]])
    assert (stopped.token_ids, stopped.finish_reason) == (tokens[:4], "stop")
    limited = client.generate(PROMPT, max_tokens=3, stop_token_ids=[tokens[3]])
    assert (limited.token_ids, limited.finish_reason) == (tokens[:3], "length")
    both = client.generate(PROMPT, max_tokens=4, stop_token_ids=[tokens[3]])
    assert (both.token_ids, both.finish_reason) == (tokens[:4], "stop")


def test_l054_the_output_ends_at_eos_wherever_it_stands_in_a_block(serve: Serve) -> None:
    tokens = reference(PROMPT, 20)
    client = serve(target="scripted:mean=8").client()
    for index in range(12):
        end = tokens.index(tokens[index]) + 1
        result = client.generate(PROMPT, max_tokens=20, stop_token_ids=[tokens[index]])
        assert (result.token_ids, result.finish_reason) == (tokens[:end], "stop")


def test_l054_the_checkpoints_eos_stops_unless_it_is_ignored(serve: Serve) -> None:
    tokens = reference(PROMPT, 20)
    client = serve(target=f"scripted:mean=8,stop={tokens[5]}").client()
    end = tokens.index(tokens[5]) + 1
    assert client.generate(PROMPT, max_tokens=20).token_ids == tokens[:end]
    assert client.generate(PROMPT, max_tokens=20, ignore_eos=True).token_ids == tokens


def test_a_request_that_came_before_the_worker_was_ready_knows_its_eos_and_its_vocabulary(
    serve: Serve, tmp_path: Any
) -> None:
    tokens = reference(PROMPT, 20)
    gate = tmp_path / "gate"
    client = serve(target=f"scripted:mean=8,stop={tokens[5]},gate={gate}").client(ready=False)
    good, bad = (client.submit([*prompt], max_tokens=20) for prompt in (PROMPT, [1000]))
    assert client.health().worker in ("SPAWNED", "LOADING")
    gate.touch()
    assert good.result().token_ids == tokens[: tokens.index(tokens[5]) + 1]
    with pytest.raises(Refused) as caught:
        bad.result()
    assert caught.value.code == "BAD_TOKEN"


def test_l056_an_eos_that_only_the_drafter_proposes_ends_nothing(serve: Serve) -> None:
    tokens = reference(PROMPT, 40)
    stop = next(token for token in range(1000) if token not in tokens)
    client = serve(target=f"scripted:stop={stop},draft_stop=1").client()
    result = client.generate(PROMPT, max_tokens=40)
    assert (result.token_ids, result.finish_reason) == (tokens, "length")
    assert result.counts.num_accepted == 0
    assert result.counts.num_verified > 0


def test_cancels_at_any_moment_end_their_own_request_once_and_disturb_no_other(serve: Serve, eventually: Any) -> None:
    """Cancels come from other threads while steps of 1 ms fly; a drawn half of the requests is cancelled."""
    client = serve(target="scripted:mean=2.5,step_us=500", num_slots=4).client()
    chance = random.Random(7)
    plans = [(n, chance.randrange(30) if n % 2 else None) for n in range(40)]

    def one(plan: tuple[int, int | None]) -> None:
        number, cancel_after = plan
        stream = client.submit([number, 1], request_id=f"r{number}", max_tokens=60)
        tokens: list[int] = []
        ends = 0
        for message in stream:
            if isinstance(message, wire.Tokens):
                tokens += message.token_ids
            if cancel_after is not None and len(tokens) >= cancel_after:
                threading.Thread(target=stream.cancel).start()
                cancel_after = None
            ends += isinstance(message, wire.Finished)
        assert ends == 1
        assert tokens == reference([number, 1], 60)[: len(tokens)]
        assert message.state == "CANCELLED" or len(tokens) == 60
        assert message.output_len == len(tokens)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, plans))
    assert sum(client.stats()["ended"].values()) == 40
    eventually(lambda: client.stats()["slots"] == {"FREE": 4})  # the last step may be in flight


def test_leaving_a_stream_cancels_its_request(serve: Serve, eventually: Any) -> None:
    client = serve(target="scripted:mean=1,step_us=2000", max_model_len=4096).client()
    with client.submit(PROMPT, max_tokens=4000) as stream:
        next(stream)
    for message in client.submit(PROMPT, max_tokens=4000):
        assert isinstance(message, wire.Accepted)
        break
    eventually(lambda: client.stats()["ended"].get("CANCELLED") == 2)


def test_a_live_request_can_be_streamed_again_from_any_index(serve: Serve) -> None:
    client = serve(target="scripted:mean=1.5,step_us=1000").client()
    stream = client.submit(PROMPT, request_id="x", max_tokens=100)
    while not (isinstance(message := next(stream), wire.Tokens) and message.index >= 10):
        pass
    resumed = client.resume("x", from_index=4)
    tokens = {}
    for message in resumed:
        if isinstance(message, wire.Tokens):
            tokens.update(enumerate(message.token_ids, message.index))
    assert [tokens[index] for index in range(4, 100)] == reference(PROMPT, 100)[4:]
    with pytest.raises(Refused) as caught:
        next(client.resume("nobody"))
    assert caught.value.code == "UNKNOWN_ID"


@pytest.mark.parametrize(
    ("prompt", "options", "code"),
    [
        ([], {}, "EMPTY_PROMPT"),
        ("words", {}, "TEXT_UNAVAILABLE"),
        ([1000], {}, "BAD_TOKEN"),
        ([1], {"temprature": 1}, "UNSUPPORTED_OPTION"),
        ([1], {"top_p": 0}, "BAD_OPTION"),
        ([1], {"seed": 2**70}, "BAD_OPTION"),
        ([1], {"label": object()}, "BAD_OPTION"),
        ([1] * 512, {}, "PROMPT_TOO_LONG"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_refusal_names_its_code_the_address_and_the_id(serve: Serve, prompt: Any, options: Any, code: str) -> None:
    client = serve().client(ready=False)
    with pytest.raises(Refused) as caught:
        client.generate(prompt, request_id="mine", **options)
    assert caught.value.code == code
    assert client.address in str(caught.value)
    assert "mine" in str(caught.value)


def test_the_async_client_streams_cancels_and_asks_like_the_other(serve: Serve) -> None:
    engine = serve(target="scripted:mean=2,step_us=1000")

    async def talk() -> None:
        async with AsyncClient(engine.address, timeout_s=60) as client:
            await client.wait_ready()
            results = await asyncio.gather(*(client.generate([n, 2], max_tokens=20) for n in range(10)))
            assert [result.token_ids for result in results] == [reference([n, 2], 20) for n in range(10)]
            stream = await client.submit(PROMPT, request_id="x", max_tokens=400)
            await anext(stream)
            assert await client.cancel("x")
            assert not await client.cancel("never")
            assert (await stream.result()).state == "CANCELLED"
            async with await client.submit(PROMPT, request_id="y", max_tokens=400) as left:
                await anext(left)
            while (await client.stats())["ended"].get("CANCELLED") != 2:
                await asyncio.sleep(0)
            with pytest.raises(Refused):
                await client.generate([], max_tokens=3)
            assert (await client.health()).ok

    asyncio.run(talk())
