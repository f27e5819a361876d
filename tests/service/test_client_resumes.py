"""A resume strikes at any moment, before the answer to its submit too: the newest stream has the request, each older
one hears so, and nobody waits for ever."""

import asyncio
from typing import Any

import pytest
from dsparkd import AsyncClient, Refused
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.conversation import Conversation
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_support import Fault, Heard, World

FAULTS = ("lose up", "lose down", "repeat up", "repeat down", "late up", "late down", "break", "die", "nudge")
FAULTS_LIST = st.lists(
    st.builds(Fault, kind=st.sampled_from(FAULTS), turn=st.integers(0, 30), which=st.integers(0, 5)), max_size=6
)
RESUMES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.booleans()), min_size=1, max_size=8)
ACCEPTED = wire.Accepted(request_id="a", prompt_len=3, seed=0)
UNKNOWN = wire.Refused(code="UNKNOWN_ID", message="no", request_id="a")
DUPLICATE = wire.Refused(code="DUPLICATE_ID", message="no", request_id="a")
FINISHED = wire.Finished("a", "FINISHED", "length", 3, 1, wire.RequestCounts(), {})


class Sink(list[Any]):
    put = list.append


def tokens(index: int, *token_ids: int) -> wire.Tokens:
    return wire.Tokens(request_id="a", index=index, token_ids=list(token_ids))


def prompt(number: int) -> list[int]:
    return [number + 1, 7, 3]


class Resumed(World):
    """A world in which streams are resumed: `resumes` are (turn, whose, from the beginning or from where it is)."""

    def __init__(self, faults: list[Fault], resumes: list[tuple[int, int, bool]]) -> None:
        super().__init__(faults)
        self.resumes = resumes
        self.streams: list[list[Heard]] = []  # of each request, the newest last

    def step(self) -> None:
        for turn, which, anew in self.resumes:
            if turn == self.turn and self.streams:
                number = which % len(self.streams)
                newer = Heard(token_ids=[] if anew else list(self.streams[number][-1].token_ids))
                self.streams[number].append(newer)
                self.speaker.resume(f"r{number}", newer)
        super().step()

    def submit(self, length: int) -> None:
        number = len(self.streams)
        self.streams.append([self.speaker.submit(f"r{number}", prompt(number), max_tokens=length)])


@settings(max_examples=150, deadline=None)
@given(
    faults=FAULTS_LIST,
    resumes=RESUMES,
    asked=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60)), min_size=1, max_size=3),
)
def test_whenever_a_stream_is_resumed_the_newest_hears_the_whole_and_each_older_one_its_end(
    faults: list[Fault], resumes: list[tuple[int, int, bool]], asked: list[tuple[int, int]]
) -> None:
    world = Resumed(faults, resumes)
    for turn, length in sorted(asked):
        while world.turn < turn:
            world.step()
        world.submit(length)
    while world.turn <= max(turn for turn, _, _ in resumes):
        world.step()
    world.run([one for streams in world.streams for one in streams])
    for number, (streams, (_, length)) in enumerate(zip(world.streams, sorted(asked), strict=True)):
        assert streams[-1].token_ids == world.engine.bench.solo(prompt(number), length)
        assert isinstance(streams[-1].ends[0], wire.Finished)
        for older in streams[:-1]:
            assert isinstance(older.ends[0], wire.Finished) or older.ends[0].code == "RESUMED"


def decoded(frames: list[bytes]) -> list[Any]:
    return [codec.from_client().decode(frame) for frame in frames]


def test_a_resume_takes_a_submit_over_that_was_not_answered() -> None:
    conversation, older, newer = Conversation("here"), Sink(), Sink()
    conversation.submit("a", older, b"submit")
    assert conversation.resume("a", newer, 0) == []  # the submit's answer is its answer
    assert [one.code for one in older] == ["RESUMED"]
    assert conversation.leave("a", older) == []  # it was not read before it was dropped
    for message in (ACCEPTED, tokens(0, 5), FINISHED):
        conversation.feed(message)
    assert newer == [ACCEPTED, tokens(0, 5), FINISHED]
    assert conversation.num_open == 0


