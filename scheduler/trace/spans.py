"""Who held which slot in which state, as spans of time: the lanes of the report.

Owns the translation of commands and slot states to spans; reads a replay as it goes by. A span is what one tenancy
did without a change: seeding, passes that verified a draft, passes that did not, retiring, quarantined; or a wait.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...statemachine import slot
from ..core import events, results
from ..core.handle import Core
from .columns import packed

KINDS = ("queue", "seeding", "positive", "zero", "retiring", "quarantined")
MOST_QUEUE_LANES = 8
_LEFT = {slot.State.RETIRING: "retiring", slot.State.QUARANTINED: "quarantined"}


class Spans:
    def __init__(self) -> None:
        self.done: list[tuple[float, float, int, int, int]] = []  # (begin ms, end ms, lane, kind, request)
        self._open: dict[int, tuple[float, int, int]] = {}  # slot -> (begin ms, kind, request)
        self._waiting: dict[int, tuple[float, int]] = {}  # request -> (since ms, queue lane)
        self._owner: dict[int, int] = {}  # slot -> its last tenant
        self.num_slots = 0
        self.num_queue_lanes = 0

    def take(self, now_ns: int, one: events.Input, outputs: Sequence[results.Output], core: Core) -> None:
        """One replayed input at `now_ns` since the trace began."""
        now = now_ns / 1e6
        self.num_slots = len(core.ledger.slots)
        for request in [*self._waiting]:
            if request not in core.ledger.requests or core.ledger.requests[request].slot is not None:
                self._seated(request, now)
        for queued in core.ledger.queue:
            if queued.id not in self._waiting:
                self._waiting[queued.id] = (now, self._queue_lane())
        for output in outputs:
            if type(output) is results.Command:
                for row in output.rows:
                    self._row(row, now, core)
        for held in core.ledger.slots:
            kind = _LEFT.get(held.state)
            if kind is not None:
                self._become(held.id, KINDS.index(kind), self._owner.get(held.id, 0), now)
            elif held.state is slot.State.FREE:
                self._close(held.id, now)

    def end(self, now_ns: int) -> None:
        """Whatever is open ends with the trace."""
        for index in [*self._open]:
            self._close(index, now_ns / 1e6)
        for request in [*self._waiting]:
            self._seated(request, now_ns / 1e6)

    def columns(self, names: Mapping[int, str]) -> dict[str, Any]:
        """As the page reads them: the queue's lanes first, then the slots; spans in order of their begin."""
        self.done.sort()
        labels = [f"queue {lane}" for lane in range(self.num_queue_lanes)]
        labels += [f"slot {index}" for index in range(self.num_slots)]
        shown = {request for *_, request in self.done}
        return {
            "begin": packed("f64", [one[0] for one in self.done]),
            "end": packed("f64", [one[1] for one in self.done]),
            "lane": packed("u16", [self._place(one[2]) for one in self.done]),
            "kind": packed("u16", [one[3] for one in self.done]),
            "request": packed("u32", [one[4] for one in self.done]),
            "kinds": list(KINDS),
            "labels": labels,
            "names": {str(request): name for request, name in names.items() if request in shown},
        }

    def _place(self, lane: int) -> int:
        """Queue lanes are kept as -1, -2, ...; slots as they are."""
        return -lane - 1 if lane < 0 else lane + self.num_queue_lanes

    def _row(self, row: events.CommandRow, now: float, core: Core) -> None:
        owner = core.ledger.slots[row.slot].owner
        if owner is None or type(row) is events.Scrub:
            return
        self._owner[row.slot] = owner
        kind = "seeding" if type(row) is events.Seed else "positive" if row.draft_len else "zero"  # type: ignore[union-attr]
        self._become(row.slot, KINDS.index(kind), owner, now)

    def _become(self, index: int, kind: int, request: int, now: float) -> None:
        known = self._open.get(index)
        if known is not None and known[1:] == (kind, request):
            return
        self._close(index, now)
        self._open[index] = (now, kind, request)

    def _close(self, index: int, now: float) -> None:
        known = self._open.pop(index, None)
        if known is not None:
            begin, kind, request = known
            self.done.append((begin, now, index, kind, request))

    def _queue_lane(self) -> int:
        """The first lane that nobody waits in, or none: a long queue shows in the chart of steps."""
        taken = {lane for _, lane in self._waiting.values()}
        lane = next((one for one in range(MOST_QUEUE_LANES) if one not in taken), -1)
        self.num_queue_lanes = max(self.num_queue_lanes, lane + 1)
        return lane

    def _seated(self, request: int, now: float) -> None:
        since, lane = self._waiting.pop(request)
        if lane >= 0 and now > since:
            self.done.append((since, now, -lane - 1, KINDS.index("queue"), request))
