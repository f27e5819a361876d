"""Simulations: arrivals read as published, the real core in virtual time, the same outcome every time."""

from pathlib import Path

import pytest
from dsparkd.scheduler.core.policies import parse_policy
from dsparkd.scheduler.trace.arrivals import Arrival, read_arrivals, write_arrivals
from dsparkd.scheduler.trace.fitting import least_squares
from dsparkd.scheduler.trace.outcome import outcome
from dsparkd.scheduler.trace.published import PUBLISHED, published
from dsparkd.scheduler.trace.simulate import VOCAB, Run, limits_for, simulate
from dsparkd.scheduler.trace.simulated import Acceptance
from dsparkd.scheduler.trace.step_times import point_times, points_of
from dsparkd.statemachine.errors import Refused
from hypothesis import given
from hypothesis import strategies as st

EXTRACTS = Path(__file__).parent / "arrivals"
TIMES = points_of(((1, 100.0), (64, 60.0), (512, 10.0)), 0.1, "made up", where="test")
LUCK = Acceptance.of_mean(3.4, 7)
ARRIVALS = [
    Arrival(at_ns=index * 30_000_000, prompt_len=20 + 7 * index % 90, output_len=5 + index % 40) for index in range(80)
]


def run(policy: str, arrivals: list[Arrival] = ARRIVALS, *, slots: int = 8, seed: int = 0) -> Run:
    limits = limits_for(arrivals, num_slots=slots, max_step_tokens=64, block_len=7)
    return simulate(arrivals, parse_policy(policy), name=policy, limits=limits, times=TIMES, acceptance=LUCK, seed=seed)


# ---- arrivals ---------------------------------------------------------------------------------------------------

FIRST = {
    "azure2023_code.csv": (0, 4808, 10),
    "azure2023_conv.csv": (0, 374, 44),
    "mooncake_conversation.jsonl": (0, 6758, 500),
    "vidur_splitwise_conv.csv": (0, 374, 44),
    "llmservingsim_example.jsonl": (0, 10, 70),
}
SECOND_MS = {
    "azure2023_code.csv": 52.0,
    "azure2023_conv.csv": 4314.579,
    "mooncake_conversation.jsonl": 0.0,
    "vidur_splitwise_conv.csv": 4314.579,
    "llmservingsim_example.jsonl": 301.012144,
}


@pytest.mark.parametrize("name", sorted(FIRST))
def test_published_formats_are_told_by_their_first_line_and_read_in_their_units(name: str) -> None:
    found = read_arrivals(EXTRACTS / name)
    assert (found[0].at_ns, found[0].prompt_len, found[0].output_len) == FIRST[name]
    assert found[1].at_ns / 1e6 == SECOND_MS[name]
    assert [one.at_ns for one in found] == sorted(one.at_ns for one in found)


def test_equal_prefix_ids_are_equal_tokens_and_everything_else_is_not() -> None:
    one = Arrival(at_ns=0, prompt_len=1300, output_len=1, prefix_ids=(0, 1, 2))
    other = Arrival(at_ns=0, prompt_len=1100, output_len=1, prefix_ids=(0, 9, 3))
    mine, its = one.prompt(5, vocab_size=VOCAB), other.prompt(6, vocab_size=VOCAB)
    assert (len(mine), len(its)) == (1300, 1100)
    assert mine[:512] == its[:512]
    assert mine[512:513] != its[512:513]
    assert mine == one.prompt(5, vocab_size=VOCAB)
    assert mine[-1] != one.prompt(7, vocab_size=VOCAB)[-1]


