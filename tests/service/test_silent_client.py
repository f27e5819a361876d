"""A client that said nothing for too long and then speaks on the same connection has lost nothing."""

from collections.abc import Callable
from typing import Any

import zmq
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.sockets import dealer


def test_who_was_silent_and_speaks_again_is_welcomed_as_who_it_was(
    serve: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    engine = serve(heartbeat_s=0.05)
    other = engine.client()
    context: zmq.Context[Any] = zmq.Context()
    silent = dealer(context, engine.address)
    decode = codec.for_client().decode
    silent.send(codec.encode(wire.ClientHello()))
    first = decode(silent.recv())
    assert not first.resumed
    eventually(lambda: other.stats()["clients"].get("AWAY") == 1, "its silence is noticed")
    silent.send(codec.encode(wire.KeepAlive()))
    again = decode(silent.recv())
    assert (again.client_id, again.resume_token, again.resumed) == (first.client_id, first.resume_token, True)
    silent.close(linger=0)
    context.term()
