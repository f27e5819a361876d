"""The commands around traces: what they print, what they write, and how they end."""

import json
from pathlib import Path
from typing import Any

import pytest
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.cli.app import run
from dsparkd.scheduler.cli.engines import Pair

ROOT = Path(__file__).parent.parent
DAY = ROOT / "traces" / "0001-cancels-a-death-faults-and-a-drain.dsptrace"
ARRIVALS = ROOT / "trace" / "arrivals" / "azure2023_conv.csv"
SHIPPED = shipped_pair()
PAIR = Pair(SHIPPED.target, SHIPPED.drafter, SHIPPED.prompts)


def told(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, str]:
    status = run(PAIR, [str(one) for one in argv])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_replay_that_is_equal_ends_with_0_and_one_that_differs_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = told(capsys, "replay", DAY)
    assert (status, "every output is what it was" in text) == (0, True)
    status, text = told(capsys, "replay", DAY, "--policy", "fixed:2")
    assert status == 1
    assert "is answered otherwise" in text
    assert "REQUEST" in text  # the transitions that led there
    assert "now: " in text


def test_a_request_and_a_step_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = told(capsys, "replay", DAY, "--request", 3)
    assert "'Submit', 0, 3" in text
    assert "(r3)" in text
    assert "'Submit', 0, 4" not in text
    _, text = told(capsys, "replay", DAY, "--step", 5, "--until", 60)
    assert "'Command'" in text
    assert "'Report'" in text
    status, text = told(capsys, "replay", DAY, "--step", 5, "--request", 3)
    assert (status, "expected one of them" in text) == (1, True)


def test_a_trace_is_shown_summed_up_cut_and_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, text = told(capsys, "trace", "show", DAY, "--from", 3, "--limit", 2)
    assert status == 0
    assert len(text.splitlines()) == 3
    _, text = told(capsys, "trace", "stats", DAY)
    assert "acceptance_length" in text
    part, lines = tmp_path / "part.dsptrace", tmp_path / "part.jsonl"
    assert told(capsys, "trace", "cut", DAY, "--from", 10, "--until", 30, "-o", part)[0] == 0
    assert told(capsys, "replay", part)[0] == 0
    assert told(capsys, "trace", "export", part, "-o", lines, "--outputs")[0] == 0
    header, snapshot, *rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert header["limits"]["num_slots"] == 3
    assert snapshot == {"kind": "snapshot"}
    assert [row["index"] for row in rows] == list(range(20))
    assert all(row["same"] and row["type"] and isinstance(row["outputs"], list) for row in rows)
    status, text = told(capsys, "trace", "export", part, "-o", lines)
    assert (status, "expected a new file" in text) == (1, True)


@pytest.mark.parametrize("command", [["replay"], ["trace", "show"], ["trace", "stats"], ["report", "-o", "x.html"]])
def test_what_is_no_trace_is_one_clear_line(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "bad"
    bad.write_text("no trace")
    status, text = told(capsys, *command, bad)
    assert status == 1
    assert text.startswith("dsparkd: ")
    assert str(bad) in text


def test_simulate_compares_policies_and_writes_what_it_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, page = tmp_path / "s.json", tmp_path / "s.html"
    flags = ["--cost-table", "a100-llama2-7b", "--acceptance", "3.4", "--policy", "auto,schedule:1=7/4=3/8=1,fixed:0"]
    status, _ = told(capsys, "simulate", ARRIVALS, *flags, "--json", out, "--report", page, "--scale", "0.5")
    assert status == 0
    found = json.loads(out.read_text())
    assert found["scale"] == 0.5
    assert "lmdeploy" in found["step_times"]
    assert [row["policy"] for row in found["rows"]] == ["auto", "schedule:1=7/4=3/8=1", "fixed:0"]
    assert "uPlot" in page.read_text()
    again = tmp_path / "again.json"
    assert told(capsys, "simulate", ARRIVALS, *flags, "--json", again, "--scale", "0.5")[0] == 0
    assert json.loads(again.read_text()) == found


def test_simulate_takes_arrivals_acceptance_and_times_from_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "s.json"
    assert told(capsys, "simulate", DAY, "--policy", "fixed:7", "--json", out)[0] == 0
    found = json.loads(out.read_text())
    assert found["num_slots"] == 3
    assert "fitted to" in found["step_times"]
    assert len(found["acceptance"]["chances"]) == 7


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--cost-table", "nowhere"], "expected a file, or one of a100-llama2-7b"),
        (["--acceptance", "many"], "expected a file or a number"),
        (["--acceptance", "9"], "acceptance length of 1..8"),
        (["--policy", "confidence"], "no confidences"),
        (["--policy", "fixed"], "policy = 'fixed'"),
        (["--format", "csv"], "expected one of arrivals"),
        (["--overhead-us", "5"], "--overhead-us: "),
        (["--json", "/dev/full"], "--json /dev/full"),
    ],
)
def test_bad_flags_of_simulate_are_one_clear_line(
    flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"--cost-table": "a100-llama2-7b", "--acceptance": "3"}
    given = [part for name, value in good.items() if name not in flags for part in (name, value)]
    status, text = told(capsys, "simulate", ARRIVALS, *given, *flags)
    assert status == 1
    assert expected in text


def test_imported_arrivals_fit_the_length_that_was_asked_for_and_say_how(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("azure2023_conv.csv", "mooncake_conversation.jsonl", "llmservingsim_example.jsonl"):
        out = tmp_path / f"{name}.out"
        assert told(capsys, "trace", "import", ROOT / "trace" / "arrivals" / name, "-o", out, "--max-len", 128)[0] == 0
        about, *rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert about["about"]["source"] == name
        assert about["about"]["scale"] <= 1
        assert 64 <= max(row["prompt_len"] + row["output_len"] for row in rows) <= 128
        flags = ["--cost-table", "a100-llama2-7b", "--acceptance", "3", "--policy", "fixed:7"]
        assert told(capsys, "simulate", out, *flags)[0] == 0
    status, text = told(capsys, "trace", "import", out, "-o", out)
    assert (status, "expected a new file" in text) == (1, True)
