"""A short storm of the chaos runner: kills, stops, frames lost and told twice, and every stream whole and unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHAOS = Path(__file__).parent.parent.parent / "benchmarks" / "chaos.py"


def test_in_a_storm_nothing_is_lost_repeated_changed_hung_or_left_behind(tmp_path: Path) -> None:
    found = tmp_path / "chaos.json"
    seed = str(int.from_bytes(os.urandom(3), "little"))
    print(f"seed {seed}")
    command = [sys.executable, str(CHAOS), "--kills", "3", "--seed", seed, "--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    report = json.loads(found.read_text())
    assert report["requests"] > 0
    assert report["worker_kills"] + report["scheduler_kills"] == 3
    clean = ("lost", "duplicated", "changed", "near_ties", "hung", "orphans")
    assert {name: report[name] for name in clean} == dict.fromkeys(clean, 0)
