"""The worked example of docs/testing-kit.md runs as it stands, and the kit notices what it should."""

import re
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.core.tables import TABLES
from dsparkd.statemachine.errors import LocalError
from dsparkd.statemachine.mutants import mutants
from dsparkd.statemachine.table import Table
from dsparkd.statemachine.testing import cells, events, sweep, walks
from hypothesis import given
from hypothesis import strategies as st

PAGE = Path(__file__).parents[2] / "docs" / "testing-kit.md"


def test_every_block_of_the_worked_example_runs_in_order() -> None:
    names: dict[str, Any] = {"__name__": "testing_kit"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 7
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "PAUSED --CANCEL--> FAILED" in names["found"]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_sweep_covers_the_whole_plane(table: Any) -> None:
    plane = list(cells(table))
    assert len(plane) == len(table.page.states) * len(table.page.events)
    assert sum(len(cell.entries) for cell in plane) == len(table.listing)


def test_a_sweep_notices_a_classifier_that_answers_wrongly() -> None:
    table = next(table for table in TABLES.values() if table.page.classifiers)
    with pytest.raises((LocalError, AttributeError)):
        sweep(table, facts=lambda event, case: None)


@given(data=st.data(), name=st.sampled_from([table.name for table in TABLES.values()]))
def test_drawn_walks_are_lawful_lives(data: Any, name: str) -> None:
    table = next(one for one in TABLES.values() if one.name == name)
    life = data.draw(walks(table))
    state = table.page.initial
    for row in life:
        assert row.state is state
        state = row.next
    assert data.draw(events(table)) in table.page.events


def test_mutants_differ_from_the_table_and_from_each_other() -> None:
    for table in TABLES.values():
        made = list(mutants(table.page))
        assert len({mutant.name for mutant in made}) == len(made)
        assert all(mutant.page.rows != table.page.rows for mutant in made)
        assert all(mutant.rows for mutant in made)
        assert Table(table.page).page is table.page
