"""Whatever a client says, the answer is small: a refusal may cost its sender, never the engine."""

from typing import Any

import msgspec
import pytest
from dsparkd.scheduler.service.options import read_options
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import PeerError, Refused

LONGEST = 16_000


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def refusal(options: msgspec.Raw) -> str:
    with pytest.raises(Refused) as caught:
        read_options(options)
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {f"name{index}": 1 for index in range(100_000)},
        {"n" * 1_000_000: 1},
        {"label": "x" * 1_000_000},
        {"label": {"k" * 1_000_000: ["v" * 1_000_000] * 3}},
        {"stop_token_ids": [-1] * 100_000},
        {"temperature": b"x" * 1_000_000},
        ["x" * 1_000_000],
    ],
    ids=["many names", "a long name", "a long label", "a deep label", "many ids", "bytes", "no map"],
)
def test_a_refusal_of_any_options_is_short(options: Any) -> None:
    assert len(refusal(raw(options))) < LONGEST


def test_options_of_any_depth_are_refused_and_never_raise() -> None:
    for depth in (*range(1, 1100, 7), *range(940, 1010), 5000, 100_000):
        refusal(msgspec.Raw(b"\x81\xa5label" + b"\x91" * depth + b"\x01"))


@pytest.mark.parametrize("kind", [wire.Submit, wire.CancelRequest, wire.ResumeRequest])
def test_an_id_that_answers_could_not_repeat_is_no_message(kind: Any) -> None:
    decode = codec.from_client().decode
    assert decode(codec.encode(kind(request_id="x" * wire.MAX_ID_LEN)))
    with pytest.raises(PeerError, match="request_id"):
        decode(codec.encode(kind(request_id="x" * (wire.MAX_ID_LEN + 1))))
