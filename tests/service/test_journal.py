"""The journal: what a killed scheduler leaves is what its clients may have heard of, whole turns of it, in any state of
its files."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.service import journal as journals
from dsparkd.scheduler.service.journal import MAGIC, Journal, JournalLost, files, fold
from dsparkd.scheduler.service.promises import ACCEPTED, CLIENT, EMITTED, ENDED, GONE, HEARD, Promises
from dsparkd.scheduler.wire.records import RecordWriter, read_records
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st

NO_COUNTS = results.Counts(0, 0, 0, 0, 0, 0, (), (), 0, 0)


def opened(folder: Path, *, sync: str = "never", segment_bytes: int = 1 << 30) -> Journal:
    return Journal(folder, Promises(most_kept=3), sync=sync, interval_s=1e6, segment_bytes=segment_bytes)


class History:
    """Facts as an engine might have them, by dice: clients, requests, tokens, ends, turn by turn."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.num_requests, self.num_clients = dice, 0, 0

    def turn(self, keep: Callable[[list[Any]], None], promises: Promises) -> None:
        for _ in range(self.dice.randrange(4)):
            self.fact(keep, promises)

    def fact(self, keep: Callable[[list[Any]], None], promises: Promises) -> None:
        dice, clients, live = self.dice, list(promises.clients), promises.live
        kind = dice.choice([CLIENT, ACCEPTED, ACCEPTED, EMITTED, EMITTED, EMITTED, ENDED, HEARD, GONE])
        if kind == CLIENT:
            self.num_clients += 1
            keep([CLIENT, self.num_clients, f"token {self.num_clients}"])
        elif kind == ACCEPTED and clients:
            self.num_requests += 1
            options = events.Options(max_tokens=9, salt="é", stop_token_ids=frozenset({3, 1}))
            due = dice.choice([None, 1 << 61])
            prompt = tuple(dice.choices(range(5000), k=dice.randrange(1, 9)))
            submit = events.Submit(dice.choice(clients), self.num_requests, prompt, options, due)
            keep([ACCEPTED, submit, f"r{self.num_requests}", b"\x80"])
        elif kind == EMITTED and live:
            request = dice.choice(live)
            tokens = dice.choices(range(5000), k=dice.randrange(1, 5))
            own = dice.choice([None, [-0.5 * token for token in tokens]])
            top = own and dice.choice([None, [[[token, -0.5]] for token in tokens]])
            keep([EMITTED, request, len(promises.requests[request].token_ids), tokens, own, top])
        elif kind == ENDED and live:
            self.end(keep, promises, dice.choice(live))
        elif kind == HEARD and promises.kept:
            client = dice.choice(list(promises.kept))
            if promises.kept[client]:
                keep([HEARD, client, dice.choice(list(promises.kept[client]))])
        elif kind == GONE and clients and dice.random() < 0.2:
            gone = dice.choice(clients)
            keep([GONE, gone])
            for request in [one for one in live if promises.requests[one].submit.client == gone]:
                self.end(keep, promises, request)

    def end(self, keep: Callable[[list[Any]], None], promises: Promises, request: int) -> None:
        one = promises.requests[request]
        counts = (len(one.submit.prompt), len(one.token_ids), NO_COUNTS, {"QUEUED>FINISHED": 1})
        keep([ENDED, results.Ended(one.submit.client, request, "FINISHED", "stop", "", *counts), " the rest"])


def state(promises: Promises) -> Any:
    kept = {client: one for client, one in promises.kept.items() if one}
    return promises.clients, promises.requests, kept


def folded(folder: Path) -> Promises:
    promises = Promises(most_kept=3)
    fold(files(folder)[-1], promises)
    return promises


def copied(promises: Promises) -> Any:
    twin = Promises(most_kept=3)
    for fact in promises.facts():
        twin.add(fact)
    return state(twin)


