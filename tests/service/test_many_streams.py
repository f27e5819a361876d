"""A thousand streams at once on one client: each hears its own tokens, all of them, in order."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from dsparkd import AsyncClient
from dsparkd.scheduler.trace.scripted import ScriptedModel
from dsparkd.scheduler.wire import messages as wire

Serve = Callable[..., Any]
NUM_STREAMS = 1000
NUM_THREADS = 8


def prompt_of(number: int) -> list[int]:
    return [number % 997, number // 997, 5]


def length_of(number: int) -> int:
    """Short: whatever this machine does meanwhile, what waits for a slow reader fits in its outbox."""
    return 3 + number % 7


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What each stream must say, from a model of its own."""
    model = ScriptedModel(num_slots=1, max_model_len=64)
    return [model.continuation(prompt_of(number), length_of(number)) for number in range(NUM_STREAMS)]


@pytest.fixture
def crowd(serve: Serve, tmp_path: Path) -> tuple[Any, Path]:
    """An engine that begins to work when its gate is there, with a slot for each stream."""
    gate = tmp_path / "gate"
    slots = {"num_slots": NUM_STREAMS, "max_model_len": 64, "max_step_tokens": 8 * NUM_STREAMS}
    return serve(target=f"scripted:mean=3.2,gate={gate}", max_queue=NUM_STREAMS, **slots), gate


def judge(number: int, heard: Sequence[Any], expected: Sequence[Sequence[int]], name: str) -> None:
    """One stream, message by message."""
    assert isinstance(heard[0], wire.Accepted)
    assert isinstance(heard[-1], wire.Finished)
    assert {one.request_id for one in heard} == {name}
    tokens: list[int] = []
    for message in heard[1:-1]:
        assert message.index == len(tokens)
        tokens += message.token_ids
    assert tokens == expected[number]


def test_a_thousand_streams_of_one_client_in_many_threads_are_not_mixed(
    crowd: tuple[Any, Path], expected: list[list[int]]
) -> None:
    engine, gate = crowd
    client = engine.client(ready=False)
    streams: dict[int, Any] = {}
    heard: dict[int, list[Any]] = {}

    def submit(first: int) -> None:
        for number in range(first, NUM_STREAMS, NUM_THREADS):
            streams[number] = client.submit(prompt_of(number), request_id=f"s{number}", max_tokens=length_of(number))

    def read(first: int) -> None:
        for number in range(first, NUM_STREAMS, NUM_THREADS):
            heard[number] = list(streams[number])

    in_threads(submit)
    gate.touch()  # all of them are there before the first token of any
    in_threads(read)
    assert len(heard) == NUM_STREAMS
    for number in range(NUM_STREAMS):
        judge(number, heard[number], expected, f"s{number}")
    assert client.stats()["ended"] == {"FINISHED": NUM_STREAMS}


def in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(first,)) for first in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_thousand_streams_of_one_async_client_in_as_many_tasks_are_not_mixed(
    crowd: tuple[Any, Path], expected: list[list[int]]
) -> None:
    engine, gate = crowd

    async def use() -> list[list[Any]]:
        async with AsyncClient(engine.address, timeout_s=60) as client:

            async def read(number: int) -> list[Any]:
                options = {"request_id": f"s{number}", "max_tokens": length_of(number)}
                stream = await client.submit(prompt_of(number), **options)
                return [message async for message in stream]

            tasks = [asyncio.create_task(read(number)) for number in range(NUM_STREAMS)]
            await client.health()  # answered after all submits have arrived: they were said before
            gate.touch()
            return await asyncio.gather(*tasks)

    for number, heard in enumerate(asyncio.run(use())):
        judge(number, heard, expected, f"s{number}")
