"""The only mutable store of the core: one record for each request, slot, client, the worker, the step in flight.

Owns copying (`fork`), canonical comparison (`fingerprint`) and look-up; `invariants.py` checks it. Records hold a
machine's state and plain facts; tables decide what a state may become, effects change the facts.
"""

from bisect import insort
from enum import IntEnum
from heapq import heappop
from typing import Any, TypeVar

from ...statemachine import client, engine, request, slot, step, worker
from .acceptance import NOTHING
from .events import CommandRow, Options, WorkerReady
from .fingerprint import fingerprint
from .results import Tokens
from .step_costs import UNKNOWN

R = TypeVar("R", bound="Record")


class Record:
    """A slotted record that can be copied field by field: values are shared, what stands in `containers` is copied."""

    __slots__: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()

    def copy(self: R) -> R:
        twin = object.__new__(type(self))
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        for name in self.containers:
            setattr(twin, name, getattr(self, name).copy())
        return twin


class Request(Record):
    """One accepted request. `seeded_len` counts positions that its window holds while its text is seeded."""

    __slots__ = (
        "acceptance",
        "accepted_hist",
        "client",
        "fired",
        "front",
        "held_confidence",
        "held_len",
        "id",
        "last_step_id",
        "max_restarts",
        "num_drafted",
        "num_emitted_drafting",
        "num_restarts",
        "num_reused",
        "options",
        "order",
        "output",
        "past_confidence",
        "prompt",
        "restarts",
        "seeded_len",
        "slot",
        "state",
        "untold",
        "verified_hist",
    )
    containers = ("accepted_hist", "fired", "output", "untold", "verified_hist")

    def __init__(self, id: int, *, client: int, prompt: tuple[int, ...], options: Options, order: int) -> None:
        self.id, self.client, self.prompt, self.options, self.order = id, client, prompt, options, order
        self.state = request.State.QUEUED
        self.slot: int | None = None
        self.output: list[int] = []
        self.held_len = 0
        self.held_confidence: tuple[float, ...] | None = None  # logits of the held draft, for policies that need them
        self.past_confidence: tuple[float, ...] | None = None  # of the last draft whose verification is over
        self.seeded_len = 0
        self.last_step_id = 0
        self.restarts = self.max_restarts = 0
        self.num_drafted = self.num_emitted_drafting = self.num_restarts = self.num_reused = 0
        self.accepted_hist: list[int] = []  # [n]: decode rows that accepted n drafts, after the cut
        self.verified_hist: list[int] = []  # [n]: decode rows that verified n drafts
        self.fired: list[int] = []
        self.acceptance = NOTHING  # kept for policies that learn
        self.front = False  # it was seated before: no priority goes before it
        self.untold: list[Tokens] = []  # reported rows at the output's end that nobody has heard of (`untold.py`)

    @property
    def text_len(self) -> int:
        """Length of prompt + output: what must be in the window, the anchor excepted, before it can decode."""
        return len(self.prompt) + len(self.output)

    @property
    def place(self) -> tuple[bool, int, int]:
        """Its order in the queue: who was seated before, then by priority, in accept order."""
        return (not self.front, 0 if self.front else self.options.priority, self.order)


class Slot(Record):
    """`content`: tokens that the window surely holds for who comes next, empty while that is nothing or in doubt.

    `content_epoch` is the epoch by which the worker knows the window, `window_len` how many positions it holds,
    `context_start` from where on its drafter's context is there, `left_order` when the last request left it.
    """

    # fmt: off
    __slots__ = (
        "content", "content_epoch", "context_start", "epoch", "id", "left_order", "owner", "salt", "state",
        "window_len",
    )
    # fmt: on

    def __init__(self, id: int) -> None:
        self.id = id
        self.state = slot.State.FREE
        self.epoch = self.content_epoch = 0
        self.owner: int | None = None
        self.content: tuple[int, ...] = ()
        self.salt = ""
        self.window_len = self.context_start = self.left_order = 0

    def copy(self) -> "Slot":
        """By hand: there are more of them than of anything else."""
        twin = object.__new__(Slot)
        twin.id, twin.state, twin.epoch, twin.owner = self.id, self.state, self.epoch, self.owner
        twin.content, twin.content_epoch, twin.salt = self.content, self.content_epoch, self.salt
        twin.window_len, twin.context_start, twin.left_order = self.window_len, self.context_start, self.left_order
        return twin


class StepInFlight(Record):
    __slots__ = ("id", "rows", "state")

    def __init__(self, id: int, *, rows: list[CommandRow]) -> None:
        self.id, self.rows = id, rows
        self.state = step.State.SENT


