"""Calibration: rounds read as recorded, temperatures that help on rounds they have not seen, and files that fit."""

import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from dsparkd.scheduler.cli.calibrate import calibrate
from dsparkd.scheduler.core.policies.confidence import Confidence, chance
from dsparkd.scheduler.service.calibration_files import Calibration, read_calibration, write_calibration
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.trace.calibration import GRID, calibrated, ece, fit
from dsparkd.scheduler.trace.rounds import Round, rounds
from dsparkd.statemachine.errors import Refused
from hypothesis import given, settings
from hypothesis import strategies as st


def record(folder: Path, *passes: dict[str, Any]) -> Path:
    path = folder / "record.jsonl"
    path.write_text(json.dumps({"token_ids": [], "passes": list(passes)}) + "\n\n")
    return path


def one_pass(drafts: int, accepted: int, emitted: int, **fields: Any) -> dict[str, Any]:
    return {
        "start_pos": 9,
        "draft_token_ids": [1] * drafts,
        "accepted_len": accepted,
        "emitted_token_ids": [1] * emitted,
        "confidence_logits": [0.5] * drafts,
        **fields,
    }


def drawn(count: int, truth: list[float], *, seed: int) -> list[Round]:
    """Rounds of a head whose logits are `truth` times too large: position k stands by sigmoid(logit / truth[k])."""
    source = random.Random(seed)
    made = []
    for _ in range(count):
        logits = [source.uniform(-4, 6) * scale for scale in truth]
        accepted = 0
        while accepted < len(truth) and source.random() < chance(logits[accepted] / truth[accepted]):
            accepted += 1
        made.append(Round(tuple(logits), len(truth), accepted))
    return made


# ---- the arithmetic ----------------------------------------------------------------------------------------------


def test_the_error_is_the_mean_distance_of_prediction_and_outcome_by_bin() -> None:
    assert ece([0.92, 0.94, 0.12], [True, False, False]) == pytest.approx((2 * abs(0.93 - 0.5) + 0.12) / 3)
    assert ece([1.0, 0.0], [True, False]) == 0.0
    assert ece([], []) == 0.0


def test_scaling_finds_each_positions_own_temperature_and_helps_on_rounds_it_has_not_seen() -> None:
    truth = [3.0, 0.5, 2.0]
    found = calibrated(drawn(1200, truth, seed=5))
    for one, scale in zip(found, truth, strict=True):
        assert scale / 1.6 < one.temperature < scale * 1.6
        assert one.ece_after <= one.ece_before
        assert one.ece_held_out < 0.04
    assert found[0].ece_before > 2 * found[0].ece_held_out  # a head that is three times too sure
    assert [one.num_rounds for one in found] == [1200] * 3


