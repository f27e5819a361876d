"""Stop strings: the same ids, text and counts at any draft length, and nobody ever hears a part of one."""

from pathlib import Path
from typing import Any

import dsparkd
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.stops import StopFinder
from dsparkd.scheduler.service.text import IncrementalText, tokenizer_beside
from hypothesis import given, settings
from hypothesis import strategies as st
from stop_support import PIECES, Pieces, StopBench, plain

TARGET = Path(dsparkd.__file__).parent / "models/pairs/stdlib-small/target"
LAW = settings(derandomize=True, max_examples=150, deadline=None)
STOPS = st.lists(st.text("ab\né", min_size=1, max_size=4), min_size=1, max_size=3)
LONG = 40


class Drawn:
    """A policy that draws a length for each row, zero included."""

    name, version, max_len = "drawn", 1, None

    def __init__(self, data: Any) -> None:
        self.data = data

    def decide(self, rows: Any, ledger: Any) -> list[int]:
        return [self.data.draw(st.integers(0, 7), label="draft_len") for _ in rows]


def reference(prompt: list[int], seed: int, length: int = LONG) -> list[int]:
    return StopBench("fixed:0", seed=seed).solo(prompt, length)


def expect_plain(bench: StopBench, request: int, tokens: list[int], stops: list[str], *, min_tokens: int = 0) -> None:
    keep_len, text, reason = plain(tokens, stops, min_tokens=min_tokens)
    (ended,) = bench.ended[request]
    assert (bench.tokens.get(request, []), ended.reason) == (tokens[:keep_len], reason)
    assert ended.output_len == keep_len
    assert bench.told[request] == text


@LAW
@given(data=st.data(), stops=STOPS, seed=st.integers(0, 500), mean=st.floats(1, 8), min_tokens=st.integers(0, 12))
def test_the_output_ends_before_a_stop_string_at_any_draft_length_and_after_any_death(
    data: Any, stops: list[str], seed: int, mean: float, min_tokens: int
) -> None:
    limits = Limits(num_slots=2, max_model_len=64, max_restarts=99, restart_budget=99, max_step_tokens=16)
    bench = StopBench(Drawn(data), limits=limits, seed=seed, mean=mean)
    for request in range(2):
        bench.ask(request, [request, 1], stops, min_tokens=min_tokens, max_tokens=LONG)
    for _ in range(data.draw(st.integers(0, 3), label="deaths")):
        for _ in range(data.draw(st.integers(1, 4), label="steps")):
            bench.tick()
            bench.answer()
        if bench.core.ledger.requests:
            bench.lose_worker()
            bench.revive()
    bench.run()
    for request in range(2):
        expect_plain(bench, request, reference([request, 1], seed), stops, min_tokens=min_tokens)
        counts = bench.ended[request][0].counts
        rows = [one for one in bench.outputs if isinstance(one, results.Tokens) and one.request == request]
        assert counts.num_emitted_drafting == sum(len(one.token_ids) for one in rows if one.draft_len)
        assert counts.num_accepted == sum(one.accepted_len for one in rows)


