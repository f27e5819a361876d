"""Frames: every message survives the wire; whatever else arrives is refused as a PeerError, never worse."""

import types
import typing
from typing import Any

import msgspec
import pytest
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import LocalError, PeerError
from hypothesis import given, settings
from hypothesis import strategies as st

INT64 = st.integers(-(2**63), 2**63 - 1)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: INT64,
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
    type(None): st.none(),
    msgspec.Raw: st.dictionaries(st.text(max_size=5), INT64, max_size=3).map(msgspec.msgpack.encode).map(msgspec.Raw),
    Any: st.one_of(INT64, st.text(max_size=5), st.none(), st.lists(INT64, max_size=3)),
}
CHANNELS = {
    "to worker": (wire.ToWorker, codec.for_worker),
    "from worker": (wire.FromWorker, codec.from_worker),
    "to scheduler": (wire.ToScheduler, codec.from_client),
    "to client": (wire.ToClient, codec.for_client),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """A strategy for all values of a message's field type."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(one) for one in arguments])
    if origin is typing.Annotated:
        return values_of(arguments[0])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=4)
    if origin is tuple:
        return st.tuples(*[values_of(one) for one in arguments])
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    return st.builds(kind, **{field.name: values_of(field.type) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("channel", CHANNELS)
def test_every_message_survives_the_wire(channel: str) -> None:
    union, decoder = CHANNELS[channel]
    decode = decoder().decode
    for kind in typing.get_args(union):

        @settings(derandomize=True, max_examples=30, deadline=None)
        @given(values_of(kind))
        def survives(message: wire.Message) -> None:
            frame = codec.encode(message)
            back = decode(frame)
            assert type(back) is type(message)
            assert codec.encode(back) == frame

        survives()


def refused_or_decoded(decode: Any, frame: bytes) -> None:
    try:
        decode(frame)
    except PeerError as error:
        assert str(error)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(CHANNELS)))
def test_arbitrary_bytes_never_raise_anything_but_peer_error(junk: bytes, channel: str) -> None:
    decode = CHANNELS[channel][1]().decode
    refused_or_decoded(decode, junk)
    refused_or_decoded(decode, codec.HEADER + junk)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(values_of(wire.Report), st.data())
def test_a_damaged_frame_never_raises_anything_but_peer_error(report: wire.Report, data: st.DataObject) -> None:
    frame = bytearray(codec.encode(report))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    refused_or_decoded(codec.from_worker().decode, bytes(frame[: data.draw(st.integers(0, len(frame)))]))


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"", "no magic"),
        (b"GET / HTTP/1.1\r\n", "no magic"),
        (b"DSPK", "before its version"),
        (b"DSPK\x09\x80", "version 9, expected 1"),
        (codec.HEADER, "truncated"),
        (codec.HEADER + b"\x80", "`type`"),
        (codec.HEADER + msgspec.msgpack.encode({"type": "Nonsense"}), "Nonsense"),
        (codec.HEADER + msgspec.msgpack.encode({"type": "KeepAlive", "x": 1}), "`x`"),
        (codec.HEADER + msgspec.msgpack.encode({"type": "CancelRequest", "request_id": 3}), "$.request_id"),
        (codec.HEADER + b"\x82\xa4type\xa6Submit\xa7options" + b"\x91" * 100_000, "RecursionError"),
        (codec.HEADER + b"\xdd\xff\xff\xff\xff", "array"),
        (codec.HEADER + b"\x82\xa4type\xadCancelRequest\xaarequest_id\xa1\xff", "UTF-8"),
        (codec.HEADER + b"\x80" + bytes(codec.MAX_FRAME_BYTES), "more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}-bytes",
)
def test_the_error_says_what_was_wrong_with_the_bytes(frame: bytes, said: str) -> None:
    with pytest.raises(PeerError) as caught:
        codec.from_client().decode(frame)
    assert said in str(caught.value)


def test_what_msgpack_cannot_carry_is_our_own_error() -> None:
    with pytest.raises(LocalError, match="Pong cannot be encoded"):
        codec.encode(wire.Pong(session=1, last_step_id=2**70))