@given(
    arrivals=st.lists(
        st.builds(
            Arrival,
            at_ns=st.integers(0, 10**12).map(lambda value: value * 1000),
            prompt_len=st.integers(1, 10**6),
            output_len=st.integers(1, 10**6),
            prefix_ids=st.lists(st.integers(0, 10**6), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_our_own_format_holds_everything(tmp_path_factory: pytest.TempPathFactory, arrivals: list[Arrival]) -> None:
    path = tmp_path_factory.mktemp("own") / "a.jsonl"
    ordered = sorted(arrivals, key=lambda one: one.at_ns)
    write_arrivals(path, ordered, {"source": "drawn"})
    found = read_arrivals(path)
    first = ordered[0].at_ns
    assert [(one.at_ns, one.prompt_len, one.output_len, one.prefix_ids) for one in found] == [
        (one.at_ns - first, one.prompt_len, one.output_len, one.prefix_ids) for one in ordered
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no arrival"),
        ("a,b,c\n1,2,3\n", "its format"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no arrival"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n1.0,x,3\n", "line 2"),
        ('{"at_ms": 0, "prompt_len": 0, "output_len": 3}\n', "expected 1"),
        ('{"at_ms": 0, "prompt_len": 5, "output_len": 3, "colour": 1}\n', "unknown keys"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [[[', "line 1"),
        ('{"at_ms": 0, "prompt_len": 99999999999, "output_len": 3}\n', "expected 1"),
        ('{"at_ms": 0, "prompt_len": 2.7, "output_len": 3}\n', "whole number"),
        ('{"at_ms": Infinity, "prompt_len": 5, "output_len": 3}\n', "a time of inf"),
        ('{"at_ms": 0, "prompt_len": Infinity, "output_len": 3}\n', "whole number"),
        ('["at_ms"]\n', "line 1"),
    ],
)
def test_bad_arrivals_are_refused_with_the_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    with pytest.raises(Refused, match=told):
        read_arrivals(path)


# ---- simulations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fixed:0", "fixed:7", "schedule:1=7/4=3/8=1", "auto"])
def test_every_request_emits_what_it_asked_for_and_a_run_is_the_same_every_time(policy: str) -> None:
    one = run(policy)
    assert [seen.num_tokens for seen in one.requests] == [arrival.output_len for arrival in ARRIVALS]
    numbers = outcome(one, num_slots=8)
    assert numbers == outcome(run(policy), num_slots=8)
    assert numbers["tokens_accepted"] <= numbers["tokens_verified"]
    assert all(seen.at_ns <= seen.seated_ns <= seen.first_ns <= seen.last_ns for seen in one.requests)


def test_drafting_saves_steps_and_resting_verifies_nothing() -> None:
    drafting, resting = run("fixed:7"), run("fixed:0")
    assert drafting.totals["passes"] < 0.6 * resting.totals["passes"]
    assert resting.totals["tokens_verified"] == 0
    assert outcome(resting, num_slots=8)["zero_draft_share"] == 1.0


def test_a_full_block_of_a_lone_request_emits_the_mean_that_was_asked_for() -> None:
    one = run("fixed:7", [Arrival(at_ns=0, prompt_len=4, output_len=20_000)])
    assert outcome(one, num_slots=8)["acceptance_length"] == pytest.approx(3.4, rel=0.03)


def test_another_seed_is_other_luck() -> None:
    assert outcome(run("fixed:7", seed=1), num_slots=8) != outcome(run("fixed:7", seed=2), num_slots=8)


def test_shared_prefixes_are_seeded_once() -> None:
    shared = [Arrival(at_ns=10**9 * index, prompt_len=1100, output_len=4, prefix_ids=(1, 2)) for index in range(6)]
    assert outcome(run("fixed:7", shared), num_slots=8)["prefix_tokens_reused"] == 5 * 1024


def test_requests_that_wait_for_a_slot_are_seen_to_wait() -> None:
    burst = [Arrival(at_ns=0, prompt_len=30, output_len=30) for _ in range(10)]
    assert outcome(run("fixed:0", burst, slots=1), num_slots=1)["queue_ms_p99"] > 1000
    assert outcome(run("fixed:0", burst, slots=10), num_slots=10)["queue_ms_p99"] < 1000


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_say_where_they_are_from_and_grow_with_the_work(name: str) -> None:
    times = published(name)
    assert "http" in times.note or "docs/" in times.note
    costs = times.costs
    assert costs.target(64, 512) > costs.target(64, 64) >= costs.target(1, 1) > 0


def test_least_squares_finds_the_weights_of_what_it_is_given() -> None:
    lines = [[1.0, index % 7, index * index % 11, 0.0] for index in range(60)]
    wanted = [5 + 3 * line[1] - 2 * line[2] for line in lines]
    assert least_squares(lines, wanted) == pytest.approx([5, 3, -2, 0], abs=1e-3)


@pytest.mark.parametrize("points", ["[]", '{"sps": [[1, 1e-300]]}', '{"sps": [[1e400, 100]]}'])
def test_bad_points_are_refused_with_the_file(points: str, tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text(points)
    with pytest.raises(Refused, match=r"points\.json"):
        point_times(path)


def test_a_scale_beyond_any_model_is_refused_before_there_are_tokens() -> None:
    for factor in (1e30, float("inf"), float("nan")):
        with pytest.raises(Refused, match="scale"):
            ARRIVALS[0].scaled(factor)


def test_a_policy_that_the_drafter_cannot_serve_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="wants 9 drafts"):
        run("fixed:9")


def test_acceptance_is_refused_beyond_what_a_block_can_emit() -> None:
    for mean in (0.5, 8.5):
        with pytest.raises(Refused, match="acceptance length of 1"):
            Acceptance.of_mean(mean, 7)
    with pytest.raises(Refused, match="from 0 to 1"):
        Acceptance((0.5, 1.5))
