"""Record files and traces on disk: torn, bent, foreign or taken, each is read as far as it goes or refused by name."""

from pathlib import Path

import pytest
from dsparkd.scheduler.service.trace_writer import MAGIC
from dsparkd.scheduler.trace.reading import read_trace
from dsparkd.scheduler.trace.replay import replay
from dsparkd.scheduler.wire.records import RecordWriter, read_records
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from test_traces import busy


@given(payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=6), data=st.data())
def test_a_torn_file_yields_whole_records_only(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "r"
    with RecordWriter(path, MAGIC) as file:
        for payload in payloads:
            file.append(payload)
    whole = path.read_bytes()
    end = data.draw(st.integers(len(MAGIC), len(whole)))
    path.write_bytes(whole[:end])
    found = list(read_records(path, MAGIC))
    assert found == payloads[: len(found)]
    assert len(found) == len(payloads) or end < len(whole)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_is_told_with_its_place_or_was_in_the_torn_tail(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("bent") / "r"
    payloads = [bytes([number]) * 20 for number in range(5)]
    with RecordWriter(path, MAGIC) as file:
        for payload in payloads:
            file.append(payload)
    bent = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(bent) - 1))
    bent[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(bent))
    try:
        found = list(read_records(path, MAGIC))
    except Refused as refused:
        assert "byte" in str(refused) or "begins with" in str(refused)
    else:
        assert found == payloads[: len(found)]
        assert len(found) < len(payloads)


@given(junk=st.binary(max_size=200))
def test_junk_behind_the_magic_word_is_refused_or_torn_and_never_fatal(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("junk") / "r"
    path.write_bytes(MAGIC + junk)
    try:
        assert list(replay(path)) == []
    except Refused as refused:
        assert str(path) in str(refused)


def test_a_file_that_is_no_trace_is_refused_by_what_it_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"GET / HTTP/1.1\r\n")
    with pytest.raises(Refused, match="begins with"):
        list(read_trace(path))
    with pytest.raises(Refused, match=r"no \*\.dsptrace"):
        list(read_trace(tmp_path))


def test_a_trace_never_overwrites_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.dsptrace"
    path.write_text("mine")
    with pytest.raises(Refused, match="expected a new file"):
        busy(path)
    assert path.read_text() == "mine"
