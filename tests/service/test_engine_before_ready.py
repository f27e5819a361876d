"""Before the first READY: what waits can be cancelled, and every question is answered."""

import signal
from typing import Any

import pytest
from dsparkd.statemachine.errors import Refused

PROMPT = [1, 2, 3]


def test_a_request_that_waits_for_the_first_ready_can_be_cancelled_and_is_answered_once(
    serve: Any, tmp_path: Any
) -> None:
    gate = tmp_path / "gate"
    engine = serve(target=f"scripted:gate={gate}")
    client = engine.client(ready=False)
    left, kept = client.submit(PROMPT, request_id="left"), client.submit(PROMPT, request_id="kept", max_tokens=5)
    assert client.cancel("left") is True
    with pytest.raises(Refused) as caught:
        left.result()
    assert caught.value.code == "CANCELLED"
    assert client.cancel("left") is False
    assert client.cancel("never") is False
    gate.touch()
    assert len(kept.result().token_ids) == 5
    assert client.stats()["accepted"] == 1


def test_nothing_can_be_resumed_before_the_first_ready(serve: Any, tmp_path: Any) -> None:
    engine = serve(target=f"scripted:gate={tmp_path / 'gate'}")
    with pytest.raises(Refused) as caught:
        engine.client(ready=False).resume("x").result()
    assert caught.value.code == "UNKNOWN_ID"


def test_a_stop_before_the_worker_is_ready_answers_who_waits(serve: Any) -> None:
    engine = serve(target="scripted:gate=/nonexistent")
    client = engine.client(ready=False)
    stream = client.submit(PROMPT)
    client.health()
    engine.process.send_signal(signal.SIGTERM)
    with pytest.raises(Refused) as caught:
        next(stream)
    assert caught.value.code == "DRAINING"
    assert engine.process.wait(60) == 0