class Worker(Record):
    __slots__ = (
        *("capacity", "fruitless_respawns", "last_step_id", "lost", "reason", "respawns", "restart_budget", "session"),
        "state",
    )
    containers = ("lost",)

    def __init__(self, restart_budget: int) -> None:
        self.state = worker.State.SPAWNED
        self.session = 1
        self.respawns = self.fruitless_respawns = 0  # in all; since a step last emitted
        self.restart_budget = restart_budget
        self.capacity: WorkerReady | None = None  # the first READY's; later ones must not be smaller
        self.lost: list[str] = []
        self.reason = ""
        self.last_step_id = 0


class Client(Record):
    __slots__ = ("id", "requests", "state")
    containers = ("requests",)

    def __init__(self, id: int) -> None:
        self.id = id
        self.state = client.State.CONNECTED
        self.requests: set[int] = set()


class Engine(Record):
    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = engine.State.OPEN


class Timer(IntEnum):
    """What a timer is for; `GRACE` is kept for each client."""

    PROGRESS = 0  # of the worker, in its present state
    OVERDUE = 1  # of the step in flight, for health
    RESPAWN = 2
    DRAIN = 3
    GRACE = 4


class Ledger:
    """All records, and their orders: the queue (`Request.place`), the seated (seat order), the free slots."""

    def __init__(self, *, num_slots: int, restart_budget: int) -> None:
        self.now_ns = 0
        self.next_order = 0
        self.num_left = 0  # how often a request has left a slot
        self.requests: dict[int, Request] = {}
        self.queue: list[Request] = []
        self.seated: dict[int, Request] = {}
        self.slots = [Slot(index) for index in range(num_slots)]
        self.free: list[int] = list(range(num_slots))
        self.condemned: list[int] = []  # quarantined slots, to be scrubbed
        self.suspects: list[int] = []  # requests of a faulted step, to be planned one by one
        self.step: StepInFlight | None = None
        self.worker = Worker(restart_budget)
        self.acceptance = NOTHING  # of all requests together: what is expected of a new one
        self.step_costs = UNKNOWN  # what steps take, over what the cost table says
        self.clients: dict[int, Client] = {}
        self.engine = Engine()
        # Of each timer its delay, and when it is due. Inputs carry no time, so the next Tick says from when it counts.
        self.timers: dict[tuple[Timer, int], tuple[int, int | None]] = {}
        # Heap of (deadline, order, request); those of ended requests are skipped, their id may have a new owner.
        self.deadlines: list[tuple[int, int, int]] = []

    def start_timer(self, timer: Timer, delay_ns: int, *, subject: int = 0) -> None:
        self.timers[timer, subject] = (delay_ns, None)

    def stop_timer(self, timer: Timer, subject: int = 0) -> None:
        self.timers.pop((timer, subject), None)

    def enqueue(self, one: Request) -> None:
        """By `Request.place`, so a requeued request comes before every one that was never seated."""
        insort(self.queue, one, key=lambda queued: queued.place)

    def next_deadline(self) -> tuple[int, int, int] | None:
        """The first (deadline, order, request) of a live request; those before it are thrown away."""
        while self.deadlines and not self.owns(*self.deadlines[0]):
            heappop(self.deadlines)
        return self.deadlines[0] if self.deadlines else None

    def fork(self) -> "Ledger":
        """A copy that shares nothing mutable with this one."""
        twin = object.__new__(Ledger)
        twin.now_ns, twin.next_order, twin.num_left = self.now_ns, self.next_order, self.num_left
        twin.requests = {key: one.copy() for key, one in self.requests.items()}
        twin.queue = [twin.requests[one.id] for one in self.queue]
        twin.seated = {key: twin.requests[key] for key in self.seated}
        twin.slots = [one.copy() for one in self.slots]
        twin.free, twin.condemned, twin.suspects = self.free.copy(), self.condemned.copy(), self.suspects.copy()
        twin.step = None if self.step is None else self.step.copy()
        twin.worker, twin.acceptance, twin.step_costs = self.worker.copy(), self.acceptance, self.step_costs
        twin.clients = {key: one.copy() for key, one in self.clients.items()}
        twin.engine = self.engine.copy()
        twin.timers, twin.deadlines = self.timers.copy(), self.deadlines.copy()
        return twin

    def fingerprint(self) -> tuple[Any, ...]:
        """A canonical value: ledgers with equal fingerprints behave alike (`fingerprint.py`)."""
        return fingerprint(self)

    def owns(self, due: int, order: int, key: int) -> bool:
        return key in self.requests and self.requests[key].order == order