SEEDS = st.integers(0, 1 << 30)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, segment_bytes=st.sampled_from([1, 300, 1 << 30]), num_turns=st.integers(0, 60))
def test_the_next_scheduler_knows_what_the_last_one_promised(
    tmp_path_factory: pytest.TempPathFactory, seed: int, segment_bytes: int, num_turns: int
) -> None:
    """However often the file was begun anew meanwhile, of which one alone is left."""
    folder, history = tmp_path_factory.mktemp("journal"), History(random.Random(seed))
    for _ in range(3):
        one = opened(folder, segment_bytes=segment_bytes)
        for _ in range(num_turns):
            history.turn(one.add, one.promises)
            one.commit()
        assert len(files(folder)) == 1
        assert state(folded(folder)) == state(one.promises)
        one.close()


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, where=st.floats(0, 1))
def test_a_torn_end_costs_whole_turns_that_nobody_heard_of(
    tmp_path_factory: pytest.TempPathFactory, seed: int, where: float
) -> None:
    folder, history = tmp_path_factory.mktemp("journal"), History(random.Random(seed))
    one = opened(folder)
    begun = one.path.stat().st_size
    states, ends = [copied(one.promises)], [begun]
    for _ in range(40):
        history.turn(one.add, one.promises)
        one.commit()
        states.append(copied(one.promises))
        ends.append(one.path.stat().st_size)
    one.close()
    path = files(folder)[-1]
    cut = begun + int(where * (ends[-1] - begun))
    os.truncate(path, cut)
    last = max(index for index, end in enumerate(ends) if end <= cut)
    assert state(folded(folder)) == states[last]


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, where=st.floats(0, 0.999), value=st.integers(1, 255))
def test_a_damaged_byte_is_told_with_its_place_or_is_in_the_last_turn(
    tmp_path_factory: pytest.TempPathFactory, seed: int, where: float, value: int
) -> None:
    folder, history = tmp_path_factory.mktemp("journal"), History(random.Random(seed))
    one = opened(folder)
    for _ in range(30):
        history.turn(one.add, one.promises)
        one.commit()
    whole = copied(one.promises)
    one.close()
    path = files(folder)[-1]
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= value
    path.write_bytes(data)
    try:
        found = state(folded(folder))
    except Refused as refused:
        assert str(path) in str(refused)
        assert any(word in str(refused) for word in ("at byte", "begins with", "record"))
    else:
        assert found != whole or len(list(read_records(path, MAGIC))) < 3


PLAIN = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.binary(max_size=5)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
PAYLOADS = st.lists(st.binary(min_size=1, max_size=60) | VALUES.map(journals._encoder.encode), max_size=4)


@settings(max_examples=100, deadline=None)
@given(payloads=PAYLOADS)
def test_whatever_records_hold_they_fold_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal-00000001.dspjournal"
    with RecordWriter(path, MAGIC) as file:
        for payload in payloads:
            file.append(payload)
    try:
        fold(path, Promises(most_kept=3))
    except Refused as refused:
        assert "record" in str(refused)


@pytest.mark.parametrize(
    "fact",
    [
        ["nonsense"], [], [CLIENT], [CLIENT, 1], [EMITTED, 9, 0, [1]], [EMITTED, 1, 5, [1]], [ENDED, ["Tick", 5], ""],
        [HEARD, 1, "r1"], [HEARD, 7, "r1"], [ACCEPTED, ["Tick", 5], "r", b""], [["client"], 1, "token"],
    ],
)  # fmt: skip
def test_a_fact_that_cannot_follow_is_refused_with_its_place(tmp_path: Path, fact: list[Any]) -> None:
    one = opened(tmp_path)
    one.add([CLIENT, 1, "token"])
    one.add([ACCEPTED, events.Submit(1, 1, (1, 2)), "r1", b"\x80"])
    one.commit()
    one._file.append(journals._encoder.encode((True, [fact])))
    one.close()
    with pytest.raises(Refused, match=r"record 3: a fact that does not fit"):
        folded(tmp_path)


