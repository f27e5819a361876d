"""The engine broken on purpose, one part at a time: something notices each, and says by the shortest way."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, prefix, results, settle
from dsparkd.scheduler.core.tables import Machine
from dsparkd.scheduler.proof.scopes import LARGE, SMALL
from dsparkd.scheduler.proof.world import EngineWorld
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.trace.scripted import ScriptedModel
from dsparkd.statemachine import request, slot
from dsparkd.statemachine.explore import Violation, explore

SCOPES = {scope.name: scope for scope in SMALL + LARGE}


def broken(scope: str, machine: Machine, effect: Any, wrap: Callable[[Any], Any]) -> Violation:
    """Explore a scope with one effect's handler replaced; return what was noticed."""
    world = EngineWorld(SCOPES[scope])
    world.core.handlers = [list(handlers) for handlers in world.core.handlers]
    world.core.handlers[machine][effect] = wrap(world.core.handlers[machine][effect])
    found = explore(world)
    assert found.violation is not None
    return found.violation


def test_a_core_that_does_not_look_at_epochs_takes_a_foreign_report(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = settle._impossible_row

    def blind(row: Any, got: Any) -> str | None:
        relabelled = attrs.evolve(got, epoch=row.epoch) if hasattr(got, "epoch") and hasattr(row, "epoch") else got
        return plain(row, relabelled)

    monkeypatch.setattr(settle, "_impossible_row", blind)
    found = explore(EngineWorld(SCOPES["labels"])).violation
    assert found is not None
    assert found.path[-1] == ("mislabelled", "epoch")
    assert "expected [('KillWorker', 1)]" in found.problem


def test_a_slot_that_is_freed_twice_is_noticed_at_once() -> None:
    def twice(handler: Any) -> Any:
        def vacate(core: Any, one: Any, data: Any) -> None:
            handler(core, one, data)
            core.ledger.free.append(one.id)

        return vacate

    found = broken("reuse", Machine.SLOT, slot.Effect.VACATE, twice)
    assert "listed twice" in found.problem


def test_tokens_after_the_terminal_event_are_noticed() -> None:
    def talkative(handler: Any) -> Any:
        def end(core: Any, one: Any, data: Any) -> None:
            handler(core, one, data)
            core.emit(
                results.Tokens(one.client, one.id, len(one.output), [1], accepted_len=0, draft_len=0, start_pos=0)
            )

        return end

    found = broken("reuse", Machine.REQUEST, request.Effect.END, talkative)
    assert "the core said" in found.problem


def test_a_forgotten_requeue_is_noticed() -> None:
    found = broken("poison", Machine.REQUEST, request.Effect.REQUEUE, lambda handler: lambda core, one, data: None)
    assert found.path[-1] == ("die",)
    assert "the queue is [], expected [0]" in found.problem


class Uncommitting(ScriptedModel):
    """Reports a zero-draft pass and forgets it."""

    def run_rows(self, rows: Sequence[Any]) -> list[events.ReportRow]:
        before = {row.slot: self.slots[row.slot] for row in rows if getattr(row, "draft_len", 1) == 0}
        reports = super().run_rows(rows)
        for index, held in before.items():
            self.slots[index] = held
        return reports


@pytest.mark.parametrize("model", [ScriptedModel, Uncommitting])
def test_a_zero_draft_step_that_skips_its_commit_changes_the_text(model: type[ScriptedModel]) -> None:
    bench = Bench("fixed:0", worker=lambda: model(num_slots=2, max_model_len=256, vocab_size=50))
    bench.submit(0, [1, 2, 3], max_tokens=12)
    bench.run()
    assert (bench.tokens[0] == bench.solo([1, 2, 3], 12)) == (model is ScriptedModel)


def remembers_a_dead_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "forget", lambda held: None)


def takes_windows_that_are_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content of a tenancy that has not begun on the worker is offered by its new epoch."""
    monkeypatch.setattr(
        prefix,
        "_sources",
        lambda held, ledger: [
            (one, "", ledger.requests[one.owner].prompt) for one in ledger.slots if one.owner is not None
        ],
    )


@pytest.mark.parametrize(
    "breaks",
    [remembers_a_dead_worker, takes_windows_that_are_not_open],
)
def test_a_prefix_that_no_window_surely_holds_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    found = explore(EngineWorld(SCOPES["heirs"])).violation
    assert found is not None, breaks.__name__
