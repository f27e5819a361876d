"""The scheduler process: poll, decode, let the core decide, obey, tell. The only place where clock and core meet.

Owns the order of one turn and the process's signals; the edges own their sockets. The command line runs it. In a turn
the worker's next command leaves before anything is encoded for clients, so that telling them costs the worker no time.
"""

import math
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import zmq

from ..core import events, results
from ..core.handle import Core
from ..core.policies import Policy, start_warnings
from ..wire import messages as wire
from ..wire.curve import server_keys
from ..wire.sockets import Router
from .chat import chat_template_beside
from .clients import ClientEdge
from .config import Settings
from .cost_files import read_costs
from .folders import PrivateFolder
from .journal import Journal, open_journal
from .policy_settings import only_policy
from .promises import Fact, Promises
from .recorded import Recorded
from .service_view import describe_service
from .supervisor import Supervisor
from .text import Tokenizer, tokenizer_beside
from .trace_writer import open_trace
from .translate import Client, Translate
from .turn_watch import Unwatched, watch_transitions, watch_turns
from .workers import WorkerEdge, WorkerOutput

if TYPE_CHECKING:
    from .metrics_server import MetricsServer

log = structlog.get_logger()
MAX_POLL_MS = 1000
OUTBOX_POLL_MS = 5
_FOR_WORKER = (results.Command, results.SpawnWorker, results.KillWorker, results.SendInit, results.SendDrain)


