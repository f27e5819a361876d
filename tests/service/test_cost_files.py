"""Cost tables as files, and the first one handed to every later worker."""

import json
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.cost_files import read_costs, write_costs
from dsparkd.scheduler.service.local import local
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused

VALUES: dict[str, Any] = {
    "fingerprint": {"device": "here"},
    "context_len": 64,
    "rows": [1, 2],
    "widths": [1, 8],
    "target_ns": [[100, 170], [120, 260]],
    "draft_ns": [50, 60],
}


def file_of(folder: Path, **fields: Any) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps({**VALUES, **fields}))
    return path


def test_what_stats_show_is_what_a_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, {"cost_table": {**VALUES, "corrections": [[1, 1, 9, 100]]}})
    assert read_costs(path) == wire.CostTable(**VALUES)
    with pytest.raises(Refused, match="no cost table"):
        write_costs(path, {"cost_table": None})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target_ns": [[100, 170], [90, 260]]}, "2 rows = 90: expected times that never fall"),
        ({"target_ns": [[100, 0], [120, 260]]}, "target_ns[0][1] = 0"),
        ({"draft_ns": [60, 50]}, "draft_ns, 2 rows = 50"),
        ({"draft_ns": [float("inf"), 50]}, "cannot be read"),
        ({"rows": [2, 1]}, "rows = [2, 1]"),
        ({"wibble": 1}, "wibble"),
        ({"context_len": "long"}, "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name_before_anything_starts(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = file_of(tmp_path, **fields)
    settings = Settings(target="scripted:", bind=f"ipc://{tmp_path}/engine", cost_table=str(path))
    with pytest.raises(Refused) as caught:
        Service(settings)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_flat_file_is_legal(tmp_path: Path) -> None:
    flat = [[7, 7], [7, 7]]
    assert read_costs(file_of(tmp_path, target_ns=flat, draft_ns=[7, 7])).target_ns == flat


def test_the_first_workers_table_is_in_the_init_of_every_later_one(tmp_path: Path) -> None:
    service = Service(Settings(target="scripted:", bind=f"ipc://{tmp_path}/engine"))
    try:
        assert service._init(1).costs is None
        assert service._init(1).measure_costs
        first, later = wire.CostTable(**VALUES), wire.CostTable(**{**VALUES, "context_len": 9})
        for session, table in ((1, first), (2, later)):
            service._on_ready(wire.Ready(session, 2, 64, 50, costs=table))
        assert service._init(3).costs == first
    finally:
        service.close()


def test_a_running_engine_shows_the_table_of_its_file(tmp_path: Path) -> None:
    with local(target="scripted:", drafter="scripted", cost_table=str(file_of(tmp_path))) as client:
        assert client.stats()["cost_table"] == {**VALUES, "corrections": []}
