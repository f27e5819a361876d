"""Drawn histories at a larger scope than the explorer's; and a planted fault that they find and write down."""

from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from dsparkd.scheduler.core.tables import TABLES, Machine, Tables
from dsparkd.scheduler.proof.records import replay
from dsparkd.scheduler.testing_rules import EngineRules
from dsparkd.statemachine import request
from dsparkd.statemachine.errors import LocalError
from dsparkd.statemachine.table import Table
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

# Shrinking a history takes long; that the dumped file replays is shown by any of them.
UNSHRUNK = settings(max_examples=300, derandomize=True, deadline=None, print_blob=False, phases=[Phase.generate])

TestEngine = EngineRules.TestCase
TestEngine.settings = settings()  # of the loaded profile


def leaking_tables() -> Tables:
    """A request that finishes while its anchor alone is in flight forgets to give its slot back."""
    place = (request.State.STEPPING, request.Event.EMITTED, request.Emission.ENDS)
    leaking = (request.Effect.DELIVER, request.Effect.END)
    rows = tuple(
        attrs.evolve(row, effects=leaking) if (row.state, row.event, row.case) == place else row
        for row in request.PAGE.rows
    )
    return {**TABLES, Machine.REQUEST: Table(attrs.evolve(request.PAGE, rows=rows))}


def test_a_planted_fault_is_found_and_left_as_a_file_that_replays(tmp_path: Path) -> None:
    class Leaking(EngineRules):
        tables: ClassVar[Tables] = leaking_tables()
        dump_path: ClassVar[Path | None] = tmp_path / "leak.jsonl"

    with pytest.raises(LocalError, match="seated but over"):
        run_state_machine_as_test(Leaking, settings=UNSHRUNK)
    with pytest.raises(LocalError, match="seated but over"):
        list(replay(tmp_path / "leak.jsonl", tables=leaking_tables()))
    story: list[Any] = list(replay(tmp_path / "leak.jsonl"))
    assert type(story[-1][0]).__name__ == "Report"