@LAW
@given(stops=STOPS, seed=st.integers(0, 500), cuts=st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_what_may_belong_to_a_stop_string_is_held_back_and_nothing_else(
    stops: list[str], seed: int, cuts: list[int]
) -> None:
    """Whatever is told is told for good; whatever is held back, some continuation makes a part of a stop string."""
    finder, output = StopFinder(Pieces(), stops), list[int]()
    tokens, told_len = reference([1], seed), 0
    while cuts and tokens:
        row, tokens = tokens[: cuts[0]], tokens[cuts.pop(0) :]
        hold_len, stop = finder.look(output, row, frozenset())
        assert (hold_len, stop) == finder.look(output, row, frozenset()), "asking twice is asking once"
        if stop is not None:
            assert stop.keep_len >= told_len
            return
        output += row
        told_len = max(told_len, len(output) - hold_len)
        if hold_len:
            text, before = Pieces().decode(output), Pieces().decode(output[: len(output) - hold_len])
            halves = text.endswith("\N{REPLACEMENT CHARACTER}")
            assert halves or any(
                text.endswith(one[:length]) and len(text) - length >= len(before)
                for one in stops for length in range(1, len(one))
            )  # fmt: skip


def test_l052_a_stop_string_inside_the_limit_wins_and_the_limit_before_its_end_wins() -> None:
    block = [1, 0, 7, 1, 1, 1]  # b a \n b b b
    for max_tokens, expected, reason in ((5, [1], "stop"), (3, [1], "stop"), (2, [1, 0], "length")):
        bench = StopBench(target=[9, *block], acceptance=[7])
        bench.ask(0, [1], ["a\n"], max_tokens=max_tokens)
        bench.run()
        assert (bench.tokens[0], bench.ended[0][0].reason) == (expected, reason)


@pytest.mark.parametrize(("stop_id", "kept"), [(0, [1, 0]), (7, [1]), (1, [1])])
def test_of_a_stop_string_and_a_stop_id_the_one_that_is_complete_first_wins_and_the_string_if_both_are(
    stop_id: int, kept: list[int]
) -> None:
    bench = StopBench(target=[9, 1, 0, 7, 2, 2], acceptance=[7])
    bench.ask(0, [1], ["a\n"], max_tokens=5, stop_token_ids=frozenset({stop_id}))
    bench.run()
    assert (bench.tokens[0], bench.ended[0][0].reason) == (kept, "stop")


def test_a_stop_string_behind_a_stop_id_adds_nothing_to_the_text() -> None:
    bench = StopBench(target=[9, 2, 2, 1, 3, 7], acceptance=[7])  # ab ab b ba \n: it begins inside the token behind b
    bench.ask(0, [1], ["a\n"], max_tokens=5, stop_token_ids=frozenset({1}))
    bench.run()
    assert (bench.tokens[0], bench.told[0]) == ([2, 2, 1], "ababb")


def test_a_stop_string_that_begins_inside_a_token_takes_the_token_and_leaves_its_text() -> None:
    bench = StopBench(target=[9, 1, 3, 7, 1, 1], acceptance=[7])  # b ba \n
    bench.ask(0, [1], ["a\n"], max_tokens=5)
    bench.run()
    assert bench.tokens[0] == [1]
    assert bench.told[0] == "bb"
    assert bench.ended[0][0].output_len == 1


@pytest.mark.parametrize("draft_len", range(8))
def test_l054_a_stop_string_at_any_place_of_a_block_ends_the_output_there(draft_len: int) -> None:
    tokens = [0, 0, 0, 1, 7, 1, 0, 0, 1, 0, 0]
    for place in range(len(tokens) - 1):
        stops = [Pieces().decode(tokens[place : place + 2])]
        bench = StopBench(f"fixed:{draft_len}", target=[9, *tokens, *[4] * 9], acceptance=[7])
        bench.ask(0, [1], stops, max_tokens=11)
        bench.run()
        expect_plain(bench, 0, tokens, stops)


def test_l082_what_a_stop_string_takes_back_is_neither_emitted_nor_accepted() -> None:
    bench = StopBench("fixed:1", target=[9, 1, 1, 0, 1, 0, 7, 2], acceptance=[7])  # rows: b, b a, b a, \n ..
    bench.ask(0, [1], ["abab", "aba\n"], max_tokens=7)
    bench.run()
    counts = bench.ended[0][0].counts
    assert bench.tokens[0] == [1, 1]
    assert (counts.num_emitted_drafting, counts.num_accepted) == (1, 1)
    assert counts.num_passes == 3, "the passes were run all the same"


def test_what_is_held_back_when_a_request_is_cancelled_is_never_told_and_not_counted() -> None:
    bench = StopBench("fixed:0", target=[9, 1, 0, 0, 0], acceptance=[7])
    bench.ask(0, [1], ["aaaaaa"], max_tokens=9)
    for _ in range(4):
        bench.tick()
        bench.answer()
    assert (bench.tokens[0], bench.core.ledger.requests[0].output) == ([1], [1, 0, 0, 0])
    (repeated,) = bench.core.handle(events.Resume(0, 0, 0))
    assert isinstance(repeated, results.Tokens)
    assert repeated.token_ids == [1], "who resumes hears no more than was told"
    bench.send(events.Cancel(0, 0))
    (ended,) = bench.ended[0]
    assert (ended.reason, ended.output_len) == ("cancelled", 1)


def test_the_end_of_an_output_tells_what_was_held_back() -> None:
    bench = StopBench(target=[9, 1, 0, 0, 0], acceptance=[1])
    bench.ask(0, [1], ["aaaaaa"], max_tokens=4)
    bench.run()
    assert (bench.tokens[0], bench.told[0], bench.ended[0][0].reason) == ([1, 0, 0, 0], "baaa", "length")


def test_a_report_that_no_lawful_worker_sends_is_not_looked_at_and_ends_the_worker() -> None:
    bench = StopBench("fixed:0", target=[9, 1, 0, 7, 1], acceptance=[7])
    bench.ask(0, [1], ["a\n"], max_tokens=4)
    bench.tick()
    command, bench.in_flight = bench.in_flight, None
    assert command is not None
    (row,) = bench.worker.run_rows(command.rows)
    assert isinstance(row, events.Emitted)
    row.token_ids = [-1]  # no tokenizer has this
    bench.send(events.Report(command.session, command.step_id, [row]))
    bench.revive()
    bench.run()
    assert bench.tokens[0] == [1]


@pytest.mark.parametrize("seed", range(6))
def test_a_recovered_request_ends_before_its_stop_string_wherever_the_scheduler_died(seed: int) -> None:
    tokens, stops = reference([1], seed), ["ab\n", "bab", "\na"]
    keep_len, text, reason = plain(tokens, stops)
    for num_told in range(min(keep_len, 12)):
        bench = StopBench("fixed:3", seed=seed, mean=3.0)
        bench.finders[0] = StopFinder(Pieces(), stops)
        bench.texts[0], bench.tokens[0] = IncrementalText(Pieces()), tokens[:num_told]
        bench.told[0] = bench.texts[0].push(tokens[:num_told])
        options = events.Options(max_tokens=LONG, stop=tuple(stops))
        bench.send(events.ClientHello(0))
        bench.send(events.Recover(events.Submit(0, 0, (1,), options), tuple(tokens[:num_told])))
        bench.run()
        assert (bench.tokens[0], bench.told[0], bench.ended[0][0].reason) == (tokens[:keep_len], text, reason)


def test_a_late_report_moves_no_search() -> None:
    bench = StopBench("fixed:0", target=[9, 1, 0, 7, 1], acceptance=[7])
    bench.ask(0, [1], ["a\n"], max_tokens=4)
    for _ in range(2):
        bench.tick()
        bench.answer()
        bench.send(bench.reports[0])
    bench.run()
    assert bench.tokens[0] == [1]


def test_pieces_cover_what_the_tests_speak_of() -> None:
    assert {PIECES[one] for one in (0, 1, 7, 3)} == {b"a", b"b", b"\n", b"ba"}


@settings(LAW, max_examples=60)
@given(data=st.data(), cuts=st.lists(st.integers(1, 8), min_size=1, max_size=30))
def test_real_tokens_end_before_their_stop_string_and_no_part_of_it_was_told(data: Any, cuts: list[int]) -> None:
    tokenizer = tokenizer_beside(str(TARGET))
    assert tokenizer is not None
    token_ids = tokenizer.encode("def grüße(self):\n    return '€ – 你好 🙂'\n\n    # 你好 again\n")
    whole = tokenizer.decode(token_ids)
    place = data.draw(st.integers(0, len(whole) - 5), label="place")
    stop = whole[place : place + data.draw(st.integers(1, 5), label="length")]
    finder, text, output, told_len = StopFinder(tokenizer, [stop, "never"]), IncrementalText(tokenizer), list[int](), 0
    told = ""
    for cut in [*cuts, *[5] * len(token_ids)]:
        row = token_ids[len(output) : len(output) + cut]
        hold_len, found = finder.look(output, row, frozenset())
        output += row
        end = len(output) - hold_len if found is None else found.keep_len
        told += text.push(output[told_len:end])
        told_len = end
        if found is not None:
            break
        assert whole.startswith(told)
        assert stop not in told
    assert told + text.flush() + finder.rest == whole[: whole.index(stop)]
