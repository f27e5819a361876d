"""What an engine needs and what this machine has of it: findings, one a line.

Owns the examinations, each of which is over in seconds and leaves nothing behind; torch is only looked at in a process
of its own. `dsparkd doctor` prints them.
"""

import json
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import attrs
import zmq

from ...statemachine.errors import EngineError
from ..wire.sockets import Router
from .config import Settings
from .folders import PrivateFolder
from .setting_checks import host_and_port
from .setting_files import file_problems

GOOD, NOTE, MISSING = "good", "note", "missing"  # a note lacks something that these settings can do without
LEAST_FILES, PLENTY_FILES = 256, 4096
CUDA_S = 60.0
ASK_TORCH = (
    "import json, torch; print(json.dumps([torch.cuda.is_available(), torch.version.cuda, "
    "[torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]]))"
)


@attrs.frozen
class Finding:
    name: str
    verdict: str
    detail: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what was found, in the order in which an engine would need it."""
    yield from examine_machine(settings)
    yield from files(settings)
    yield bind_address(settings.bind)
    if settings.metrics is not None:
        yield metrics_address(settings.metrics)


def examine_machine(settings: Settings) -> Iterator[Finding]:
    """What does not depend on files and addresses."""
    yield python()
    yield package("zmq", "pyzmq", needed=True, use="nothing works without it")
    yield package("tokenizers", "tokenizers", needed=False, use="without it prompts are token ids: dsparkd[text]")
    real = not settings.target.startswith("scripted")
    for name in ("torch", "safetensors", "numpy"):
        yield package(name, name, needed=real, use="a worker of a real checkpoint needs dsparkd[worker]")
    if real:
        yield cuda(settings)
    metrics = settings.metrics is not None
    yield package("prometheus_client", "prometheus-client", needed=metrics, use="the setting metrics needs it")
    yield open_files()
    yield private_folders()


def python() -> Finding:
    found = f"Python {platform.python_version()} on {platform.system()}"
    if sys.version_info < (3, 11) or not hasattr(os, "pidfd_open"):
        return Finding("python", MISSING, f"{found}: expected Python 3.11 or newer on Linux")
    return Finding("python", GOOD, found)


def package(module: str, name: str, *, needed: bool, use: str) -> Finding:
    """Found without importing it."""
    if find_spec(module) is None:
        return Finding(module, MISSING if needed else NOTE, f"{name} is not installed: {use}")
    try:
        return Finding(module, GOOD, f"{name} {version(name)}")
    except PackageNotFoundError:
        return Finding(module, GOOD, f"{name}, of unknown version")


def cuda(settings: Settings) -> Finding:
    """Asked in a process of its own: torch must not be loaded here, and a broken driver may kill who asks."""
    needed = MISSING if settings.device.startswith("cuda") else NOTE
    wanted = f"the setting device = {settings.device!r} " + ("needs it" if needed is MISSING else "does without")
    if find_spec("torch") is None:
        return Finding("cuda", needed, f"no torch to ask; {wanted}")
    try:
        done = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=CUDA_S)
        available, built_for, devices = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return Finding("cuda", MISSING, "torch does not load, or does not answer")
    if not available:
        return Finding("cuda", needed, f"torch (built for CUDA {built_for}) finds no device; {wanted}")
    return Finding("cuda", GOOD, f"CUDA {built_for}: {', '.join(devices)}")


def open_files() -> Finding:
    """Each client takes one descriptor; an engine that runs out of them accepts nobody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} open files allowed (hard limit {hard}), one for each client"
    if soft < LEAST_FILES:
        return Finding("open_files", MISSING, f"{found}: expected {LEAST_FILES} or more, see ulimit -n")
    if soft < PLENTY_FILES:
        return Finding("open_files", NOTE, f"{found}; ulimit -n {PLENTY_FILES} allows more")
    return Finding("open_files", GOOD, found)


def private_folders() -> Finding:
    try:
        folder = PrivateFolder()
    except OSError as error:
        return Finding("private_folders", MISSING, f"none can be made for the worker's socket: {error}")
    mode = folder.path.stat().st_mode & 0o777
    path = folder.path.parent
    folder.remove()
    if mode != 0o700:
        return Finding("private_folders", MISSING, f"folders in {path} get mode {mode:o}: expected 700")
    return Finding("private_folders", GOOD, f"they can be made in {path}")


def files(settings: Settings) -> Iterator[Finding]:
    for key, value, problem in file_problems(settings):
        hint = "; `dsparkd inspect` looks inside" if key in ("target", "drafter") else ""
        yield Finding(key, MISSING if problem else GOOD, f"{value}: {problem}" if problem else value + hint)


def bind_address(address: str) -> Finding:
    """Bound for a moment, as the engine would; folders that this made are removed."""
    parents = Path(address.removeprefix("ipc://")).parents if address.startswith("ipc://") else ()
    made = [parent for parent in parents if not parent.exists()]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        Router(context, address).close()
        return Finding("bind", GOOD, f"{address} is free")
    except (EngineError, OSError) as error:
        return Finding("bind", MISSING, str(error))
    finally:
        context.destroy(linger=0)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def metrics_address(address: str) -> Finding:
    host, port = host_and_port(address) or ("", 0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the endpoint does
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding("metrics", MISSING, f"{address}: cannot listen there: {error}")
    return Finding("metrics", GOOD, f"{address} is free")


__all__ = ["GOOD", "MISSING", "NOTE", "Finding", "examine", "examine_machine"]
