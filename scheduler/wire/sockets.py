"""The two socket kinds of the protocol: a ROUTER that binds and never blocks, a DEALER that connects.

Owns addresses, high-water marks and outboxes; never looks into a frame. The service binds, workers and clients connect.
A peer that cannot be written to is reported once by `take_lost`, never waited for.
"""

import errno
import os
import socket
import stat
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

import zmq

from ...statemachine.errors import Refused, refuse_all
from .codec import MAX_FRAME_BYTES
from .curve import ClientKeys, Doorkeeper, ServerKeys

MAX_IPC_PATH_BYTES = 107  # sun_path holds 108 with its final zero
HIGH_WATER_FRAMES = 1000
MAX_OUTBOX_FRAMES = 4096
_NOBLOCK = int(zmq.NOBLOCK)  # plain integers: these Enum's `|` is Python code, run for each frame
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Router:
    """Binds `address`. `send` queues at most `max_outbox` frames for a peer whose pipe is full."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        *,
        high_water: int = HIGH_WATER_FRAMES,
        max_outbox: int = MAX_OUTBOX_FRAMES,
        keys: ServerKeys | None = None,
    ) -> None:
        refuse_all(f"bind {address}", endpoint_problems(address, has_keys=keys is not None))
        if address.startswith("ipc://"):
            _take_over(Path(address[len("ipc://") :]))
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._doorkeeper = None if keys is None else Doorkeeper(context, keys)
        if keys is not None:
            self.socket.curve_server = True
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
        _bound(self.socket, high_water)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self._end(0)
            code = "ADDRESS_IN_USE" if error.errno == zmq.EADDRINUSE else "BAD_CONFIG"
            raise Refused(code, f"bind {address}: {error}") from error
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if address.startswith("ipc://"):
            Path(address[len("ipc://") :]).chmod(0o600)
        self._max_outbox = max_outbox
        self._outboxes: dict[bytes, deque[bytes]] = {}
        self._lost: dict[bytes, str] = {}

    def receive(self, limit: int = 256) -> list[tuple[bytes, list[bytes]]]:
        """Return up to `limit` waiting messages as (identity, parts), without blocking."""
        received: list[tuple[bytes, list[bytes]]] = []
        while len(received) < limit and self.socket.poll(0):  # asking costs a quarter of what catching Again does
            identity, *parts = self.socket.recv_multipart(zmq.NOBLOCK)
            received.append((identity, parts))
        return received

    def send(self, identity: bytes, frame: bytes) -> None:
        """Send now, or keep the order behind what waits; a peer that is gone or too slow is reported as lost."""
        outbox = self._outboxes.get(identity)
        if outbox is None:
            if not self._try(identity, frame):
                self._outboxes[identity] = deque([frame])
        elif len(outbox) < self._max_outbox:
            outbox.append(frame)
        else:
            self._lose(identity, f"{len(outbox)} frames wait in its outbox")

    def flush(self) -> None:
        """Try again what waits in the outboxes."""
        for identity, outbox in list(self._outboxes.items()):
            while outbox and self._try(identity, outbox[0]):
                outbox.popleft()
            if not outbox:
                self._outboxes.pop(identity, None)

    @property
    def waits(self) -> bool:
        """Whether some outbox holds frames, so that the next poll must not sleep long."""
        return bool(self._outboxes)

    def take_lost(self) -> dict[bytes, str]:
        """Return the peers lost since the last call, each with the reason."""
        lost, self._lost = self._lost, {}
        return lost

    @property
    def num_turned_away(self) -> int:
        """Handshakes of strangers, where there is an allow-list."""
        return 0 if self._doorkeeper is None else self._doorkeeper.num_turned_away

    def close(self, linger_ms: int = 0) -> None:
        self._end(linger_ms)
        if self.address.startswith("ipc://"):
            Path(self.address[len("ipc://") :]).unlink(missing_ok=True)

    def _end(self, linger_ms: int) -> None:
        self.socket.close(linger=linger_ms)
        if self._doorkeeper is not None:
            self._doorkeeper.close()

    def _try(self, identity: bytes, frame: bytes) -> bool:
        """Return False when the pipe is full; a peer without a route is lost, and the frame with it."""
        try:
            self.socket.send(identity, _NOBLOCK_MORE)
            self.socket.send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._lose(identity, "no route to it")
        return True

    def _lose(self, identity: bytes, reason: str) -> None:
        self._outboxes.pop(identity, None)
        self._lost[identity] = reason


def dealer(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    *,
    high_water: int = HIGH_WATER_FRAMES,
    probes: bool = False,
    keys: ClientKeys | None = None,
) -> "zmq.Socket[bytes]":
    """Return a DEALER connected to `address` (which need not exist yet). Raises `Refused` for a bad address.

    probes: an empty frame goes ahead on each new connection, so that the other side speaks first; what waited for an
    older connection is dropped with it, and nothing waits while there is none.
    """
    refuse_all(f"connect {address}", endpoint_problems(address, has_keys=keys is not None))
    made = context.socket(zmq.DEALER)
    _bound(made, high_water)
    made.setsockopt(zmq.PROBE_ROUTER, int(probes))
    made.setsockopt(zmq.IMMEDIATE, int(probes))  # else one pipe outlives its connections, and only the first is probed
    if keys is not None:
        made.curve_serverkey, made.curve_publickey, made.curve_secretkey = keys.server, keys.public, keys.secret
    try:
        made.connect(address)
    except zmq.ZMQError as error:
        made.close(linger=0)
        raise Refused("BAD_CONFIG", f"connect {address}: {error}") from error
    return made


def endpoint_problems(address: str, *, has_keys: bool = False) -> list[str]:
    """Return what is wrong with `address`, a sentence each. has_keys: CURVE keys say who may speak there."""
    if address.startswith("ipc://"):
        return _ipc_problems(address[len("ipc://") :])
    if address.startswith("tcp://"):
        return _tcp_problems(address, has_keys=has_keys)
    return [f"{address!r}: expected ipc://PATH or tcp://127.0.0.1:PORT"]


def _ipc_problems(path: str) -> list[str]:
    size = len(os.fsencode(path))
    if not path or path.startswith(("@", "*")):
        return [f"ipc path {path!r}: expected a path of the file system (only that has permissions)"]
    if "\0" in path:
        return [f"ipc path {path!r}: holds a zero byte"]
    if size > MAX_IPC_PATH_BYTES:
        return [f"ipc path {path!r}: {size} bytes, expected {MAX_IPC_PATH_BYTES} or less"]
    return []


def _tcp_problems(address: str, *, has_keys: bool) -> list[str]:
    try:
        host = urlsplit(address).hostname
    except ValueError as error:
        return [f"{address!r}: {error}"]
    port = address.rpartition(":")[2]
    problems = []
    if host not in _LOOPBACK and not has_keys:
        problems.append(f"{address!r}: anybody who reaches it could speak there; expected loopback or CURVE keys")
    if port != "*" and not (port.isascii() and port.isdigit() and int(port) < 65536):
        problems.append(f"{address!r}: port {port!r}: expected 0..65535 or *")
    return problems


def _bound(made: "zmq.Socket[bytes]", high_water: int) -> None:
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.SNDHWM, high_water)
    made.setsockopt(zmq.RCVHWM, high_water)
    made.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)


def _take_over(path: Path) -> None:
    """Make the socket's directory, for us alone; remove the file of a dead instance, refuse that of a live one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused("BAD_CONFIG", f"bind {path}: {path.parent} cannot be made: {error}") from error
    mode = path.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise Refused("BAD_CONFIG", f"bind {path}: anyone may replace files in {path.parent}; expected mode 0700")
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise Refused("BAD_CONFIG", f"bind {path}: the file exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise Refused("ADDRESS_IN_USE", f"bind {path}: another instance serves there")