def test_zeros_at_the_end_are_room_that_nobody_wrote_to_and_anywhere_else_damage(tmp_path: Path) -> None:
    one = opened(tmp_path)
    one.add([CLIENT, 1, "token"])
    one.commit()
    one.close()
    whole = one.path.read_bytes()
    one.path.write_bytes(whole + bytes(200_000))
    assert folded(tmp_path).clients == {1: "token"}
    one.path.write_bytes(whole + bytes(200_000) + b"x")
    with pytest.raises(Refused, match="zeros where a record should begin"):
        folded(tmp_path)


def test_a_folder_has_one_scheduler_at_a_time(tmp_path: Path) -> None:
    one = opened(tmp_path)
    with pytest.raises(Refused, match="another scheduler holds it"):
        opened(tmp_path)
    one.close()
    opened(tmp_path).close()


def test_a_scheduler_killed_between_two_files_leaves_the_newer_one_to_count(tmp_path: Path) -> None:
    one = opened(tmp_path)
    one.add([CLIENT, 1, "token"])
    one.commit()
    older = one.path
    data = older.read_bytes()
    one.close()
    two = opened(tmp_path)
    two.add([GONE, 1])
    two.commit()
    two.close()
    older.write_bytes(data)  # as if it had not been removed
    (tmp_path / "journal-00000003.new").write_bytes(b"half")
    three = opened(tmp_path)
    assert three.promises.clients == {}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["journal-00000003.dspjournal", "lock"]
    three.close()


@pytest.mark.parametrize(("sync", "waits"), [("accept", {"accepted": True, "emitted": False}), ("never", {})])
def test_when_the_disk_is_waited_for_is_a_setting(tmp_path: Path, sync: str, waits: dict[str, bool]) -> None:
    """What a power cut may cost: with `accept` no accepted request; tokens after it, which are decoded again."""
    one = opened(tmp_path, sync=sync)
    one.add([CLIENT, 1, "token"])
    one.add([ACCEPTED, events.Submit(1, 1, (1, 2)), "r1", b"\x80"])
    one.commit()
    assert (one._file.num_synced_bytes == one._file.num_bytes) is waits.get("accepted", False)
    one.add([EMITTED, 1, 0, [5]])
    one.commit()
    assert (one._file.num_synced_bytes == one._file.num_bytes) is waits.get("emitted", False)
    synced = one._file.num_synced_bytes
    one.close()
    os.truncate(one.path, synced)
    assert folded(tmp_path).live == ([1] if sync == "accept" else [])


def test_an_interval_passes_between_two_waits(tmp_path: Path) -> None:
    one = Journal(tmp_path, Promises(most_kept=3), sync="interval", interval_s=3600, segment_bytes=1 << 30)
    one.add([CLIENT, 1, "token"])
    one.commit()
    assert one._file.num_synced_bytes < one._file.num_bytes
    one._synced_ns -= 3601 * 10**9
    one.add([CLIENT, 2, "token"])
    one.commit()
    assert one._file.num_synced_bytes == one._file.num_bytes
    one.close()


def test_a_disk_that_takes_no_more_ends_the_scheduler_before_anybody_hears(tmp_path: Path) -> None:
    one = opened(tmp_path)
    with Path("/dev/full").open("wb", buffering=0) as full:
        one._file._file = full  # type: ignore[assignment]
        one.add([CLIENT, 1, "token"])
        with pytest.raises(JournalLost, match="No space left"):
            one.commit()


def test_a_turn_longer_than_a_record_still_counts_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_RECORD_BYTES", 100)
    monkeypatch.setattr(journals, "_FACTS_A_RECORD", 2)
    one = opened(tmp_path)
    for number in range(1, 8):
        one.add([CLIENT, number, "token"])
    one.commit()
    whole = one.path.stat().st_size
    one.close()
    assert sorted(folded(tmp_path).clients) == list(range(1, 8))
    os.truncate(one.path, whole - 1)
    assert folded(tmp_path).clients == {}


def test_a_folder_that_cannot_be_is_refused_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"journal = .*file.*expected a folder"):
        opened(tmp_path / "file")
