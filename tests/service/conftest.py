"""Engines as child processes, workers as threads behind a fake scheduler, and waiting without sleeping blindly."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from dsparkd.scheduler.service import local, run
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.trace.scripted_backend import ScriptedBackend
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.client import Client
from dsparkd.scheduler.wire.sockets import Router
from dsparkd.scheduler.wire.workerside import Backend, serve_worker

DEADLINE_S = 60.0


def _eventually(found: Callable[[], Any], what: str = "the condition") -> Any:
    until = time.monotonic() + DEADLINE_S
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come about within {DEADLINE_S} s")
        threading.Event().wait(0.01)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Poll until a function returns something true."""
    return _eventually


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def children() -> Callable[[int], list[int]]:
    """The living children of a process."""
    return _children


class Engine:
    """One engine process with a scripted worker, and clients to it."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.settings = Settings.from_mapping(
            {
                "target": "scripted:mean=3.2",
                "drafter": "scripted",
                "bind": f"ipc://{folder}/engine",
                "heartbeat_s": 0.2,
                **settings,
            }
        )
        self.address = self.settings.bind
        self.log_path = Path(folder) / "log"
        with self.log_path.open("wb") as log:
            self.process = run.start(self.settings, respawn=self.settings.journal is not None, log=log)
        self.clients: list[Client] = []

    def client(self, *, ready: bool = True, timeout_s: float = DEADLINE_S) -> Client:
        made = Client(self.address, timeout_s=timeout_s)
        self.clients.append(made)
        if ready:
            made.wait_ready(DEADLINE_S)
        return made

    def scheduler_pid(self) -> int:
        """With a journal the engine is a small parent, and the scheduler its child."""
        if self.settings.journal is None:
            return self.process.pid
        return int(_eventually(lambda: _children(self.process.pid), "a scheduler")[0])

    def worker_pid(self) -> int:
        """One that has its own program: between fork and exec it is the scheduler's twin."""
        return int(_eventually(lambda: _with_program(_children(self.scheduler_pid()), b"worker"), "a worker")[0])

    def kill_worker(self) -> None:
        os.kill(self.worker_pid(), signal.SIGKILL)

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            return local.stop(self.process)
        return self.process.returncode


@pytest.fixture
def serve() -> Iterator[Callable[..., Engine]]:
    """Start engines; in the end none of them and no worker of theirs is left."""
    engines: list[Engine] = []
    with tempfile.TemporaryDirectory(prefix="dsparkd-test-") as folder:

        def make(**settings: Any) -> Engine:
            place = Path(folder) / str(len(engines))
            place.mkdir(mode=0o700)
            engines.append(Engine(str(place), settings))
            return engines[-1]

        yield make
        for engine in engines:
            below = [pid for child in _children(engine.process.pid) for pid in (child, *_children(child))]
            engine.stop()
            _eventually(lambda below=below: not any(_is_alive(pid) for pid in below), "the end of its children")


def _with_program(pids: list[int], word: bytes) -> list[int]:
    found = []
    for pid in pids:
        with suppress(OSError):
            found += [pid] if word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") else []
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return _is_alive


class WorkerLink:
    """A worker in a thread, and the scheduler's end of its channel in the test's hands."""

    def __init__(self, address: str, backend: Backend) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.router = Router(self.context, address)
        self.exit_code: int | None = None
        self.identity = b""
        self._decoder = codec.from_worker()
        self._thread = threading.Thread(target=self._serve, args=(backend,))
        self._thread.start()

    def _serve(self, backend: Backend) -> None:
        self.exit_code = serve_worker(self.router.address, session=1, token="secret", backend=backend)

    def receive(self) -> Any:
        assert self.router.socket.poll(int(DEADLINE_S * 1000)), "the worker says nothing"
        self.identity, (frame,) = self.router.receive(1)[0]
        return self._decoder.decode(frame)

    def send(self, message: wire.Message) -> None:
        self.router.send(self.identity, codec.encode(message))

    def ask(self, message: wire.Message) -> Any:
        self.send(message)
        return self.receive()

    def shake_hands(self, **init: Any) -> wire.Ready:
        self.receive()
        settings = {"target": "scripted", "drafter": "x", "num_slots": 2, "max_model_len": 128, "max_step_tokens": 64}
        loaded = self.ask(wire.Init(session=1, **{**settings, **init}))
        assert isinstance(loaded, wire.Loaded), loaded
        ready = self.receive()
        assert isinstance(ready, wire.Ready)
        return ready

    def join(self) -> int | None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.exit_code

    def close(self) -> None:
        if self._thread.is_alive() and self.identity:
            self.send(wire.Leave(session=1))
        self._thread.join(DEADLINE_S)
        self.router.close()
        self.context.term()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Callable[..., WorkerLink]]:
    """Start workers in threads behind a fake scheduler."""
    links: list[WorkerLink] = []
    with tempfile.TemporaryDirectory(prefix="dsparkd-test-") as folder:

        def make(backend: Backend | None = None) -> WorkerLink:
            links.append(WorkerLink(f"ipc://{folder}/w{len(links)}", backend or ScriptedBackend()))
            return links[-1]

        yield make
        for one in links:
            one.close()


@pytest.fixture
def run_python() -> Callable[[str], "subprocess.CompletedProcess[str]"]:
    """Run code in a fresh interpreter that imports the same package."""
    import sys

    def run(code: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)

    return run
