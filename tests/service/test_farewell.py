"""An engine that ends has its last word read: a connection that ends takes along what was not read of it yet."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from dsparkd.scheduler.service import clients
from dsparkd.scheduler.service.clients import ClientEdge
from dsparkd.scheduler.service.promises import Promises
from dsparkd.scheduler.service.translate import Client, Translate
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.conversation import Conversation
from dsparkd.scheduler.wire.sockets import Router, dealer

GONE = wire.Refused(code="ENGINE_GONE", message="over")


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def welcome(client: Client) -> wire.Welcome:
    return wire.Welcome(client.number, client.token, 1.0, 2, 96, has_text=False)


class Closing:
    """An edge with real sockets that `num` clients have greeted, and which closes in a thread of its own."""

    def __init__(self, context: Any, num: int) -> None:
        promises = Promises(most_kept=9)
        self.edge = ClientEdge(
            Router(context, "tcp://127.0.0.1:*"),
            Translate(max_model_len=96),
            keep_alive_s=1e6,
            max_early=1,
            questions=lambda question: wire.Stats(values={}),
            welcome=welcome,
            promises=promises,
            keep=promises.add,
        )
        self.clients = [dealer(context, self.edge.router.address) for _ in range(num)]
        for one in self.clients:
            one.send(codec.encode(wire.ClientHello()))
        while len(self.edge.translate.clients) < num:
            self.edge.router.socket.poll(1000)
            list(self.edge.receive(0))
        self.thread = threading.Thread(target=self.edge.close, args=("over",))
        self.thread.start()


def test_an_engine_closes_no_connection_before_each_client_has_said_goodbye(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "FAREWELL_S", 1e4)
    closing = Closing(context, 2)
    for one in closing.clients:
        assert closing.thread.is_alive()
        assert codec.for_client().decode(one.recv()) == GONE
        one.send(codec.encode(wire.KeepAlive()))  # said before it could know
        closing.thread.join(0.1)
        assert closing.thread.is_alive()
        one.send(codec.encode(wire.Goodbye()))
    closing.thread.join(60)
    assert not closing.thread.is_alive()


def test_an_engine_does_not_wait_for_ever_for_a_client_that_says_nothing(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "FAREWELL_S", 0.05)
    closing = Closing(context, 1)
    closing.thread.join(60)
    assert not closing.thread.is_alive()


def test_a_client_says_goodbye_to_the_last_word_and_to_no_other() -> None:
    conversation = Conversation("here")
    assert conversation.feed(GONE) == [codec.encode(wire.Goodbye())]
    assert conversation.feed(wire.Refused(code="BAD_MESSAGE", message="what?")) == []