def test_a_resume_of_a_submit_that_is_refused_is_refused_with_it() -> None:
    conversation, newer = Conversation("here"), Sink()
    conversation.submit("a", Sink(), b"submit")
    conversation.resume("a", newer, 0)
    conversation.feed(wire.Refused(code="QUEUE_FULL", message="no", request_id="a"))
    assert [one.code for one in newer] == ["QUEUE_FULL"]
    assert conversation.num_open == 0


@pytest.mark.parametrize("answer", [ACCEPTED, DUPLICATE], ids=["accepted", "said twice and accepted before"])
def test_a_resume_from_further_on_of_a_submit_that_was_not_answered_is_asked_for_then(answer: Any) -> None:
    conversation, newer = Conversation("here"), Sink()
    conversation.submit("a", Sink(), b"submit")
    assert conversation.resume("a", newer, 2) == []
    conversation.nudge()
    conversation.nudge()  # the submit is said again
    assert decoded(conversation.feed(answer)) == [wire.ResumeRequest(request_id="a", from_index=2)]
    for message in (tokens(0, 5, 6), ACCEPTED, tokens(2, 7)):
        conversation.feed(message)
    assert newer == [ACCEPTED, tokens(2, 7)]


def test_a_stream_that_was_left_and_is_resumed_before_its_answer_is_not_cancelled() -> None:
    conversation, left, newer = Conversation("here"), Sink(), Sink()
    conversation.submit("a", left, b"submit")
    conversation.leave("a", left)
    conversation.resume("a", newer, 0)
    assert conversation.feed(ACCEPTED) == []
    assert (left, newer) == ([], [ACCEPTED])


@pytest.mark.parametrize("is_left", [False, True])
def test_that_a_resume_knows_no_request_is_no_answer_to_a_later_submit_of_its_id(is_left: bool) -> None:
    conversation, resumed, submitted = Conversation("here"), Sink(), Sink()
    conversation.resume("a", resumed, 0)
    if is_left:
        conversation.leave("a", resumed)
    conversation.submit("a", submitted, b"submit")
    conversation.feed(UNKNOWN)
    conversation.feed(ACCEPTED)
    assert [one.code for one in resumed] == ([] if is_left else ["UNKNOWN_ID"])
    assert submitted == [ACCEPTED]


def test_a_live_stream_is_never_given_away_to_a_second_submit_of_its_id() -> None:
    conversation, live, second = Conversation("here"), Sink(), Sink()
    conversation.submit("a", live, b"submit")
    conversation.feed(ACCEPTED)
    conversation.submit("a", second, b"submit")
    for message in (ACCEPTED, tokens(0, 5), DUPLICATE, FINISHED):  # the first: an echo of a resume that was said twice
        conversation.feed(message)
    assert live == [ACCEPTED, tokens(0, 5), FINISHED]
    assert [one.code for one in second] == ["DUPLICATE_ID"]
    assert conversation.num_open == 0


def test_both_clients_resume_a_request_right_after_its_submit(serve: Any) -> None:
    async def run(address: str) -> tuple[str, str]:
        async with AsyncClient(address) as client:
            older, newer = await client.submit([1], request_id="b", max_tokens=20), await client.resume("b")
            with pytest.raises(Refused) as caught:
                await older.result()
            return caught.value.code, (await newer.result()).state

    engine = serve()
    client = engine.client()
    older, newer = client.submit([1], request_id="a", max_tokens=20), client.resume("a")
    with pytest.raises(Refused, match="newer stream"):
        older.result()
    assert newer.result().state == "FINISHED"
    assert asyncio.run(run(engine.address)) == ("RESUMED", "FINISHED")
