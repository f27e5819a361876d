"""The law of streams: whatever frames are lost or told twice, whichever connections break and however often schedulers
die, every stream is told its whole output once, in order, and its one end."""

from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.service.promises import Promises
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_support import Engine, Fault, Heard, World

FAULTS = ("lose up", "lose down", "repeat up", "repeat down", "late up", "late down", "break", "die", "nudge")

FAULTS_LIST = st.lists(
    st.builds(Fault, kind=st.sampled_from(FAULTS), turn=st.integers(0, 30), which=st.integers(0, 5)), max_size=8
)


def prompt(number: int) -> list[int]:
    return [number + 1, 7, 3]


@settings(max_examples=120, deadline=None)
@given(faults=FAULTS_LIST, asked=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60)), min_size=1, max_size=4))
def test_every_stream_hears_its_whole_output_once_whatever_is_lost_repeated_or_killed(
    faults: list[Fault], asked: list[tuple[int, int]]
) -> None:
    """asked: (turn, max_tokens) of each request."""
    world = World(faults)
    heard: list[Heard] = []
    for number, (turn, length) in enumerate(sorted(asked)):
        while world.turn < turn:
            world.step()
        heard.append(world.speaker.submit(f"r{number}", prompt(number), max_tokens=length))
    world.run(heard)
    for number, (one, (_, length)) in enumerate(zip(heard, sorted(asked), strict=True)):
        assert one.token_ids == world.engine.bench.solo(prompt(number), length)
        assert isinstance(one.ends[0], wire.Finished)
        assert one.num_accepted == 1
    world.faults = []
    for _ in range(3):
        world.step()
    assert world.promises.live == []


@settings(max_examples=30, deadline=None)
@given(turn=st.integers(2, 12), length=st.integers(30, 60))
def test_without_a_journal_each_live_stream_hears_that_the_engine_was_restarted(turn: int, length: int) -> None:
    world = World([Fault("die", turn, 0)], journal=False)
    heard = world.speaker.submit("a", prompt(0), max_tokens=length)
    world.run([heard])
    if isinstance(heard.ends[0], Refused):
        assert heard.ends[0].code == "ENGINE_RESTARTED"
        assert heard.token_ids == world.engine.bench.solo(prompt(0), length)[: len(heard.token_ids)]
    else:  # it was over before
        assert len(heard.token_ids) == length


def test_a_resume_in_another_language_is_told_that_the_engine_was_restarted() -> None:
    """By the hello's token alone: such a client may not know `Welcome.resumed`."""
    engine = Engine(Promises(most_kept=9))
    hello = wire.ClientHello(resume_token="of an engine that is gone")
    for message in (hello, wire.ResumeRequest(request_id="a")):
        engine.wire.arrived.append((b"x", [codec.encode(message)]))
    engine.turn()
    told = [codec.for_client().decode(frame) for frame in engine.wire.sent[b"x"]]
    assert [getattr(one, "code", None) for one in told] == [None, "ENGINE_RESTARTED"]


@pytest.mark.parametrize("from_index", [0, 3, 12])
def test_a_request_that_has_ended_is_told_again_until_its_client_has_heard(from_index: int) -> None:
    engine = Engine(Promises(most_kept=9))

    def say(*messages: Any) -> list[Any]:
        engine.wire.arrived.extend((b"x", [codec.encode(one)]) for one in messages)
        for _ in range(20):
            engine.turn()
        return [codec.for_client().decode(frame) for frame in engine.wire.sent.pop(b"x")]

    import msgspec

    options = msgspec.Raw(msgspec.msgpack.encode({"max_tokens": 12}))
    submit = wire.Submit(request_id="a", prompt_token_ids=prompt(0), options=options)
    whole = say(wire.ClientHello(), submit)
    assert isinstance(whole[-1], wire.Finished)
    for _ in range(2):
        again = say(wire.ResumeRequest(request_id="a", from_index=from_index))
        tokens = [one for one in again if isinstance(one, wire.Tokens)]
        assert isinstance(again[0], wire.Accepted)
        assert [token for one in tokens for token in one.token_ids] == engine.bench.solo(prompt(0), 12)[from_index:]
        assert again[-1] == whole[-1]
    assert say(submit)[0].code == "DUPLICATE_ID"
    told = say(wire.Heard(request_id="a"), wire.ResumeRequest(request_id="a"), submit)
    assert told[0].code == "UNKNOWN_ID"
    assert isinstance(told[-1], wire.Finished)
    assert say(wire.ResumeRequest(request_id="a", from_index=13))[0].code == "BAD_INDEX"


def test_of_what_has_ended_no_more_is_kept_than_the_limit_says() -> None:
    promises = Promises(most_kept=3)
    engine = Engine(promises)
    engine.wire.arrived.append((b"x", [codec.encode(wire.ClientHello())]))
    for number in range(8):
        submit = wire.Submit(request_id=f"r{number}", prompt_token_ids=[1])
        engine.wire.arrived.append((b"x", [codec.encode(submit)]))
    for _ in range(900):
        engine.turn()
    assert list(promises.kept[1]) == ["r5", "r6", "r7"]
    assert len(promises.requests) == 3
    assert events.Submit in {type(one.submit) for one in promises.requests.values()}
