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
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

TestEngine = EngineRules.TestCase
TestEngine.settings = settings()  # of the loaded profile


def leaking_tables() -> Tables:
    """Cancelling a request that waits for its next chunk forgets to give its slot back."""
    rows = tuple(
        attrs.evolve(row, effects=(request.Effect.END,))
        if (row.state, row.event) == (request.State.DRAFT_READY, request.Event.CANCEL)
        else row
        for row in request.PAGE.rows
    )
    return {**TABLES, Machine.REQUEST: Table(attrs.evolve(request.PAGE, rows=rows))}


def test_a_planted_fault_is_found_and_left_as_a_file_that_replays(tmp_path: Path) -> None:
    class Leaking(EngineRules):
        tables: ClassVar[Tables] = leaking_tables()
        dump_path: ClassVar[Path | None] = tmp_path / "leak.jsonl"

    with pytest.raises(LocalError, match="slot 0"):
        run_state_machine_as_test(Leaking, settings=settings(max_examples=400, derandomize=True, print_blob=False))
    with pytest.raises(LocalError, match="slot 0"):
        list(replay(tmp_path / "leak.jsonl", tables=leaking_tables()))
    story: list[Any] = list(replay(tmp_path / "leak.jsonl"))
    assert type(story[-1][0]).__name__ == "Cancel"
    assert len(story) < 20
