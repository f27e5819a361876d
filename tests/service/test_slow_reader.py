"""Connections that do not behave: one that stops reading, one that takes another's name."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire

NUM_REQUESTS, LENGTH = 16, 500  # one message a token: more than an outbox and both pipes hold


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


class Raw:
    """A client as another language might write it."""

    def __init__(self, context: Any, address: str, *, name: bytes | None = None, high_water: int = 1000) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVHWM, high_water)
        if name is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, name)
        self.socket.connect(address)

    def say(self, message: Any) -> None:
        self.socket.send(codec.encode(message))

    def hear(self, *, timeout_ms: int = 20_000) -> Any:
        if not self.socket.poll(timeout_ms):
            return None
        return codec.for_client().decode(self.socket.recv())


def submit(number: int) -> wire.Submit:
    options = msgspec.Raw(msgspec.msgpack.encode({"max_tokens": LENGTH, "max_draft_len": 0}))
    return wire.Submit(request_id=f"r{number}", prompt_token_ids=[number + 1], options=options)


def test_a_reader_that_stops_reading_costs_others_nothing_and_may_come_back_for_the_rest(
    serve: Any, eventually: Any, context: Any
) -> None:
    engine = serve(target="scripted:mean=3.2", num_slots=16, heartbeat_s=5.0, client_grace_s=60.0)
    client = engine.client()
    slow = Raw(context, engine.address, high_water=1)
    slow.say(wire.ClientHello())
    token = slow.hear().resume_token
    for number in range(NUM_REQUESTS):
        slow.say(submit(number))
    expected = client.generate([7], max_tokens=LENGTH).token_ids  # served meanwhile
    eventually(lambda: client.stats()["clients"].get("AWAY") == 1, "the end of the connection that nobody reads")
    again = Raw(context, engine.address)
    again.say(wire.ClientHello(resume_token=token))
    assert again.hear().resumed
    again.say(wire.ResumeRequest(request_id="r6"))
    told: list[int] = []
    while not isinstance(message := again.hear(), wire.Finished) or message.request_id != "r6":
        if isinstance(message, wire.Tokens) and message.request_id == "r6" and message.index <= len(told):
            told[message.index :] = message.token_ids
    assert told == expected


def test_a_connection_that_takes_anothers_name_hears_nothing_of_it(serve: Any, context: Any) -> None:
    engine = serve(target="scripted:mean=3.2,step_us=500")
    engine.client()
    first = Raw(context, engine.address, name=b"name")
    first.say(wire.ClientHello())
    assert isinstance(first.hear(), wire.Welcome)
    thief = Raw(context, engine.address, name=b"name")
    thief.say(wire.CancelRequest(request_id="r1"))
    first.say(submit(1))
    told = [first.hear()]
    while not isinstance(told[-1], wire.Finished):
        told.append(first.hear())
    assert told[-1].state == "FINISHED"
    assert thief.hear(timeout_ms=0) is None
