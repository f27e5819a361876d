"""What an adversary of recovery found: each a state that an engine or a client once came out of badly."""

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.service.promises import Promises
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.records import HEAD, RecordWriter, read_records
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_support import Engine, Heard, Speaker


class World:
    """One client, one engine after another; frames travel when they are told to."""

    def __init__(self) -> None:
        self.promises = Promises(most_kept=64)
        self.engine, self.speaker = Engine(self.promises, mean=2.5), Speaker()

    def up(self) -> None:
        arrived = [(self.speaker.identity, [frame]) for frame in self.speaker.outgoing]
        self.engine.wire.arrived.extend(arrived)
        self.speaker.outgoing.clear()

    def down(self) -> None:
        for frame in self.engine.wire.sent.pop(self.speaker.identity, ()):
            self.speaker.hear(frame)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.up()
            self.engine.turn()
            self.down()

    def die(self) -> None:
        """Another scheduler goes on from the journal; the connection is gone, and all that travelled."""
        self.engine = Engine(self.promises, mean=2.5)
        self.speaker.connect()

    def leave(self, request_id: str, sink: Heard) -> None:
        self.speaker.outgoing.extend(self.speaker.conversation.leave(request_id, sink))

    def solo(self, prompt: list[int], length: int) -> list[int]:
        return list(self.engine.bench.solo(prompt, length))


def test_a_request_that_was_accepted_is_not_refused_when_it_is_said_again_while_the_engine_drains() -> None:
    world = World()
    world.turn(3)
    heard = world.speaker.submit("a", [1, 2, 3], max_tokens=40)
    world.up()
    world.engine.turn()
    assert world.promises.live  # accepted, and the connection breaks before its client hears so
    world.speaker.connect()
    world.engine._hear(world.engine.bench.send(events.Drain()))
    world.turn(60)
    assert heard.token_ids == world.solo([1, 2, 3], 40), heard


def test_an_id_that_is_used_again_after_its_stream_was_left_while_the_engine_was_away_is_not_the_old_request() -> None:
    world = World()
    world.turn(3)
    old = world.speaker.submit("a", [1, 2, 3], max_tokens=40)
    world.turn(3)
    world.die()
    world.leave("a", old)
    new = world.speaker.submit("a", [7, 8, 9], max_tokens=10)
    world.turn(60)
    assert new.token_ids in ([], world.solo([7, 8, 9], 10))
    assert not (isinstance(new.ends[0], wire.Finished) and new.ends[0].state == "CANCELLED")


def test_a_submit_that_was_left_unanswered_does_not_cancel_the_next_one_of_its_id() -> None:
    world = World()
    world.turn(3)
    world.speaker.connect()
    old = world.speaker.submit("a", [1, 2, 3], max_tokens=10)
    world.speaker.outgoing.pop()  # there is no connection: AsyncClient drops what cannot be sent
    world.leave("a", old)
    new = world.speaker.submit("a", [1, 2, 3], max_tokens=10)
    world.speaker.outgoing.pop()
    world.turn(60)
    assert new.token_ids == world.solo([1, 2, 3], 10)


def test_a_submit_of_an_id_that_was_live_is_never_answered_with_the_others_output_after_a_lost_connection() -> None:
    world = World()
    world.turn(3)
    first = world.speaker.submit("a", [1, 2, 3], max_tokens=5)
    world.turn(2)
    second = world.speaker.submit("a", [7, 8, 9], max_tokens=20)
    while not world.promises.kept.get(1):
        world.up()
        world.engine.turn()
    world.speaker.connect()
    world.turn(30)
    assert first.token_ids == world.solo([1, 2, 3], 5)
    assert (second.token_ids, [type(one) for one in second.ends]) == ([], [Refused])


def test_an_id_whose_end_was_read_while_the_engine_was_away_is_free_again() -> None:
    world = World()
    world.turn(3)
    heard = world.speaker.submit("a", [1, 2, 3], max_tokens=10)
    while not heard.ends:
        world.turn()
    world.speaker.outgoing.extend(world.speaker.conversation.heard("a"))
    world.speaker.outgoing.clear()
    world.die()
    world.turn(3)
    again = world.speaker.submit("a", [7, 8, 9], max_tokens=10)
    world.turn(30)
    assert again.token_ids == world.solo([7, 8, 9], 10)


def test_a_namesake_that_was_refused_says_nothing_of_the_first_ones_end() -> None:
    world = World()
    world.turn(3)
    first = world.speaker.submit("a", [1, 2, 3], max_tokens=40)
    world.turn(3)
    second = world.speaker.submit("a", [1, 2, 3], max_tokens=40)
    world.turn(2)
    assert second.ends
    while not world.promises.kept.get(1):
        world.up()
        world.engine.turn()
    world.leave("a", second)  # nobody ever looked at its refusal
    world.up()
    world.engine.turn()
    world.speaker.connect()  # and what was on its way down is gone
    world.turn(10)
    assert first.token_ids == world.solo([1, 2, 3], 40), first


def test_a_request_that_nobody_waits_for_any_more_is_cancelled_when_it_is_accepted_after_all() -> None:
    world = World()
    world.turn(3)
    said = world.speaker.submit("a", [1, 2, 3], max_tokens=40)
    frame = world.speaker.outgoing[-1]
    world.speaker.outgoing.clear()
    world.speaker.hear(codec.encode(wire.Refused(code="QUEUE_FULL", message="", request_id="a")))
    assert said.ends
    world.speaker.outgoing.append(frame)  # it was said twice, and there is room now
    world.turn(3)
    assert world.promises.live == []


def test_what_was_accepted_is_not_refused_by_a_full_queue_before_the_next_worker_is_ready() -> None:
    world = World()
    world.turn(3)
    heard = world.speaker.submit("a", [1, 2, 3], max_tokens=20)
    world.up()
    world.engine.turn()  # accepted, and nobody hears
    world.die()
    world.engine.edge.ready = False
    world.engine.edge.early._most = 0
    world.turn(3)
    assert not heard.ends
    world.engine._feed(world.engine.edge.release(0))
    world.turn(40)
    assert heard.token_ids == world.solo([1, 2, 3], 20)


PAYLOADS = st.lists(st.binary(min_size=1, max_size=30), min_size=2, max_size=6)


@settings(max_examples=100, deadline=None)
@given(payloads=PAYLOADS, where=st.floats(0, 0.999), value=st.integers(1, 255))
def test_a_damaged_byte_before_the_last_record_is_never_taken_for_a_torn_end(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], where: float, value: int
) -> None:
    """The upper bytes of a length too, which make a record reach beyond the file's end."""
    path = tmp_path_factory.mktemp("records") / "file"
    with RecordWriter(path, b"magic") as file:
        for payload in payloads:
            file.append(payload)
    data = bytearray(path.read_bytes())
    before_last = len(data) - len(payloads[-1]) - HEAD.size
    data[int(where * before_last)] ^= value
    path.write_bytes(data)
    with pytest.raises(Refused):
        list(read_records(path, b"magic"))
