"""Settings: one refusal that lists everything; what passes resolves to the core's limits and the worker's Init."""

from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.service.config import Settings
from dsparkd.statemachine.errors import Refused


def test_every_problem_is_listed_in_one_refusal(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(
        'num_slot = 3\nwibble = 1\nmax_queue = 0\nacceptance = "fast"\nstep_deadline_s = "long"\nnum_threads = true\n'
    )
    with pytest.raises(Refused) as caught:
        Settings.load(path)
    assert caught.value.code == "BAD_CONFIG"
    text = str(caught.value)
    for part in (
        str(path),
        "num_slot: unknown, did you mean num_slots?",
        "wibble: unknown, expected one of",
        "target: missing",
        "max_queue = 0: expected an integer, 1 or more",
        "acceptance = 'fast': expected coupled or rejection",
        "step_deadline_s = 'long': expected seconds",
        "num_threads = True: expected an integer",
        "7 problem(s)",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"bind": "tcp://0.0.0.0:1"}, "bind: "),
        ({"max_prompt_len": 512}, "max_prompt_len = 512: expected 511 or less"),
        ({"policy": "wish:3"}, "policy = 'wish:3'"),
        ({"policy": "fixed:9", "max_draft_len": 4}, "max_draft_len = 4"),
        ({"runner": "cuda"}, "needs device = 'cuda'"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s = nan"),
        ({"heartbeat_s": 0}, "heartbeat_s = 0"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_fit_together_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as caught:
        Settings.from_mapping({"target": "t", **values})
    assert said in str(caught.value)


def test_flags_win_over_the_file_and_an_absent_flag_does_not(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('target = "t"\nnum_slots = 3\nmax_queue = 9\n')
    settings = Settings.load(path, {"num_slots": 5, "max_queue": None})
    assert (settings.num_slots, settings.max_queue) == (5, 9)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("= nonsense")
    for name in ("bad.toml", "missing.toml"):
        with pytest.raises(Refused, match=name):
            Settings.load(tmp_path / name)


def test_settings_resolve_to_limits_init_and_back_from_json() -> None:
    settings = Settings.from_mapping(
        {"target": "t", "drafter": "d", "num_slots": 3, "step_deadline_s": 1.5, "drafter_window": 64, "heartbeat_s": 1}
    )
    limits, init = settings.limits(), settings.init(4)
    assert (limits.num_slots, limits.step_deadline_ns) == (3, 1_500_000_000)
    assert limits.heartbeat_deadline_ns > 1_000_000_000, "one missed beat is no death"
    assert (init.session, init.target, init.drafter, init.num_slots, init.drafter_window) == (4, "t", "d", 3, 64)
    assert Settings.from_json(settings.to_json()) == settings


def test_settings_of_a_trace_without_a_trace_are_refused_by_name() -> None:
    with pytest.raises(Refused) as caught:
        Settings(target="t", trace_redact="key", trace_outputs="full", trace_segment_mb=7)
    for key in ("trace_redact = 'key'", "trace_outputs = 'full'", "trace_segment_mb = 7"):
        assert key in str(caught.value)
    Settings(target="t", trace="run.dsptrace", trace_redact="key", trace_outputs="full")
