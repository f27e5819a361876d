"""The report: one page that says what the replay found, and a browser that draws it without a complaint."""

import base64
import json
import re
import shutil
import subprocess
import zlib
from array import array
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.trace_writer import TraceWriter, described
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.columns import packed
from dsparkd.scheduler.trace.report import histogram, of_runs, of_trace, page
from dsparkd.scheduler.trace.simulate import StepSeen
from dsparkd.scheduler.trace.spans import KINDS
from hypothesis import given
from hypothesis import strategies as st

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET += ("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000")


class Recorded(Bench):
    """A bench that records everything from its first input on."""

    writer: TraceWriter | None = None
    path: Path

    def send(self, event: events.Input) -> list[Any]:
        if self.writer is None:
            self.writer = TraceWriter(self.path, self.core, policy=described(self.core.policy, None))
        outputs = super().send(event)
        self.writer.took(event, outputs, name=f"chat-{event.request}" if type(event) is events.Submit else None)
        self.writer.end_turn()
        return outputs


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bench]:
    """A run with queueing, zero-draft requests, a cancel in flight and a worker's death."""
    Recorded.path = tmp_path_factory.mktemp("report") / "run.dsptrace"
    one = Recorded(limits=Limits(num_slots=2, max_model_len=128, max_queue=20))
    for request in range(6):
        one.submit(request, [request, 5, 6, 7], max_tokens=20, max_draft_len=0 if request == 1 else None)
    for _ in range(4):
        one.tick()
        one.answer()
    one.tick()
    one.send(events.Cancel(0, 0))
    one.tick()
    one.answer()
    one.lose_worker()
    one.revive()
    one.run()
    assert one.writer is not None
    one.writer.close()
    return Recorded.path, one


def column(raw: list[str]) -> list[float]:
    code = {"u16": "H", "u32": "I", "f64": "d"}[raw[0]]
    made = array(code)
    made.frombytes(base64.b64decode(raw[1]))
    return made.tolist()


def test_the_page_holds_every_step_and_every_state_that_the_run_had(recorded: tuple[Path, Bench]) -> None:
    path, one = recorded
    data = of_trace(path)
    steps = data["steps"][""]
    reported = [report for report in one.reports if isinstance(report, events.Report)]
    assert len(column(steps["begin"])) == len(reported)
    emitted = [sum(len(getattr(row, "token_ids", ())) for row in report.rows) for report in reported]
    assert column(steps["emitted"]) == emitted
    kinds = {KINDS[int(kind)] for kind in column(data["spans"]["kind"])}
    assert {"queue", "positive", "zero", "retiring"} <= kinds
    assert data["spans"]["labels"][-2:] == ["slot 0", "slot 1"]
    assert "chat-3" in data["spans"]["names"].values()
    lanes, begins, ends = (column(data["spans"][name]) for name in ("lane", "begin", "end"))
    assert begins == sorted(begins)
    by_lane: dict[float, float] = {}
    for lane, begin, end in zip(lanes, begins, ends, strict=True):
        assert by_lane.get(lane, 0.0) <= begin <= end <= data["end_ms"]  # one thing at a time on a lane
        by_lane[lane] = end


def test_the_page_needs_nothing_from_anywhere(recorded: tuple[Path, Bench]) -> None:
    text = page("a <title> & more", of_trace(recorded[0]))
    assert "a &lt;title> &amp; more" in text
    for needs in ("src=", "href=", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert needs not in text, needs
    raw = re.search(r'id="data">([^<]+)</script>', text)
    assert raw is not None
    assert json.loads(zlib.decompress(base64.b64decode(raw[1])))["steps"]


@given(values=st.lists(st.floats(0, 1e6), max_size=60))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    found = histogram(values)
    assert sum(found["counts"]) == len(values)
    assert found["edges"] == sorted(found["edges"])


@given(values=st.lists(st.integers(0, 100_000), max_size=20))
def test_columns_come_back_as_they_were_or_cut_at_the_top(values: list[int]) -> None:
    assert column(packed("u16", values)) == [min(one, 0xFFFF) for one in values]
    assert column(packed("f64", values)) == values


def drawn(text: str, folder: Path) -> str:
    """The page as a browser has it after its scripts ran."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{path}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_a_trace_without_a_complaint(recorded: tuple[Path, Bench], tmp_path: Path) -> None:
    found = drawn(page("run", of_trace(recorded[0])), tmp_path)
    assert 'data-ready="yes"' in found
    assert "data-error" not in found
    marks = re.search(r'data-marks="(\d+)"', found)
    assert marks is not None
    assert int(marks[1]) >= 10
    assert found.count('class="uplot') == 3  # rows, draft lengths, times
    assert found.count('tabindex="0"') == found.count("<section")
    for label in ("requests on slots, by state", "drafts that stood", "time to the first token", "time between tokens"):
        assert label in found


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_policies_side_by_side(tmp_path: Path) -> None:
    seen = [StepSeen(10**7 * index, 10**7 * index + 8 * 10**6, 3, 2, 10, 4, 5) for index in range(50)]
    rows = [{"policy": name, "tokens_per_s": rate} for name, rate in (("auto", 900.0), ("fixed:0", 400.0))]
    found = drawn(page("policies", of_runs("two", rows, {"auto": seen, "fixed:0": seen})), tmp_path)
    assert 'data-ready="yes"' in found
    assert "data-error" not in found
    assert found.count('class="uplot') == 6
    assert "fixed:0" in found
