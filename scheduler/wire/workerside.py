"""The worker's side of the wire: one loop for every worker, scripted or real.

Owns the handshake, the step numbers and what a failure becomes; never a model. `__main__` calls `serve_worker` with a
`Backend`. The WORKER table says what this side may say; the parent's death ends it whatever it does.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from typing import Protocol

import attrs
import msgspec
import structlog
import zmq

from ...statemachine import worker as machine
from ...statemachine.errors import EngineError, PeerError, Refused
from . import codec
from .messages import (
    FromWorker,
    Goodbye,
    Hello,
    Init,
    Leave,
    Loaded,
    Ping,
    Pong,
    Ready,
    Report,
    Step,
    StepFault,
    ToWorker,
)
from .sockets import dealer

IDLE_POLL_MS = 500  # how often an idle worker looks after its parent
LINGER_MS = 1000  # for the last word
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # before any fork
log = structlog.get_logger()


class StepFailed(EngineError):
    """The whole step failed before its commit and moved nothing; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Backend(Protocol):
    """What a worker is made of. `run` raises `StepFailed` (or anything) only when nothing has moved."""

    def load(self, init: Init) -> None: ...

    def warm(self) -> Ready: ...

    def run(self, step: Step) -> Report: ...

    def close(self) -> None: ...


class _Departed(Exception):
    """There is nobody left to work for."""


@attrs.frozen
class _Readiness:
    """The facts of the table's READY event, as far as a worker can know them."""

    lost: tuple[str, ...]
    unfit: bool = False  # the scheduler judges that


def serve_worker(address: str, *, session: int, token: str, backend: Backend, parent_pid: int | None = None) -> int:
    """Serve one session and return the exit code: 0 after Leave, 1 when it never got READY or its scheduler is gone.

    With `parent_pid`, the process dies with that parent.
    """
    if parent_pid is not None:
        die_with_parent(parent_pid)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        channel = _Channel(dealer(context, address), session=session, parent_pid=parent_pid)
        try:
            return _Worker(channel, session=session, backend=backend).serve(token)
        finally:
            channel.close()
            backend.close()
    finally:
        context.term()


def tie_to_parent() -> None:
    """Ask Linux for SIGKILL at the parent's death; elsewhere the look at each idle poll must do.

    For `preexec_fn`: it lasts through the exec, so a child that is stopped while it still starts does not stay behind.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def inherit_orphans() -> None:
    """Ask Linux that what a dead child of ours leaves becomes ours, not the system's."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """The same from within, for who was started by somebody else; ends at once when the parent is gone already."""
    tie_to_parent()
    if os.getppid() != parent_pid:  # it died before we asked
        sys.exit(1)


class _Channel:
    """The DEALER with its codec: blocks for a message, but never past the parent's death."""

    def __init__(self, socket: "zmq.Socket[bytes]", *, session: int, parent_pid: int | None) -> None:
        self._socket = socket
        self._parent_pid = parent_pid
        self._decoder = codec.for_worker()
        self._session = session

    def send(self, message: FromWorker) -> bytes:
        frame = codec.encode(message)
        self.resend(frame)
        return frame

    def resend(self, frame: bytes) -> None:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again as error:
            raise _Departed("the scheduler reads nothing any more") from error

    def receive(self) -> ToWorker:
        """Return the next message of this session."""
        while True:
            while not self._socket.poll(IDLE_POLL_MS):
                if self._parent_pid is not None and os.getppid() != self._parent_pid:
                    raise _Departed("the parent died")
            message = self._decoder.decode(self._socket.recv())
            if message.session == self._session:
                return message
            log.warning("wrong_session", session=message.session, expected=self._session)

    def close(self) -> None:
        self._socket.close(linger=LINGER_MS)


