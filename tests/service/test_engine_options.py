"""Stops, log-probabilities, samples and priorities through a real engine over ipc, the worker scripted."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from dsparkd import AsyncClient, Client, Refused
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.trace.replay import checked
from dsparkd.scheduler.trace.scripted import ScriptedModel
from dsparkd.scheduler.trace.scripted_details import logprob_at
from dsparkd.scheduler.wire import messages as wire

Serve = Callable[..., Any]
PROMPT = [3, 1, 4, 1, 5]


def reference(prompt: list[int], length: int, **model: Any) -> list[int]:
    return ScriptedModel(num_slots=1, max_model_len=4096, **model).continuation(prompt, length)


class Letters:
    """A tokenizer of 26 letters; some tokens say another one behind theirs."""

    def encode(self, text: str) -> list[int]:
        return [ord(one) - 97 for one in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(97 + one % 26) + "x" * (one % 3 == 0) for one in token_ids)


@pytest.fixture
def lettered(tmp_path: Any) -> Iterator[Client]:
    """An engine in this process whose tokens are letters, and which writes a trace."""
    settings = Settings.from_mapping(
        {
            "target": "scripted:mean=8,vocab=26",
            "drafter": "scripted",
            "bind": f"ipc://{tmp_path}/engine",
            "trace": str(tmp_path / "day.dsptrace"),
        }
    )
    service = Service(settings, tokenizer=Letters())
    thread = threading.Thread(target=service.run)
    thread.start()
    client = Client(settings.bind, timeout_s=60)
    client.wait_ready()
    yield client
    client.close()
    service.stop_from_signal(2, None)
    thread.join(60)
    assert not thread.is_alive()
    assert checked(tmp_path / "day.dsptrace") > 5, "what the text said is in the trace: it replays without a tokenizer"


def test_a_stop_string_cuts_ids_text_and_counts_alike_and_no_message_holds_a_part_of_it(lettered: Client) -> None:
    tokens = reference(PROMPT, 40, vocab_size=26)
    whole = Letters().decode(tokens)
    for place in range(2, 20):
        stop = whole[place : place + 3]
        stream = lettered.submit(PROMPT, max_tokens=40, stop=[stop, "never"])
        messages = [one for one in stream if isinstance(one, wire.Tokens)]
        result = stream.result()
        before = whole[: whole.index(stop)]
        kept = max(count for count in range(41) if len(Letters().decode(tokens[:count])) <= len(before))
        assert (result.token_ids, result.text, result.finish_reason) == (tokens[:kept], before, "stop")
        assert before.startswith("".join(one.text or "" for one in messages))
        assert result.counts.num_emitted_drafting <= kept
    late = lettered.generate(PROMPT, max_tokens=40, stop=[whole[4:6]], min_tokens=10)
    assert len(late.token_ids) >= 10


def test_l074_log_probabilities_come_with_their_tokens_and_again_with_a_resumed_stream(serve: Serve) -> None:
    client = serve(target="scripted:mean=3.2,step_us=2000").client()
    expected = [logprob_at(len(PROMPT) + index) for index in range(60)]
    stream = client.submit(PROMPT, request_id="a", max_tokens=60, logprobs=True, top_logprobs=2)
    first = [next(stream) for _ in range(4)][-1]
    again = client.resume("a", from_index=1).result()
    assert isinstance(first, wire.Tokens)
    assert first.logprobs == expected[first.index : first.index + len(first.token_ids)]
    assert again.token_ids == reference(PROMPT, 60)[1:]
    assert again.logprobs == expected[1:]
    assert again.top_logprobs is not None
    assert [len(one or ()) for one in again.top_logprobs] == [2] * 59
    plain = client.generate(PROMPT, max_tokens=8)
    assert (plain.logprobs, plain.top_logprobs) == (None, None)


def test_nothing_ends_an_output_before_min_tokens_with_and_without_drafting(serve: Serve) -> None:
    tokens = reference(PROMPT, 40)
    client = serve(target=f"scripted:mean=8,stop={tokens[5]}").client()
    results = [client.generate(PROMPT, max_tokens=40, min_tokens=9, max_draft_len=most) for most in (None, 0)]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].token_ids[:5] == tokens[:5]
    assert tokens[5] not in results[0].token_ids[:9]


def test_samples_are_requests_of_one_seed_and_their_own_index(serve: Serve) -> None:
    client = serve().client()
    many = [one.result() for one in client.samples(PROMPT, n=3, request_id="s", temperature=0.9, max_tokens=9)]
    assert [one.request_id for one in many] == ["s/0", "s/1", "s/2"]
    assert len({one.seed for one in many}) == 1
    assert len({tuple(one.token_ids) for one in many}) == 3
    for index, one in enumerate(many):
        alone = client.generate(PROMPT, temperature=0.9, max_tokens=9, seed=many[0].seed, sample_index=index)
        assert alone.token_ids == one.token_ids
    for wrong in ({"n": 0}, {"n": True}, {"n": 2, "sample_index": 1}):
        with pytest.raises(Refused, match="expected") as caught:
            client.samples(PROMPT, **wrong)  # type: ignore[arg-type]
        assert caught.value.code == "BAD_OPTION"
    with pytest.raises(Refused, match=r"Client\.samples"):
        client.generate(PROMPT, n=3)

    async def twin() -> list[Any]:
        async with AsyncClient(client.address) as other:
            streams = await other.samples(PROMPT, n=3, seed=many[0].seed, temperature=0.9, max_tokens=9)
            return [(await one.result()).token_ids for one in streams]

    assert asyncio.run(twin()) == [one.token_ids for one in many]


def test_the_lower_priority_number_is_answered_first(serve: Serve, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    engine = serve(target=f"scripted:gate={gate}", num_slots=1)
    client = engine.client(ready=False)
    priorities = [0, 3, -2, 0, -2]
    streams = [
        client.submit([1, 2], request_id=f"p{number}", priority=priority, max_tokens=3)
        for number, priority in enumerate(priorities)
    ]
    assert client.health().worker in ("SPAWNED", "LOADING"), "all of them wait"
    gate.touch()
    for stream in streams:
        assert stream.result().token_ids == reference([1, 2], 3)
    ends = [line for line in engine.log().splitlines() if "output_len" in line]
    assert re.findall(r"\bp\d\b", "\n".join(ends)) == ["p2", "p4", "p0", "p3", "p1"]
