"""Messages that come too late, twice, or from somebody else: answered or dropped, and nothing has changed by them.

Owns their list and the judgement that the ledger stayed as it was; `inputs.py` makes moves of them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core import events
from .commands import Contradiction
from .reference import Expected

if TYPE_CHECKING:
    from .world import EngineWorld


def late(world: "EngineWorld", kind: str) -> None:
    """A late, repeated or foreign message: answered or dropped, and nothing has changed."""
    before = world.core.ledger.fingerprint()
    for message, expected in _late_messages(world, kind):
        world.feed(message, expected)
    if world.core.ledger.fingerprint() != before:
        raise Contradiction(f"a late message ({kind}) changed the ledger")


def _late_messages(world: "EngineWorld", kind: str) -> Iterator[tuple[events.Input, Expected]]:
    reference = world.reference
    session, step_id = reference.session, reference.last_step_id
    if kind == "session":
        yield events.Report(session - 1, step_id + 1, []), []
        yield events.WorkerDied(session - 1, "long ago"), []
        yield events.WorkerBroke(session - 1, "long ago"), []
        yield events.WorkerHello(session - 1), []
    elif kind == "step":
        yield events.Report(session, step_id, [events.Emitted(0, 1, [1], accepted_len=0, held_len=0)]), []
    elif kind == "fault":
        yield events.StepFault(session, step_id, "FAULT", "long ago"), []
        yield events.StepFault(session - 1, step_id + 1, "FAULT", "long ago"), []
    elif kind == "beat":
        yield events.WorkerBeat(session - 1, step_id), []
    elif kind == "words":
        scope = world.scope
        yield events.WorkerHello(session), []
        yield events.WorkerLoaded(session), []
        yield events.WorkerReady(session, scope.num_slots, scope.max_model_len, scope.block_len), []
        yield events.WorkerRefused(session, "a bad checkpoint"), []
        yield events.WorkerDied(session, "its exit"), []
        yield events.WorkerBroke(session, "its last junk"), []
    elif kind == "cancel":
        over = [scope_id for scope_id in range(world.next_serial) if reference.live(scope_id) is None]
        yield from ((events.Cancel(0, one), [("CancelAck", one, False)]) for one in (*over, 88))
    elif kind == "other_cancel":
        yield from ((events.Cancel(77, one.id), [("CancelAck", one.id, False)]) for one in reference.intents.values())
    elif kind == "resume":
        yield events.Resume(0, 88, 0), [("Refusal", 88, "UNKNOWN_REQUEST")]
        for one in reference.intents.values():
            again: Expected = [("Tokens", one.id, 0, one.output, 0, None)] if one.output else []
            yield events.Resume(one.client, one.id, 0), again
            yield events.Resume(one.client, one.id, len(one.output) + 1), [("Refusal", one.id, "BAD_INDEX")]
