"""How long a silent engine is waited for: from the question on, whatever went unanswered before it."""

import asyncio
import os
import signal
from typing import Any

import pytest
from dsparkd import AsyncClient, EngineLost
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.conversation import Conversation
from dsparkd.scheduler.wire.waiting import Patience

TIMEOUT_S = 4.0


class Sink(list[Any]):
    put = list.append


def judge(patience: Patience, now: float, *asked: float) -> str:
    return patience.judge(now, lambda: asked)


def test_who_asks_after_a_long_silence_is_given_the_whole_time_out() -> None:
    patience = Patience(TIMEOUT_S, 0.0)
    assert judge(patience, 100.0) == "wait"
    assert judge(patience, 100.0, 100.0) == "wait"
    assert judge(patience, 102.0, 100.0) == "ask"
    assert judge(patience, 102.5, 100.0) == "wait"
    assert judge(patience, 104.0, 100.0) == "ask"
    assert judge(patience, 104.1, 100.0) == "give up"


def test_a_silence_begins_when_something_was_heard_if_that_came_after_the_question() -> None:
    patience = Patience(TIMEOUT_S, 0.0)
    patience.heard(3.0)
    assert judge(patience, 6.9, 0.0) == "ask"
    assert judge(patience, 7.1, 0.0) == "give up"


def test_the_oldest_question_that_somebody_waits_for_decides() -> None:
    patience = Patience(TIMEOUT_S, 0.0)
    assert judge(patience, 13.9, 10.0, 13.0) == "ask"
    assert judge(patience, 14.1, 13.0) == "wait"  # who asked first waits no longer
    assert judge(patience, 14.1, 10.0, 13.0) == "give up"


def test_a_stream_is_asked_after_every_quarter_however_much_others_are_told() -> None:
    """What was lost of one stream is noticed though the engine speaks."""
    patience = Patience(TIMEOUT_S, 0.0)
    judged = []
    for tenth in range(1, 44):
        patience.heard(tenth / 10)
        judged.append(judge(patience, tenth / 10, 0.0))
    assert judged.count("ask") == 3
    assert "give up" not in judged


def test_a_question_that_nobody_waits_for_any_more_is_neither_open_nor_said_again() -> None:
    conversation, late, cancelled, next_one = Conversation("here"), Sink(), Sink(), Sink()
    conversation.ask(wire.Stats, late)
    conversation.cancel("a", cancelled)
    conversation.forget(late)
    conversation.forget(cancelled)
    assert conversation.num_open == 0
    assert conversation.nudge() == []
    conversation.ask(wire.Stats, next_one)
    conversation.feed(wire.Stats(values={}))
    assert (late, next_one) == ([], [wire.Stats(values={})])


def test_a_request_right_after_a_time_out_is_served_by_an_engine_that_is_there_again(serve: Any) -> None:
    engine = serve()
    engine.client()
    hasty = engine.client(timeout_s=2.0)
    os.kill(engine.scheduler_pid(), signal.SIGSTOP)
    try:
        with pytest.raises(EngineLost):
            hasty.stats()
    finally:
        os.kill(engine.scheduler_pid(), signal.SIGCONT)
    assert hasty.generate([1], max_tokens=2).state == "FINISHED"


def test_so_it_is_for_a_task(serve: Any) -> None:
    async def run(address: str, pid: int) -> str:
        async with AsyncClient(address, timeout_s=2.0) as client:
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(EngineLost):
                    await client.stats()
            finally:
                os.kill(pid, signal.SIGCONT)
            return (await client.generate([1], max_tokens=2)).state

    engine = serve()
    engine.client()
    assert asyncio.run(run(engine.address, engine.scheduler_pid())) == "FINISHED"
