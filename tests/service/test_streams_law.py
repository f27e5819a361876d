"""The law of streams: whatever frames are lost or told twice, whichever connections break and however often schedulers
die, every stream is told its whole output once, in order, and its one end."""

from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.service.promises import Promises
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from hypothesis import given, note, settings
from hypothesis import strategies as st
from lossy_support import Engine, Heard, Speaker

FAULTS = ("lose up", "lose down", "repeat up", "repeat down", "late up", "late down", "break", "die", "nudge")
PATIENCE = 400  # turns without any fault after which every stream must be over


@attrs.frozen
class Fault:
    kind: str
    turn: int
    which: int


FAULTS_LIST = st.lists(
    st.builds(Fault, kind=st.sampled_from(FAULTS), turn=st.integers(0, 30), which=st.integers(0, 5)), max_size=8
)


class World:
    """One client, one engine after another."""

    def __init__(self, faults: list[Fault], *, journal: bool = True) -> None:
        self.faults, self.journal, self.turn = faults, journal, 0
        self.promises = Promises(most_kept=64)
        self.engine = Engine(self.promises, mean=2.5)
        self.speaker = Speaker()
        self._echoes = False  # a submit was told twice
        self.late: dict[str, list[bytes]] = {"up": [], "down": []}  # frames that come a turn or more after theirs

    def step(self) -> None:
        """Frames up, a turn of the engine, frames down; each of this turn's faults strikes once."""
        due = [one for one in self.faults if one.turn == self.turn]
        kinds = {one.kind for one in due}
        if due:
            note(f"turn {self.turn}: {due}")
        if "die" in kinds:
            self.promises = self.promises if self.journal else Promises(most_kept=64)
            self.engine = Engine(self.promises, mean=2.5)
            self.speaker.connect()
        if "break" in kinds:
            self.speaker.connect()
        if {"die", "break"} & kinds:
            self.late = {"up": [], "down": []}
        if "nudge" in kinds or self.turn % 20 == 19:
            self.speaker.outgoing.extend(self.speaker.conversation.nudge())
        self._carry_up(due)
        self.engine.turn()
        self._carry_down(due)
        self.turn += 1

    def _carry_up(self, due: list[Fault]) -> None:
        frames = self._strike(list(self.speaker.outgoing), due, "up", spared=b"")
        self.speaker.outgoing.clear()
        self.engine.wire.arrived.extend((self.speaker.identity, [frame]) for frame in frames)

    def _carry_down(self, due: list[Fault]) -> None:
        frames = self._strike(list(self.engine.wire.sent.pop(self.speaker.identity, ())), due, "down", spared=CONNECTED)
        self.engine.wire.sent.clear()  # of connections that are gone
        for frame in frames:
            self.speaker.hear(frame)

    def _strike(self, frames: list[bytes], due: list[Fault], way: str, *, spared: bytes) -> list[bytes]:
        """Lose, repeat or hold back a frame. The handshake of a connection is not struck: one that lost it would be
        broken off. Nor are answers once a submit was told twice: a client that gets the second answer alone cannot tell
        its own echo from an id that is taken."""
        held, self.late[way] = self.late[way], []
        for fault in due:
            at = fault.which % len(frames) if frames else None
            if at is None or frames[at] == spared or is_handshake(frames[at], way):
                continue
            if self._echoes and fault.kind in ("lose down", "late down"):
                continue
            self._echoes |= way == "up" and fault.kind == "repeat up" and is_submit(frames[at])
            if fault.kind == f"lose {way}":
                del frames[at]
            elif fault.kind == f"repeat {way}":
                frames.insert(at, frames[at])
            elif fault.kind == f"late {way}":
                self.late[way].append(frames.pop(at))
        return frames + held

    def run(self, heard: list[Heard]) -> None:
        while not all(one.ends for one in heard):
            self.step()
            assert self.turn < 40 + PATIENCE, "a stream hangs"


CONNECTED = codec.encode(wire.Connected())
HELLOS = (wire.ClientHello, wire.Welcome)


def is_submit(frame: bytes) -> bool:
    return bool(frame) and isinstance(codec.from_client().decode(frame), wire.Submit)


def is_handshake(frame: bytes, way: str) -> bool:
    decoder: Any = codec.from_client() if way == "up" else codec.for_client()
    return isinstance(decoder.decode(frame), HELLOS)


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
