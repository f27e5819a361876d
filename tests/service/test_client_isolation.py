"""One call of a client never costs another one's stream: bad words, equal ids, streams that are left or resumed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsparkd import AsyncClient, Client, Refused
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.conversation import Conversation
from dsparkd.scheduler.wire.result import ResultBuilder

PROMPT = [1, 2, 3]
UNSAYABLE: dict[str, Callable[[Client], Any]] = {
    "a token id that is no integer": lambda client: client.submit([1.5]),  # type: ignore[list-item]
    "a token id that is a truth value": lambda client: client.submit([True]),
    "an id that is no text": lambda client: client.submit(PROMPT, request_id=5),  # type: ignore[arg-type]
    "an id without end": lambda client: client.submit(PROMPT, request_id="x" * 1000),
    "half a character": lambda client: client.submit("\ud800"),
    "an integer beyond 64 bits": lambda client: client.submit(PROMPT, max_tokens=2**70),
    "a cancel of half a character": lambda client: client.cancel("\ud800"),
    "a cancel of a number": lambda client: client.cancel(7),  # type: ignore[arg-type]
    "a resume beyond 64 bits": lambda client: client.resume("other", from_index=2**70),
    "a resume from a text": lambda client: client.resume("other", from_index="x"),  # type: ignore[arg-type]
}


HEARD = codec.encode(wire.Heard(request_id="name"))
CANCEL = codec.encode(wire.CancelRequest(request_id="name"))


class Sink(list[Any]):
    """A stream's queue that keeps what it was given."""

    put = list.append


def accepted(request_id: str) -> wire.Accepted:
    return wire.Accepted(request_id=request_id, prompt_len=1, seed=0)


@pytest.mark.parametrize("act", UNSAYABLE.values(), ids=UNSAYABLE.keys())
def test_what_cannot_be_said_is_refused_to_its_caller_alone(serve: Any, act: Callable[[Client], Any]) -> None:
    client = serve(target="scripted:mean=3.2,step_us=500").client()
    with client.submit(PROMPT, max_tokens=60, request_id="other") as stream:
        next(stream)
        with pytest.raises(Refused, match="cannot be sent"):
            act(client)
        result = stream.result()
    assert (result.state, len(result.token_ids)) == ("FINISHED", 60)


def test_a_stream_that_is_dropped_never_cancels_its_namesake(serve: Any) -> None:
    client = serve(target="scripted:mean=3.2,step_us=500").client()
    with client.submit(PROMPT, max_tokens=60, request_id="name") as stream:
        next(stream)
        client.submit(PROMPT, request_id="name").close()  # a duplicate, refused to nobody
        assert client.stats()["refused"] == {"DUPLICATE_ID": 1}
        assert stream.result().state == "FINISHED"
    first = client.submit(PROMPT, max_tokens=2, request_id="name")
    client.generate(PROMPT, max_tokens=20)  # the unread first is over by now, and its end is kept
    with pytest.raises(Refused, match="kept for its client"):
        client.submit(PROMPT, max_tokens=60, request_id="name").result()
    first.close()
    assert client.generate(PROMPT, max_tokens=60, request_id="name").state == "FINISHED"


def test_an_async_stream_that_is_left_never_cancels_its_namesake(serve: Any) -> None:
    async def run(address: str) -> str:
        async with AsyncClient(address) as client:
            stream = await client.submit(PROMPT, max_tokens=60, request_id="name")
            await anext(stream)
            async with await client.submit(PROMPT, request_id="name"):
                pass
            return (await stream.result()).state

    engine = serve(target="scripted:mean=3.2,step_us=500")
    engine.client()
    assert asyncio.run(run(engine.address)) == "FINISHED"


def test_a_result_is_whole_however_much_was_read_before(serve: Any) -> None:
    client = serve().client()
    whole = client.generate(PROMPT, max_tokens=20)
    for num_read in (0, 1, 3, 1000):
        with client.submit(PROMPT, max_tokens=20) as stream:
            for _, _ in zip(range(num_read), stream, strict=False):
                pass
            assert stream.result().token_ids == whole.token_ids


def test_a_stream_left_before_its_answer_is_cancelled_when_it_is_accepted() -> None:
    conversation, left, kept = Conversation("here"), Sink(), Sink()
    conversation.submit("name", left, b"")
    conversation.submit("name", kept, b"")
    assert conversation.leave("name", left) == []
    assert conversation.feed(accepted("name")) == [CANCEL, HEARD]  # nobody will read its end
    assert conversation.feed(wire.Refused(code="DUPLICATE_ID", message="no", request_id="name")) == []
    assert left == []
    assert [type(one) for one in kept] == [Refused]


def test_a_live_stream_that_is_left_is_cancelled_once() -> None:
    conversation, sink = Conversation("here"), Sink()
    conversation.submit("name", sink, b"")
    conversation.feed(accepted("name"))
    assert conversation.leave("name", sink) == [CANCEL, HEARD]
    assert conversation.leave("name", sink) == [HEARD]
    assert conversation.num_open == 0


def test_a_stream_whose_request_is_resumed_by_another_ends() -> None:
    conversation, older, newer = Conversation("here"), Sink(), Sink()
    conversation.submit("name", older, b"")
    conversation.feed(accepted("name"))
    conversation.resume("name", newer, 0)
    conversation.feed(wire.Tokens(request_id="name", index=0, token_ids=[1]))
    assert isinstance(older[-1], Refused)
    assert len(newer) == 1
    assert conversation.leave("name", older) == []  # a live one is none the worse for it, and its end is its own


@pytest.mark.parametrize("from_index", [0, 2])
def test_a_resumed_result_repeats_neither_tokens_nor_text(from_index: int) -> None:
    builder = ResultBuilder()
    said = [
        (4, [14, 15], "ef"),
        (from_index, [10, 11, 12, 13, 14, 15][from_index:], "abcdef"[from_index:]),
        (6, [16], "g"),
    ]
    for index, token_ids, text in said:
        builder.add(wire.Tokens(request_id="name", index=index, token_ids=token_ids, text=text))
    counts = wire.RequestCounts()
    builder.add(wire.Finished("name", "FINISHED", "length", 1, 7, counts, {}, text="!"))
    assert builder.whole().text == "abcdefg"[from_index:] + "!"


def test_a_cancelled_connect_leaves_no_task_behind(tmp_path: Path) -> None:
    async def run() -> None:
        client = AsyncClient(f"ipc://{tmp_path}/nobody", timeout_s=1)
        task = asyncio.ensure_future(client.connect())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
