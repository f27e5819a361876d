"""The worker's edge: its socket, its process, its heartbeats.

Owns which connection is the worker's (the one that proved its token) and the pings; what it says is the core's affair.
`loop.py` calls `receive` at the start of a poll and `obey` with the core's outputs before anything else is sent.
"""

from collections.abc import Callable, Iterator

import structlog
import zmq

from ...statemachine.errors import PeerError
from ..core import events, results
from ..wire import codec
from ..wire import messages as wire
from ..wire.sockets import Router
from .ratelimit import Drops
from .supervisor import Supervisor
from .worker_rows import wire_step, worker_event

log = structlog.get_logger()
WorkerOutput = results.SpawnWorker | results.KillWorker | results.SendInit | results.SendDrain | results.Command
LEAVE_S = 2.0  # for a worker that said goodbye to exit by itself

SUMS = ("target_ns", "draft_ns", "cpu_ns", "wait_ns", "drafts_lost", "passes_uncaptured")


class WorkerEdge:
    """`init` makes the settings of a session; `on_ready` hears each READY as it travelled, before the core does."""

    def __init__(
        self,
        router: Router,
        supervisor: Supervisor,
        *,
        heartbeat_s: float,
        init: Callable[[int], wire.Init],
        on_ready: Callable[[wire.Ready], None],
    ) -> None:
        self.router = router
        self.supervisor = supervisor
        self.drops = Drops("worker_frame_dropped")
        self.next_ping_ns: int | None = None  # None: not serving, or a step is in flight
        self.session = 0
        self.times = dict.fromkeys(("steps_timed", *SUMS), 0)
        self.registered: int | None = None
        self._asked_to_leave = False  # for the log alone
        self._heartbeat_ns = int(heartbeat_s * 1e9)
        self._init = init
        self._on_ready = on_ready
        self._identity: bytes | None = None
        self._decoder = codec.from_worker()

    def receive(self, now_ns: int) -> Iterator[events.Input]:
        """Yield the events of what has arrived from the worker; frames of anyone else are dropped and counted."""
        for identity, parts in self.router.receive():
            try:
                if len(parts) != 1:
                    raise PeerError(f"message of a worker: {len(parts)} parts, expected 1")
                message = self._decoder.decode(parts[0])
            except PeerError as error:
                if identity == self._identity:
                    yield events.WorkerBroke(self.session, str(error))
                else:
                    self.drops.drop(str(error))
                continue
            yield from self._take(identity, message, now_ns)

    def watch(self, *, exited: bool) -> Iterator[events.Input]:
        """Yield the worker's death: its process has `exited` (its pidfd says so), or its channel is closed or full."""
        died = self.supervisor.reap() if exited else None
        if died is not None:
            yield self._dead(died.reason)
        for identity, reason in self.router.take_lost().items():
            if identity == self._identity:
                yield self._dead(f"its channel is lost: {reason}")

    def obey(self, output: WorkerOutput) -> None:
        """Do what the core wants of the worker."""
        if type(output) is results.Command:
            self.next_ping_ns = None
            self._send(wire_step(output))
        elif isinstance(output, results.SpawnWorker):
            self._part()
            self._asked_to_leave = False
            self.session = output.session
            self.supervisor.spawn(output.session)
        elif isinstance(output, results.KillWorker):
            self._part()
            self.supervisor.kill(output.reason)
        elif isinstance(output, results.SendInit):
            self._send(self._init(output.session))
        elif isinstance(output, results.SendDrain):
            self.next_ping_ns = None
            self._asked_to_leave = True
            self._send(wire.Leave(output.session))

    def ping(self, now_ns: int) -> None:
        """Ask an idle worker for a sign of life, when it is time."""
        if self.next_ping_ns is not None and now_ns >= self.next_ping_ns:
            self.next_ping_ns = now_ns + self._heartbeat_ns
            self._send(wire.Ping(self.session))

    def register(self, poller: zmq.Poller) -> None:
        """Keep the pidfd of the present worker in the poller."""
        pidfd = self.supervisor.pidfd
        if pidfd == self.registered:
            return
        if self.registered is not None:
            poller.unregister(self.registered)
        if pidfd is not None:
            poller.register(pidfd, zmq.POLLIN)
        self.registered = pidfd

    def close(self) -> None:
        self.supervisor.kill("the service ends")
        self.router.close()

    def _take(self, identity: bytes, message: wire.FromWorker, now_ns: int) -> Iterator[events.Input]:
        if isinstance(message, wire.Hello):
            if not self.supervisor.proves(message.session, message.token) or self._identity is not None:
                self.drops.drop(f"a hello that proves nothing, session {message.session}")
                return
            if message.version != wire.PROTOCOL_VERSION:
                yield events.WorkerBroke(self.session, f"protocol version {message.version}")
                return
            self._identity = identity
        elif identity != self._identity:
            self.drops.drop(f"{type(message).__name__} of a stranger")
            return
        if isinstance(message, wire.Goodbye):
            self.supervisor.leave(LEAVE_S)
            if message.refused:
                yield events.WorkerRefused(self.session, message.reason)
            yield self._dead(f"it said goodbye: {message.reason}")
            return
        if isinstance(message, wire.Ready):
            self._on_ready(message)
        elif isinstance(message, wire.Report):
            self._count(message)
        if isinstance(message, wire.Ready | wire.Report | wire.StepFault | wire.Pong):
            self.next_ping_ns = now_ns + self._heartbeat_ns
        yield worker_event(message)

    def _count(self, report: wire.Report) -> None:
        """Where the time of steps goes and what they did without, summed since the start, as the worker says it."""
        self.times["steps_timed"] += 1
        for name in SUMS:
            self.times[name] += getattr(report, name)

    def _send(self, message: wire.ToWorker) -> None:
        """Without a worker there is nobody to send to: the core hears of its death by itself."""
        if self._identity is not None:
            self.router.send(self._identity, codec.encode(message))

    def _dead(self, reason: str) -> events.WorkerDied:
        if self._asked_to_leave:
            log.info("worker_left", session=self.session)
        else:
            log.warning("worker_died", session=self.session, reason=reason)
        self._part()
        return events.WorkerDied(self.session, reason)

    def _part(self) -> None:
        self._identity = None
        self.next_ping_ns = None