class Service:
    """One engine. `run` returns the process's exit status; every resource is released when it returns or raises."""

    def __init__(self, settings: Settings, *, tokenizer: Tokenizer | None = None, policy: Policy | None = None) -> None:
        self.settings = settings
        self.core = Core(settings.limits(), only_policy(settings, policy))
        self._shown = settings.shown(None if policy is None else policy.name)
        self.translate = Translate(
            tokenizer or tokenizer_beside(settings.target),
            max_model_len=settings.max_model_len,
            chat=chat_template_beside(settings.target),
        )
        self._costs = None if settings.cost_table is None else read_costs(Path(settings.cost_table))
        self._trace = Recorded(self.core, lambda request: self.translate.records[request].request_id)
        self._promises = Promises(most_kept=settings.max_kept)
        self._journal: Journal | None = None
        self._signals: list[int] = []
        self._finished = False
        self._was_ready = False
        self._stopping = self._closing = self._over = False
        self.gave_up = ""  # why no worker can be had
        self._watch: Unwatched | MetricsServer = Unwatched()
        self._folder = PrivateFolder()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router: Router | None = None
        try:
            self._open()
            self._journal = open_journal(settings, self._promises)
            self._trace.writer = open_trace(
                settings, self.core, own_policy=policy is not None
            )  # last: it leaves a file
        except BaseException:
            for made in (self._watch, self._journal, self._router):
                if made is not None:
                    made.close()
            self._context.destroy(linger=0)
            self._folder.remove()
            raise

    def _open(self) -> None:
        settings = self.settings
        keys = None
        if settings.curve_secret is not None and settings.curve_clients is not None:
            keys = server_keys(Path(settings.curve_secret), Path(settings.curve_clients))
        self._router = Router(self._context, settings.bind, keys=keys)
        self.clients = ClientEdge(
            self._router,
            self.translate,
            keep_alive_s=settings.heartbeat_s,
            max_early=settings.max_queue,
            questions=self._answer,
            welcome=self._welcome,
            promises=self._promises,
            keep=self._keep,
        )
        worker_router = Router(self._context, f"ipc://{self._folder.path}/worker")
        self.worker = WorkerEdge(
            worker_router,
            Supervisor(worker_router.address, variables=settings.variables("logs", "log_level")),
            heartbeat_s=settings.heartbeat_s,
            init=self._init,
            on_ready=self._on_ready,
        )
        self._poller = zmq.Poller()
        self._poller.register(self.clients.router.socket, zmq.POLLIN)
        self._poller.register(worker_router.socket, zmq.POLLIN)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        watch_transitions(settings, self.core)
        self._watch = watch_turns(settings, self.core, self.clients, self.worker, wake=self._wake)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.clients.router.address

    def run(self) -> int:
        """Serve until drained or stopped (0), or until no worker can be had that ever was ready (1)."""
        log.info("serving", address=self.address, **self._shown)
        for warning in start_warnings(self.core.policy, self.settings.num_slots):
            log.warning("policy_warning", warning=warning)
        try:
            self._do(self.core.start())
            self._feed(self.clients.recover(time.monotonic_ns()), [])
            while not self._finished:
                self.turn()
                if not self._was_ready and self.core.health()[2] == "ABANDONED":
                    self._over = True
                    return self._give_up()
            self._over = True
            return 0
        finally:
            self.close()

    def turn(self) -> None:
        """One poll, and everything that follows from what it found."""
        found = self._wait()
        now_ns = time.monotonic_ns()
        outputs: list[WorkerOutput] = []
        if self.worker.router.socket in found:
            heard = self.worker.receive(now_ns)
            self._feed((self.translate.mark_stops(event, self.core.ledger) for event in heard), outputs)
        self._feed(self.worker.watch(exited=self.worker.registered in found), outputs)
        if self._wake_read in found:
            self._feed(self._signalled(), outputs)
        self._was_ready = self._was_ready or self.core.ledger.worker.capacity is not None
        if (self._was_ready or self._stopping) and not self.clients.ready:
            self._feed(self.clients.release(now_ns), outputs)
        if self.clients.router.socket in found:
            self._feed(self.clients.receive(now_ns), outputs)
        self._feed(self.clients.watch(now_ns), outputs)
        self._feed((events.Tick(time.monotonic_ns()),), outputs)
        for output in outputs:
            self.worker.obey(output)
        self._watch.obeyed(now_ns)
        self._tell()
        self._trace.write()
        self._watch.end_turn(now_ns)
        self.worker.ping(now_ns)

    def stop_from_signal(self, number: int, frame: Any) -> None:
        """A signal handler: the first SIGTERM drains, everything after it stops."""
        self._signals.append(number)
        if not self._closing:
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            os.write(self._wake_write, b"w")

    def install_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop_from_signal)

    def close(self) -> None:
        """Kill the worker, say the last words, remove what was made. Idempotent is not needed: `run` calls it once."""
        self._closing = True  # a signal from here on changes nothing
        self._watch.close()
        self.worker.close()
        # After a crash that a journal outlives nobody says farewell: clients wait for the next scheduler.
        goes_on = self._journal is not None and not self._over
        self.clients.close(None if goes_on else "; ".join(self.core.health()[3]) or "the engine has ended")
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._context.term()
        self._folder.remove()
        self._trace.write()
        self._trace.close()
        if self._journal is not None:
            self._journal.close()

    # ---- parts of a turn ----------------------------------------------------------------------------------------

    def _wait(self) -> dict[Any, int]:
        """Return what has something to read, at the latest when a timer is due."""
        timeout_ms = OUTBOX_POLL_MS if self.clients.router.waits or self.worker.router.waits else MAX_POLL_MS
        dues = [due for due in (self.core.next_timer(), self.worker.next_ping_ns) if due is not None]
        if dues:
            timeout_ms = min(timeout_ms, max(0, math.ceil((min(dues) - time.monotonic_ns()) / 1e6)))
        self.worker.register(self._poller)
        found: dict[Any, int] = dict(self._poller.poll(timeout_ms))
        self.worker.router.flush()
        return found

    def _feed(self, inputs: Iterable[events.Input], outputs: list[WorkerOutput]) -> None:
        """Let the core handle each input before the next is made, and settle names in between."""
        for event in inputs:
            handled = self._trace.handle(event)
            self._watch.took(event, handled)
            for output in handled:
                if isinstance(output, _FOR_WORKER):
                    outputs.append(output)
                elif isinstance(output, results.EngineStopped):
                    self._finished = True
                else:
                    self.clients.take(output)

    def _do(self, outputs: Iterable[results.Output]) -> None:
        for output in outputs:
            if isinstance(output, _FOR_WORKER):
                self.worker.obey(output)

    def _signalled(self) -> Iterable[events.Input]:
        os.read(self._wake_read, 4096)
        while self._signals:
            number = self._signals.pop(0)
            state = self.core.health()[1]
            drains = number == signal.SIGTERM and state == "OPEN"
            self._stopping = True
            log.info("signal", number=number, then="drain" if drains else "stop")
            yield events.Drain() if drains else events.Stop()

    def _give_up(self) -> int:
        reasons = self.core.health()[3]
        self.gave_up = "; ".join(reasons)
        log.error("no_worker", reasons=reasons)
        outputs: list[WorkerOutput] = []
        self._feed(self.clients.release(time.monotonic_ns()), outputs)
        self._tell()
        return 1

    def _tell(self) -> None:
        """What clients hear is kept before they hear it."""
        if self._journal is not None:
            self._journal.commit()
        self.clients.send()

    def _keep(self, fact: Fact) -> None:
        (self._promises if self._journal is None else self._journal).add(fact)

    # ---- answers ------------------------------------------------------------------------------------------------

    def _init(self, session: int) -> wire.Init:
        """The settings of a worker; what the first one measured, the others need not."""
        init = self.settings.init(session)
        return msgspec.structs.replace(init, costs=self._costs, confidences=self.core.needs_confidence)

    def _on_ready(self, ready: wire.Ready) -> None:
        """The first READY says what prompts may hold; later ones come from the same checkpoint."""
        for warning in ready.warnings:
            log.warning("worker_warning", warning=warning)
        log.info("worker_ready", session=ready.session, block_len=ready.block_len, lost=list(ready.lost))
        self._costs = self._costs or ready.costs
        self.translate.vocab_size = ready.vocab_size
        if self._trace.writer is not None:
            self._trace.writer.know_vocabulary(ready.vocab_size)
        self.translate.eos_token_ids = frozenset(ready.eos_token_ids)

    def _welcome(self, client: Client) -> wire.Welcome:
        return wire.Welcome(
            client_id=client.number,
            resume_token=client.token,
            keep_alive_s=self.settings.heartbeat_s,
            num_slots=self.settings.num_slots,
            max_model_len=self.settings.max_model_len,
            has_text=self.translate.tokenizer is not None,
            resumed=client.resumed,
        )

    def _answer(self, question: wire.GetStats | wire.GetHealth) -> wire.Message:
        if isinstance(question, wire.GetHealth):
            ok, engine, worker, reasons = self.core.health()
            if self._trace.lost:
                ok, reasons = False, [*reasons, self._trace.lost]
            return wire.Health(ok=ok, engine=engine, worker=worker, reasons=reasons)
        return wire.Stats(
            values=describe_service(self.core, self._shown, self.clients, self.worker, metrics_url=self._watch.url)
        )
