"""The generated pages say what the tables say, and the summary of causality what the handlers do."""

from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.cli.docs import docs, pages
from dsparkd.scheduler.core.causes import CAUSES
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.core.tables import TABLES, Machine
from dsparkd.scheduler.proof.scopes import SMALL
from dsparkd.scheduler.proof.world import EngineWorld
from dsparkd.statemachine.errors import Refused
from dsparkd.statemachine.explore import explore

ROOT = Path(__file__).parents[2]


def test_the_pages_are_not_stale() -> None:
    docs(check=True, folder=ROOT / "docs")


def test_a_stale_or_missing_page_is_named(tmp_path: Path) -> None:
    docs(folder=tmp_path)
    (tmp_path / "machines" / "slot.md").write_text("old")
    (tmp_path / "machines" / "step.md").unlink()
    with pytest.raises(Refused, match=r"slot\.md.*step\.md|step\.md.*slot\.md"):
        docs(check=True, folder=tmp_path)


def test_a_page_shows_every_row_every_reason_and_a_diagram() -> None:
    for machine, table in TABLES.items():
        text = pages()[f"{machine.name.lower()}.md"]
        assert "stateDiagram-v2" in text
        assert all(str(row) in text for row in table.page.rows)
        assert all(one.why in text for one in table.page.ignores)


def test_the_summary_of_causality_is_what_the_handlers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[Any] = set()
    running: list[Any] = []

    def send(core: Core, machine: Machine, record: Any, event: Any, data: Any = None, *, facts: Any = None) -> None:
        if running:
            seen.add((*running[-1], machine, event))
        plain_send(core, machine, record, event, data, facts=facts)

    def noting(machine: Machine, effect: Any, handler: Any) -> Any:
        def noted(core: Core, one: Any, data: Any) -> None:
            running.append((machine, effect))
            handler(core, one, data)
            running.pop()

        return noted

    plain_send = Core.send
    monkeypatch.setattr(Core, "send", send)
    for scope in SMALL:
        if scope.name in (
            "bugs",
            "faults",
            "frail",
            "clients",
            "stops",
            "reuse",
            "unseeded",
            "chunks",
            "slow",
            "poison",
        ):
            world = EngineWorld(scope)
            world.core.handlers = [
                [noting(machine, effect, handlers[effect]) for effect in TABLES[machine].page.effects]
                for machine, handlers in zip(Machine, world.core.handlers, strict=True)
            ]
            assert explore(world, max_states=1500).violation is None
    assert seen == set(CAUSES)
