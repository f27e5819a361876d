"""`dsparkd.local`: an engine for a block, and the engine's own reason when it will not serve."""

from pathlib import Path
from typing import Any

import dsparkd
import pytest
from dsparkd import Refused
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.journal import open_journal
from dsparkd.scheduler.service.local import local
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.service.promises import Promises

SCRIPTED = {"target": "scripted:mean=3.2", "drafter": "scripted"}


@pytest.mark.parametrize("journal", [False, True], ids=["alone", "under a parent"])
@pytest.mark.parametrize(
    ("settings", "code", "reason"),
    [
        ({**SCRIPTED, "target": "scripted:fail_load=1", "restart_budget": 0}, "NO_WORKER", "was told to fail"),
        ({**SCRIPTED, "cost_table": "/nonexistent/costs.json"}, "BAD_CONFIG", "/nonexistent/costs.json"),
        ({**SCRIPTED, "trace": "/nonexistent/folder/run.dsptrace"}, "BAD_CONFIG", "/nonexistent/folder"),
        ({**SCRIPTED, "metrics": "127.0.0.1:99999"}, "BAD_CONFIG", "99999"),
    ],
    ids=["a worker that cannot load", "a file that is not there", "a folder that is not there", "an address"],
)
def test_an_engine_that_will_not_serve_says_why(
    tmp_path: Path, settings: dict[str, Any], code: str, reason: str, journal: bool
) -> None:
    settings = {**settings, "journal": str(tmp_path / "journal")} if journal else settings
    with pytest.raises(Refused) as caught, local(**settings):
        pass
    assert reason in str(caught.value)
    assert caught.value.code == code


def test_without_a_target_the_shipped_pair_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("dsparkd.scheduler.service.local.local", lambda **settings: told.append(settings))
    dsparkd.local(num_slots=2)
    dsparkd.local(target="x", drafter="none")
    pair = shipped_pair()
    assert told == [
        {"target": str(pair.target), "drafter": str(pair.drafter), "num_slots": 2},
        {"target": "x", "drafter": "none"},
    ]


def test_the_drafter_none_is_no_drafter() -> None:
    with dsparkd.local(target="scripted", drafter="none") as client:
        assert client.stats()["settings"]["drafter"] is None
        assert client.generate([1, 2], max_tokens=9).counts.num_drafted == 0


def test_an_engine_that_is_refused_at_its_start_leaves_no_socket_behind(tmp_path: Path) -> None:
    """Whatever is refused after it was bound: a journal that another one holds, a trace that cannot be written."""
    bind = f"ipc://{tmp_path}/engine"
    journal = str(tmp_path / "journal")
    for settings in ({"trace": f"{tmp_path}/nowhere/run.dsptrace"}, {"journal": journal}):
        held = open_journal(
            Settings.from_mapping({**SCRIPTED, "bind": bind, "journal": journal}), Promises(most_kept=1)
        )
        assert held is not None
        with pytest.raises(Refused):
            Service(Settings.from_mapping({**SCRIPTED, "bind": bind, **settings}))
        held.close()
        assert not (tmp_path / "engine").exists()


def test_what_an_engine_writes_is_for_its_user_alone(tmp_path: Path) -> None:
    """Journals hold who may resume a request, and traces hold prompts, whatever the folder lets others do."""
    for name in ("journal", "traces"):
        (tmp_path / name).mkdir(mode=0o755)
    with local(**SCRIPTED, journal=f"{tmp_path}/journal", trace=f"{tmp_path}/traces/") as client:
        client.generate([1, 2], max_tokens=4)
        written = [one for one in tmp_path.rglob("*") if one.is_file()]
        assert len(written) >= 3
        assert [one.name for one in written if one.stat().st_mode & 0o077] == []
