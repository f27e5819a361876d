"""`dsparkd costs`: the table of a running engine on the screen and as a file that `serve` takes."""

import json
import subprocess
import sys
from pathlib import Path

from dsparkd import local
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.service.cost_files import read_costs


def dsparkd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dsparkd", *arguments], capture_output=True, text=True, timeout=240)


def test_costs_are_measured_shown_written_and_taken_again(tmp_path: Path) -> None:
    pair, path = shipped_pair(), tmp_path / "costs.json"
    settings = {"target": str(pair.target), "drafter": str(pair.drafter), "num_slots": 2}
    bind = f"ipc://{tmp_path}/engine"
    with local(bind=bind, **settings):
        shown = dsparkd("costs", "--connect", bind, "-o", str(path))
        assert shown.returncode == 0, shown.stderr
        assert "x 8" in shown.stdout
    table = read_costs(path)
    assert (table.rows, table.widths) == ([1, 2], [1, 2, 4, 8])
    with local(cost_table=str(path), **settings) as client:
        again = client.stats()["cost_table"]
    assert again == {**json.loads(path.read_text()), "corrections": []}


def test_an_engine_without_a_table_says_so(tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/engine"
    with local(bind=bind, target="scripted:", measure_costs=False):
        refused = dsparkd("costs", "--connect", bind)
    assert refused.returncode == 1
    assert "the engine has no cost table" in refused.stderr


def test_serve_refuses_a_cost_table_that_is_none_before_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("{}")
    refused = dsparkd("serve", "--bind", f"ipc://{tmp_path}/engine", "--cost-table", str(path))
    assert refused.returncode == 1
    assert f"cost_table {path}: cannot be read" in refused.stderr


def test_serve_lists_every_fault_of_a_schedule_given_as_a_flag(tmp_path: Path) -> None:
    arguments = ("--policy", "fixed:3", "--set", "draft_len_schedule={1=3,4=7,x=1}")
    refused = dsparkd("serve", "--bind", f"ipc://{tmp_path}/engine", *arguments)
    assert refused.returncode == 1
    for part in (
        "policy and draft_len_schedule: expected exactly one",
        "key 4 = 7: expected 3",
        "key 'x' = 1",
        "3 problem",
    ):
        assert part in refused.stderr