@settings(derandomize=True, max_examples=8, deadline=None)
@given(scales=st.lists(st.sampled_from([0.3, 1.0, 4.0]), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_no_temperature_of_the_grid_is_better_given_those_before_it(scales: list[float], seed: int) -> None:
    recorded = drawn(60, scales, seed=seed)
    temperatures = fit(recorded)
    for index, chosen in enumerate(temperatures):

        def error(temperature: float, index: int = index) -> float:
            guesses, labels = [], []
            for one in recorded:
                product = 1.0
                for logit, each in zip(one.confidence_logits, [*temperatures[:index], temperature], strict=False):
                    product *= chance(logit / each)
                guesses.append(product)
                labels.append(one.accepted_len > index)
            return ece(guesses, labels)

        assert error(chosen) == pytest.approx(min(map(error, GRID)))


def test_among_equals_the_temperature_is_the_one_nearest_to_none() -> None:
    assert fit([Round((0.0, 0.0), 2, 1)] * 4) == [1.0, 1.0]


def test_only_what_was_verified_counts() -> None:
    found = calibrated([Round((0.1, 0.2, 0.3)[:length], length, 0) for length in (1, 1, 2, 3)])
    assert [one.num_rounds for one in found] == [4, 2, 1]


# ---- the record --------------------------------------------------------------------------------------------------


def test_rounds_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    path = record(
        tmp_path,
        one_pass(3, 2, 3),
        one_pass(0, 0, 1),  # no draft
        one_pass(3, 1, 2, confidence_logits=None),  # no head
        one_pass(5, 2, 2),  # cut behind the second token: what stood of the rest is not known
        one_pass(2, 2, 3),
    )
    assert list(rounds(path)) == [Round((0.5,) * 3, 3, 2), Round((0.5,) * 2, 2, 2), Round((0.5,) * 2, 2, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "line 1"),
        ('\n{"passes": 3}', "line 2"),
        ("not JSON", "line 1"),
        (json.dumps({"passes": [one_pass(2, 3, 4)]}), "lengths that do not fit"),
        (json.dumps({"passes": [one_pass(2, 1, 2, confidence_logits=[0.1])]}), "lengths that do not fit"),
        (json.dumps({"passes": [one_pass(2, 1, 2, confidence_logits=None)]}), "no round with confidences"),
        ("", "no round with confidences"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(text)
    with pytest.raises(Refused, match=said):
        calibrated(list(rounds(path)))


# ---- the file ----------------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "format": 1,
    "dsparkd": "0",
    "fingerprint": {"drafter": "d1"},
    "temperatures": [1.5, 0.5],
    "num_rounds": [9, 8],
    "ece_before": [0.1, 0.1],
    "ece_after": [0.01, 0.01],
}


def test_a_file_is_read_as_it_was_written_and_becomes_the_policys(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    made = Calibration(**VALUES)
    write_calibration(path, made)
    assert read_calibration(path) == made
    chosen = Settings(target="t", policy="confidence", confidence_calibration=str(path), max_draft_len=3)
    fitted = {"temperatures": (1.5, 0.5), "fingerprint": (("drafter", "d1"),)}
    assert chosen.draft_policy() == Confidence(max_len=3, **fitted)
    assert Settings(target="t", policy="confidence").draft_policy() == Confidence()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"temperatures": [0.0, -1.0, 1.0, float("inf")]},
            ("temperatures[0] = 0.0", "[1] = -1.0", "[3] = inf", "3 pro"),
        ),
        ({"temperatures": []}, ("expected one for each position",)),
        ({"format": 2, "temperatures": [-1.0]}, ("format = 2: expected 1", "temperatures[0]", "2 problem(s)")),
        ({"temperatures": "x"}, ("cannot be read",)),
        ({"wibble": 1}, ("wibble",)),
    ],
)
def test_a_bad_file_is_refused_with_every_fault_before_anything_starts(
    fields: dict[str, Any], said: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({**VALUES, **fields}))
    bind = f"ipc://{tmp_path}/engine"
    with pytest.raises(Refused) as caught:
        Service(Settings(target="scripted:", bind=bind, policy="confidence", confidence_calibration=str(path)))
    assert all(part in str(caught.value) for part in (str(path), *said))


def test_a_calibration_without_the_policy_is_refused_with_both_keys(tmp_path: Path) -> None:
    for fields in ({}, {"policy": "auto"}, {"max_concurrency": 3}):
        with pytest.raises(Refused, match="confidence_calibration = 'x': expected policy = 'confidence' beside it"):
            Settings(target="t", confidence_calibration="x", **fields)
    with pytest.raises(Refused, match="confidence_calibration = 'x': expected no such setting"):
        settings = Settings(target="t", bind=f"ipc://{tmp_path}/e", policy="confidence", confidence_calibration="x")
        Service(settings, policy=Confidence())


def test_the_command_shows_a_table_writes_a_file_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output, plot = tmp_path / "record.jsonl", tmp_path / "calibration.json", tmp_path / "plot.svg"
    passes = [one_pass(3, number % 4, number % 4 + 1) for number in range(40)]
    path.write_text(json.dumps({"passes": passes}))
    calibrate(path, output, plot, None)
    said = capsys.readouterr()
    assert "expected calibration error of 40 rounds" in said.out
    assert "does not say which models" in said.err
    made = read_calibration(output)
    assert (len(made.temperatures), made.num_rounds, made.fingerprint) == (3, [40, 40, 40], {})
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    with pytest.raises(Refused, match=r"--plot .*: cannot be written"):
        calibrate(path, output, tmp_path / "nowhere" / "plot.svg", None)
