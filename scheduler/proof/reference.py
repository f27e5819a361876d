"""What people and the worker were promised, as a dictionary of intents that knows no machine.

Owns an independent prediction: for each input, exactly what the core must say, and what each window then holds. It
reads nothing of the core. `world.py` compares; `commands.py` holds the worker's entry checks.
"""

from typing import Any, NamedTuple

from ..core import events, results
from .scope import STOP_TOKEN, Scope

SPAWNED, LOADING, WARMING, SERVING, LEAVING, DEAD, GONE = range(7)
STARTING = (SPAWNED, LOADING, WARMING)
AT_WORK = (SERVING, LEAVING)
Expected = list[tuple[Any, ...]]


class Window(NamedTuple):
    """What the worker holds in one slot. `text_len` counts the anchor, once there is one."""

    epoch: int
    serial: int
    text_len: int = 0
    held_len: int = 0
    anchored: bool = False
    retired: bool = False  # its request was over when its last step came back


class Intent(NamedTuple):
    """One accepted request that is not over."""

    id: int
    client: int
    deadline_ns: int | None
    output: tuple[int, ...] = ()
    restarts: int = 0


class Reference:
    # fmt: off
    __slots__ = (
        "away", "dirty", "draining", "flying", "fruitless", "given_up", "intents", "last_step_id", "lost", "phase",
        "scope", "session", "stopped", "suspects", "undo", "windows",
    )
    # fmt: on

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.intents: dict[int, Intent] = {}  # by serial number, in accept order
        self.windows: list[Window | None] = [None] * scope.num_slots
        self.undo: tuple[Window | None, ...] = ()  # the windows before the step in flight
        self.dirty: frozenset[int] = frozenset()  # slots whose window is in doubt
        self.suspects: frozenset[int] = frozenset()  # requests of a faulted step: they run alone until they lived
        self.flying: results.Command | None = None
        self.phase, self.session, self.last_step_id, self.fruitless = SPAWNED, 1, 0, 0
        self.away: dict[int, bool] = {}  # known clients
        self.draining = self.stopped = self.given_up = self.lost = False

    def copy(self) -> "Reference":
        twin = object.__new__(Reference)
        for name in Reference.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.intents, twin.windows, twin.away = self.intents.copy(), self.windows.copy(), self.away.copy()
        return twin

    def key(self, epochs: list[int]) -> tuple[Any, ...]:
        """Canonical; the epochs of the windows relative to the present ones."""
        windows = tuple(
            [None if w is None else (epochs[slot] - w.epoch, *w[1:]) for slot, w in enumerate(self.windows)]
        )
        return (windows, self.dirty, self.suspects, tuple(self.intents), self.phase, self.given_up, self.lost)

    # ---- requests and clients -------------------------------------------------------------------------------

    def live(self, request_id: int) -> int | None:
        """The serial number of the live request of this id."""
        return next((serial for serial, one in self.intents.items() if one.id == request_id), None)

    def submit(self, serial: int, deadline_ns: int | None) -> Expected:
        request_id, client = self.scope.request_id(serial), self.scope.client(serial)
        refusal = self.refuse(request_id, client, None)
        if refusal:
            return refusal
        self.intents[serial] = Intent(request_id, client, deadline_ns)
        return [("Accepted", request_id)]

    def refuse(self, request_id: int, client: int, code: str | None) -> Expected:
        """`code` is what the submit is unfit for by itself; the engine's own reasons come first."""
        if self.live(request_id) is not None:
            code = "DUPLICATE_ID"
        elif self.draining:
            code = "DRAINING"
        elif client not in self.away:
            code = "UNKNOWN_CLIENT"
        elif self.given_up:
            code = "NO_WORKER"
        return [] if code is None else [("Refusal", request_id, code)]

    def cancel(self, request_id: int, client: int) -> Expected:
        serial = self.live(request_id)
        if serial is None or self.intents[serial].client != client:
            return [("CancelAck", request_id, False)]
        return [("CancelAck", request_id, True), self._end(serial, "CANCELLED", "cancelled"), *self.settle()]

    def hello(self, client: int) -> Expected:
        self.away[client] = False
        return [("Welcome", client)]

    def unreachable(self, client: int) -> Expected:
        if client in self.away:
            self.away[client] = True
        return []

    def goodbye(self, client: int) -> Expected:
        if self.away.pop(client, None) is None:
            return []
        own = [serial for serial, one in self.intents.items() if one.client == client]
        own.sort(key=lambda serial: self.intents[serial].id)
        ends = [self._end(serial, "CANCELLED", "client_gone") for serial in own]
        return [("ForgetClient", client), *ends, *self.settle()]

    def expire(self, now_ns: int) -> Expected:
        """Every live request whose deadline has come."""
        due = [
            (one.deadline_ns, serial)
            for serial, one in self.intents.items()
            if one.deadline_ns is not None and one.deadline_ns <= now_ns
        ]
        return [*[self._end(serial, "FAILED", "DEADLINE") for _, serial in sorted(due)], *self.settle()]

    def fail_internally(self, serial: int, slot: int | None) -> Expected:
        """Our own bug: its window is in doubt."""
        if slot is not None:
            self.dirty |= {slot}
        return [self._end(serial, "FAILED", "INTERNAL"), *self.settle()]

    # ---- the engine -----------------------------------------------------------------------------------------

    def drain(self) -> Expected:
        self.draining = True
        return self.settle()

    def stop(self) -> Expected:
        self.draining = True
        return [] if self.stopped else self.fail_all("ENGINE_STOPPED")

    def fail_all(self, reason: str) -> Expected:
        return [*[self._end(serial, "FAILED", reason) for serial in list(self.intents)], *self.settle()]

    def settle(self) -> Expected:
        """A draining engine without live requests dismisses its worker."""
        if not self.draining or self.intents or self.stopped:
            return []
        self.stopped = True
        if self.phase == SERVING:
            self.phase = LEAVING
            return [("SendDrain", self.session)]
        if self.phase in STARTING:
            self.phase = GONE
            return [("KillWorker", self.session)]
        self.phase = GONE
        return []

    # ---- the worker -----------------------------------------------------------------------------------------

    def word(self, kind: str, *, lost: bool = False, shrunk: bool = False) -> Expected:
        """hello, loaded or ready: each has one lawful moment; of a dead worker nobody listens to it."""
        if self.phase in (DEAD, GONE):
            return []
        if {"hello": SPAWNED, "loaded": LOADING, "ready": WARMING}[kind] != self.phase:
            return self.die()
        if kind != "ready":
            self.phase += 1
            return [("SendInit", self.session)] if kind == "hello" else []
        if shrunk:
            return self.decline()
        self.phase, self.lost = SERVING, lost
        return []

    def decline(self) -> Expected:
        """A worker that cannot serve what it was told to is the last one."""
        self.phase, self.given_up = GONE, True
        return [("KillWorker", self.session), *self.fail_all("WORKER_LOST")]

    def beat(self) -> bool:
        """Alive is not progressing: whether a beat renews the worker's time."""
        return self.phase == SERVING and self.flying is None

    def die(self) -> Expected:
        """Everything on it is gone; who was in its step is charged."""
        if self.phase in (DEAD, GONE):
            return []
        named = [] if self.flying is None else [row.slot for row in self.flying.rows]
        tenants = [self.tenant(slot) for slot in named]
        self.phase = GONE if self.phase == LEAVING else DEAD
        self.windows, self.dirty, self.flying = [None] * self.scope.num_slots, frozenset(), None
        self.suspects = frozenset()
        ends = [end for serial in tenants if serial is not None for end in self._charge(serial, "WORKER_LOST")]
        return [("KillWorker", self.session), *ends, *self.settle()]

    def respawn(self) -> Expected:
        if self.fruitless < self.scope.restart_budget:
            self.fruitless, self.session, self.last_step_id = self.fruitless + 1, self.session + 1, 0
            self.phase = SPAWNED
            return [("SpawnWorker", self.session)]
        self.phase, self.given_up = GONE, True
        return self.fail_all("WORKER_LOST")

    def tenant(self, slot: int) -> int | None:
        """The live request whose window this is."""
        held = self.windows[slot]
        return None if held is None or held.serial not in self.intents else held.serial

    # ---- what a step comes back with ------------------------------------------------------------------------

    def step_fault(self) -> Expected:
        """Nothing moved. One row alone is the row's own fault; several run alone from now on."""
        rows = self._land()
        if any(type(row) is events.Scrub for row in rows):
            self.flying = results.Command(self.session, self.last_step_id, rows)
            return self.die()
        if len(rows) == 1:
            return [*self._row_fault(rows[0].slot), *self.settle()]
        self.suspects |= {serial for row in rows if (serial := self.tenant(row.slot)) is not None}
        self.windows = [self._undone(slot, rows) for slot in range(len(self.windows))]
        return []

    def _undone(self, slot: int, rows: list[Any]) -> Window | None:
        """A window after a step that failed: one that it would have opened keeps no more than its Open said."""
        before = self.undo[slot]
        opens = next((row.opens for row in rows if row.slot == slot and type(row) is events.Seed), None)
        if before is None or opens is None:
            return before
        return before._replace(text_len=opens.keep_len, anchored=False) if opens.source_slot == slot else None

    def report(self, got: list[Any], *, lost: bool) -> Expected:
        said: Expected = []
        for row, one in zip(self._land(), got, strict=True):
            if type(row) is events.Scrub:
                self.dirty -= {row.slot}
                self.windows[row.slot] = None
                continue
            serial = self.tenant(row.slot)
            if serial is not None:
                self.suspects -= {serial}
            if type(one) is events.RowFault:
                said += self._row_fault(row.slot)
                continue
            self._commit(row, one)
            if serial is not None and type(one) is events.Emitted:
                said += self._deliver(serial, row, one)
        self.lost = self.lost or (lost and self.phase == SERVING)
        return [*said, *self.settle()]

    def _land(self) -> list[Any]:
        assert self.flying is not None
        rows: list[Any] = self.flying.rows
        self.last_step_id, self.flying = self.flying.step_id, None
        return rows

    def _commit(self, row: Any, got: Any) -> None:
        held = self.windows[row.slot]
        assert held is not None
        if type(row) is events.Seed:
            held = held._replace(text_len=row.start_pos + len(row.token_ids))
        if type(got) is events.Emitted:
            held = held._replace(text_len=held.text_len + len(got.token_ids), held_len=got.held_len, anchored=True)
        self.windows[row.slot] = held._replace(retired=held.serial not in self.intents)

    def _deliver(self, serial: int, row: Any, got: events.Emitted) -> Expected:
        one = self.intents[serial]
        room = min(self.scope.max_tokens, self.scope.max_model_len - self.scope.prompt_len) - len(one.output)
        token_ids = got.token_ids[:room]
        reason = "length" if len(token_ids) == room else None
        if STOP_TOKEN in token_ids:
            token_ids, reason = token_ids[: token_ids.index(STOP_TOKEN) + 1], "stop"
        draft_len = row.draft_len if type(row) is events.Decode else None
        accepted_len = min(got.accepted_len, len(token_ids))
        tokens = ("Tokens", one.id, len(one.output), tuple(token_ids), accepted_len, draft_len)
        self.intents[serial], self.fruitless = one._replace(output=one.output + tuple(token_ids), restarts=0), 0
        return [tokens] if reason is None else [tokens, self._end(serial, "FINISHED", reason)]

    def _row_fault(self, slot: int) -> Expected:
        serial = self.tenant(slot)
        self.dirty |= {slot}
        self.windows[slot] = None
        return [] if serial is None else self._charge(serial, "ROW_FAULT")

    def _charge(self, serial: int, reason: str) -> Expected:
        one = self.intents[serial]
        if one.restarts >= self.scope.max_restarts:
            return [self._end(serial, "FAILED", reason)]
        self.intents[serial] = one._replace(restarts=one.restarts + 1)
        self.suspects -= {serial}
        return []

    def _end(self, serial: int, state: str, reason: str) -> tuple[Any, ...]:
        one = self.intents.pop(serial)
        self.suspects -= {serial}
        return ("Ended", one.id, state, reason, len(one.output))
