"""The asyncio client: streams that are dropped, connections that are opened twice, and loops that are gone."""

import asyncio
import gc
import threading
from typing import Any

import pytest
from dsparkd import AsyncClient, Client, EngineLost, Refused
from dsparkd.scheduler.wire.client_async import AsyncStream

ENDLESS: dict[str, Any] = {"max_tokens": 4000}


async def until_idle(client: AsyncClient) -> None:
    """Until the engine has no live request; the test's own time-out says when that will not be."""
    while any(slot["state"] != "FREE" for slot in (await client.stats())["slot_list"]):
        await asyncio.sleep(0.01)
    assert client._conversation.num_open == 0


async def break_off(client: AsyncClient) -> None:
    async for _ in await client.submit([1, 2, 3], **ENDLESS):
        break


async def cancel_the_reader(client: AsyncClient) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async for _ in await client.submit([1], **ENDLESS):
            reading.set()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def drop_samples(client: AsyncClient) -> None:
    for stream in await client.samples([5], n=3, **ENDLESS):
        await anext(stream)


async def drop_in_another_thread(client: AsyncClient) -> None:
    held: list[AsyncStream] = [await client.submit([1], **ENDLESS)]
    await anext(held[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


async def drop_unanswered(client: AsyncClient) -> None:
    await client.submit([1], **ENDLESS)


@pytest.mark.parametrize("leave", [break_off, cancel_the_reader, drop_samples, drop_in_another_thread, drop_unanswered])
def test_a_stream_that_is_dropped_is_cancelled(serve: Any, leave: Any) -> None:
    async def run(address: str) -> dict[str, int]:
        async with AsyncClient(address) as client:
            await leave(client)
            gc.collect()
            await asyncio.wait_for(until_idle(client), 30)
            return dict((await client.stats())["ended"])

    engine = serve(target="scripted:mean=1.5,step_us=5000", max_model_len=4096)
    engine.client()
    assert set(asyncio.run(run(engine.address))) == {"CANCELLED"}


def test_a_dropped_stream_that_was_refused_leaves_its_namesake_alone(serve: Any) -> None:
    async def run(address: str) -> tuple[str, int]:
        async with AsyncClient(address) as client:
            first = await client.submit([1], request_id="name", max_tokens=20)
            second = await client.submit([1], request_id="name")
            await first.result()
            del second
            await client.health()
            return (await client.generate([1], request_id="name", max_tokens=2)).state, client._conversation.num_open

    engine = serve()
    engine.client()
    assert asyncio.run(run(engine.address)) == ("FINISHED", 0)


def test_a_refusal_that_was_not_read_does_not_give_away_an_end_that_was_not_read_either(serve: Any) -> None:
    client: Client = serve().client()
    first = client.submit([1], request_id="name", max_tokens=20)
    second = client.submit([1], request_id="name")
    with pytest.raises(Refused):
        client.submit([1], request_id="name").result()  # so the second one is refused by now
    client.generate([1], max_tokens=60)  # and the first one is over
    del second
    client.stats()
    with pytest.raises(Refused, match="kept for its client"):
        client.submit([1], request_id="name").result()
    assert first.result().state == "FINISHED"


def test_a_stream_that_outlives_its_loop_is_dropped_in_silence(
    serve: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)

    async def run(address: str) -> tuple[AsyncClient, AsyncStream, AsyncStream]:
        client = await AsyncClient(address).connect()
        closed = await AsyncClient(address).connect()
        streams = client, await client.submit([1], **ENDLESS), await closed.submit([1], **ENDLESS)
        await closed.close()
        return streams

    engine = serve(target="scripted:mean=1.5,step_us=5000", max_model_len=4096)
    engine.client()
    client, *streams = asyncio.run(run(engine.address))
    streams.clear()
    gc.collect()
    assert unraisable == []
    assert capfd.readouterr().err == ""
    client._socket.close(linger=0)  # its loop is gone, so nobody else will


def test_connecting_twice_is_connecting_once(serve: Any) -> None:
    async def run(address: str) -> int:
        async with AsyncClient(address) as client:
            assert await client.connect() is client
            await asyncio.gather(client.connect(), client.connect())
            await client.generate([1], max_tokens=2)
            num_tasks = len(asyncio.all_tasks())
        await asyncio.wait_for(client.close(), 30)
        return num_tasks

    engine = serve()
    engine.client()
    assert asyncio.run(run(engine.address)) == 3  # this one, the reader and the keeper


def test_two_that_connect_at_once_share_one_connection_and_its_failure() -> None:
    async def run() -> list[Any]:
        client = AsyncClient("ipc:///tmp/nobody-is-here/engine", timeout_s=0.2)
        found = await asyncio.gather(client.connect(), client.connect(), return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        return [type(one) for one in found]

    assert asyncio.run(run()) == [EngineLost, EngineLost]


def test_who_waits_for_a_welcome_hears_that_the_client_was_closed() -> None:
    async def run() -> None:
        client = AsyncClient("ipc:///tmp/nobody-is-here/engine")
        waiting = [asyncio.ensure_future(client.connect()) for _ in range(2)]
        await asyncio.sleep(0)
        await client.close()
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
        assert [type(one) for one in found] == [EngineLost, EngineLost]

    asyncio.run(run())


def test_a_closed_client_says_that_it_is_closed(serve: Any) -> None:
    async def run(address: str) -> None:
        client = AsyncClient(address)
        await client.close()  # nothing was opened
        async with client:
            pass
        for call in (client.connect(), client.submit([1]), client.stats(), client.resume("a"), client.cancel("a")):
            with pytest.raises(EngineLost, match="is closed"):
                await call
        await client.close()

    engine = serve()
    engine.client()
    asyncio.run(run(engine.address))


def test_a_client_of_another_loop_is_refused(serve: Any) -> None:
    engine = serve()
    engine.client()
    client = AsyncClient(engine.address)
    asyncio.run(client.connect())
    with pytest.raises(Refused, match="another event loop"):
        asyncio.run(client.connect())
    client._socket.close(linger=0)


def test_a_close_that_is_cancelled_closes_all_the_same(serve: Any) -> None:
    async def run(address: str) -> None:
        client = await AsyncClient(address).connect()
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert client._context.closed

    engine = serve()
    engine.client()
    asyncio.run(run(engine.address))