class _Worker:
    """One session: handshake, then steps in their order."""

    def __init__(self, channel: _Channel, *, session: int, backend: Backend) -> None:
        self._channel = channel
        self._session = session
        self._backend = backend
        self._state = machine.State.SPAWNED
        self._last_step_id = 0
        self._last_reply = b""
        self._replied_ns = 0

    def serve(self, token: str) -> int:
        try:
            self._shake_hands(token)
            self._work()
        except _Departed as departure:
            log.info("worker_departs", session=self._session, reason=str(departure))
            return 1
        except Exception as error:
            refused = isinstance(error, Refused) and self._state in (machine.State.LOADING, machine.State.WARMING)
            reason = str(error) if refused else _last_line(error)
            log.error("worker_fails", session=self._session, state=self._state.name, exc_info=not refused)
            self._move(machine.Event.REFUSED if refused else machine.Event.DIED)
            self._say_goodbye(reason, refused=refused)
            return 1
        self._say_goodbye("asked to leave")
        return 0

    def _shake_hands(self, token: str) -> None:
        self._channel.send(Hello(session=self._session, token=token, pid=os.getpid()))
        self._move(machine.Event.HELLO)
        init = self._channel.receive()
        if not isinstance(init, Init):
            raise PeerError(f"worker session {self._session}: expected Init, got {type(init).__name__}")
        self._backend.load(init)
        self._channel.send(Loaded(session=self._session))
        self._move(machine.Event.LOADED)
        ready = self._backend.warm()
        self._channel.send(ready)
        self._move(machine.Event.READY, _Readiness(tuple(ready.lost)))

    def _work(self) -> None:
        """Answer messages until Leave."""
        while True:
            message = self._channel.receive()
            if isinstance(message, Step):
                self._step(message)
            elif isinstance(message, Ping):
                self._channel.send(Pong(session=self._session, last_step_id=self._last_step_id))
            elif isinstance(message, Leave):
                self._move(machine.Event.DRAIN)
                return
            else:
                raise PeerError(f"worker session {self._session}: a second {type(message).__name__}")

    def _step(self, step: Step) -> None:
        """Run step last + 1 and remember its reply; a fault consumes the number too, for it was answered."""
        expected = self._last_step_id + 1
        if step.step_id == expected:
            waited_ns = time.monotonic_ns() - self._replied_ns if self._replied_ns else 0
            reply = self._run(step)
            if isinstance(reply, Report):
                reply = msgspec.structs.replace(reply, wait_ns=waited_ns)
            self._last_step_id = expected
            self._last_reply = self._channel.send(reply)
            self._replied_ns = time.monotonic_ns()
            if isinstance(reply, Report) and reply.lost is not None:
                self._move(machine.Event.DEGRADE)
        elif step.step_id == self._last_step_id:
            self._channel.resend(self._last_reply)
        else:
            self._channel.send(self._fault(step, "STEP_GAP", f"step {step.step_id} came, expected {expected}"))

    def _run(self, step: Step) -> Report | StepFault:
        try:
            return self._backend.run(step)
        except StepFailed as failed:
            log.warning(
                "step_failed", session=self._session, step_id=step.step_id, code=failed.code, reason=str(failed)
            )
            return self._fault(step, failed.code, str(failed))
        except Exception as error:
            log.exception("step_raised", session=self._session, step_id=step.step_id)
            return self._fault(step, "INTERNAL", _last_line(error))

    def _fault(self, step: Step, code: str, message: str) -> StepFault:
        return StepFault(session=self._session, step_id=step.step_id, code=code, message=message)

    def _move(self, event: machine.Event, facts: object = None) -> None:
        self._state = machine.TABLE.step(self._state, event, facts).next

    def _say_goodbye(self, reason: str, *, refused: bool = False) -> None:
        """The last word may be lost; the exit code and the closed channel say the same."""
        try:
            self._channel.send(Goodbye(reason=reason, session=self._session, refused=refused))
        except _Departed:
            log.info("goodbye_unheard", session=self._session, reason=reason)


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()[:2000]
