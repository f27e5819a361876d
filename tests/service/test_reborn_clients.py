"""A process dies and another one comes back as the same client: what was promised to the first is there for the second,
whenever it asks for it and whatever is told before it does."""

from typing import Any

import pytest
from dsparkd import Client
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.conversation import Conversation
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_support import Fault, Heard, Speaker, World

FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(["process", "process", "lose up", "lose down", "repeat down", "late down", "break", "die"]),
    turn=st.integers(0, 30),
    which=st.integers(0, 12),
)
NO_COUNTS = wire.RequestCounts(0, 0, 0, 0, 0, 0, [], [], 0, 0)


def prompt(number: int) -> list[int]:
    return [number + 1, 7, 3]


class Mortal(World):
    """A world in which the client's process dies, too. The next one asks for each stream `which` turns later."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults)
        self.heard: dict[str, Heard] = {}
        self.resumes_at: dict[str, int] = {}
        self.token: str | None = None
        self.buried: list[Speaker] = []

    def step(self) -> None:
        for fault in self.faults:
            if fault.kind == "process" and fault.turn == self.turn:
                self._bury(fault.which)
        for name in [name for name, turn in self.resumes_at.items() if turn <= self.turn]:
            del self.resumes_at[name]
            self.speaker.resume(name, self.heard[name])
        super().step()

    def _bury(self, delay: int) -> None:
        welcome = self.speaker.conversation.welcome
        self.token = self.token if welcome is None else welcome.resume_token
        self.buried.append(self.speaker)
        self.speaker = Speaker(self.token)
        self.late = {"up": [], "down": []}
        self.resumes_at = {name: self.turn + delay for name, one in self.heard.items() if not one.ends}


@settings(max_examples=150, deadline=None)
@given(
    faults=st.lists(FAULTS, max_size=6),
    asked=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40)), min_size=1, max_size=4),
)
def test_whoever_comes_back_hears_the_rest_of_all_that_was_promised(
    faults: list[Fault], asked: list[tuple[int, int]]
) -> None:
    world = Mortal(faults)
    for number, (turn, length) in enumerate(sorted(asked)):
        while world.turn < turn:
            world.step()
        world.heard[f"r{number}"] = world.speaker.submit(f"r{number}", prompt(number), max_tokens=length)
    world.run(list(world.heard.values()))
    for number, (one, (_, length)) in enumerate(zip(world.heard.values(), sorted(asked), strict=True)):
        if isinstance(one.ends[0], Refused):
            assert one.ends[0].code == "UNKNOWN_ID"
            assert one.num_accepted == 0, "what was accepted is promised"
        else:
            assert one.token_ids == world.engine.bench.solo(prompt(number), length)
            assert one.ends[0].state == "FINISHED"


SAID = st.sampled_from(
    [
        wire.Accepted(request_id="a", prompt_len=3, seed=0),
        wire.Tokens(request_id="a", index=0, token_ids=[1]),
        wire.Tokens(request_id="a", index=5, token_ids=[1, 2]),
        wire.Finished("a", "FINISHED", "length", 3, 7, NO_COUNTS, {}),
        wire.Refused(code="UNKNOWN_ID", message="no", request_id="a"),
        wire.CancelAck(request_id="a", live=True),
    ]
)


@given(said=st.lists(SAID, max_size=6))
def test_nothing_is_said_of_a_request_that_nobody_here_has_asked_for(said: list[Any]) -> None:
    conversation = Conversation("here", resume_token="of an earlier process")
    assert [frame for message in said for frame in conversation.feed(message)] == []
    welcome = wire.Welcome(1, "token", 1.0, 2, 96, has_text=False, resumed=True)
    assert conversation.feed(welcome) == []


def test_what_ends_before_it_is_asked_for_again_is_told_then(serve: Any, eventually: Any) -> None:
    first = serve().client()
    stream = first.submit(prompt(0), request_id="a", max_tokens=40)
    next(stream)
    with Client(first.address, resume_token=first.welcome.resume_token) as second:  # takes the connection's place
        eventually(lambda: second.stats()["ended"].get("FINISHED") == 1, "the end")
        assert len(second.resume("a").result().token_ids) == 40
        with pytest.raises(Refused, match="no request of this client"):
            second.resume("a").result()
