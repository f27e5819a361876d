"""CURVE: who may speak on a socket that others than this machine reach, and the keys that show it.

Owns the reading of key files (those of `zmq.auth`) and the allow-list; never a message. A router gets `ServerKeys`, a
dealer `ClientKeys`. Secrets stay in their files' bytes: no message and no log line shows one.
"""

import threading
from pathlib import Path

import attrs
import zmq
import zmq.auth

from ...statemachine.errors import Refused, refuse_all

SUFFIX, SECRET_SUFFIX = ".key", ".key_secret"
_OTHERS_MAY = 0o077


@attrs.frozen(kw_only=True)
class ServerKeys:
    """The engine's own pair, and the public keys of the clients that it lets in."""

    public: bytes
    secret: bytes = attrs.field(repr=False)
    allowed: frozenset[bytes]


@attrs.frozen(kw_only=True)
class ClientKeys:
    """The engine's public key and the client's own pair."""

    server: bytes
    public: bytes
    secret: bytes = attrs.field(repr=False)


def server_keys(secret: Path, clients: Path) -> ServerKeys:
    """Read the engine's secret file and a folder of its clients' public ones. Raises `Refused` listing every fault."""
    problems: list[str] = []
    own = _own_pair(secret, "curve_secret", problems)
    allowed = set()
    files = sorted(clients.glob(f"*{SUFFIX}")) if clients.is_dir() else []
    if not files:
        problems.append(f"curve_clients = {str(clients)!r}: expected a folder with a client's public {SUFFIX} or more")
    for path in files:
        key = _public(path, "curve_clients", problems)
        if key is not None:
            allowed.add(key)
    refuse_all("CURVE keys", problems)
    return ServerKeys(public=own[0], secret=own[1], allowed=frozenset(allowed))


def curve_keys(server: Path, secret: Path) -> ClientKeys:
    """Read the engine's public file and the client's own secret one. Raises `Refused` listing every fault."""
    problems: list[str] = []
    theirs = _public(server, "server key", problems)
    own = _own_pair(secret, "client key", problems)
    refuse_all("CURVE keys", problems)
    return ClientKeys(server=theirs or b"", public=own[0], secret=own[1])


def make_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a new pair, NAME.key and NAME.key_secret (mode 0600). Raises `Refused` when there is one of that name."""
    public, secret = (folder / f"{name}{suffix}" for suffix in (SUFFIX, SECRET_SUFFIX))
    taken = [str(path) for path in (public, secret) if path.exists()]
    refuse_all("keys", [f"{path}: exists already" for path in taken])
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret.touch(mode=0o600)
        zmq.auth.create_certificates(folder, name)
    except OSError as error:
        raise Refused("BAD_CONFIG", f"keys in {folder}: {error}") from error
    return public, secret


class Doorkeeper:
    """Lets in on a context's CURVE sockets whoever is on the allow-list. `num_turned_away` counts the others."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: ServerKeys) -> None:
        self.num_turned_away = 0
        self._allowed, self._lock = keys.allowed, threading.Lock()
        from zmq.auth.thread import ThreadAuthenticator  # it brings asyncio, which no client should wait for

        self._inner = ThreadAuthenticator(context)
        self._inner.start()
        self._inner.configure_curve_callback(domain="*", credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator's thread for each handshake. key: in Z85."""
        if key in self._allowed:
            return True
        with self._lock:
            self.num_turned_away += 1
        return False

    def close(self) -> None:
        self._inner.stop()


def _own_pair(path: Path, key: str, problems: list[str]) -> tuple[bytes, bytes]:
    try:
        if path.stat().st_mode & _OTHERS_MAY:
            problems.append(f"{key} = {str(path)!r}: others may read it; expected mode 0600")
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        problems.append(f"{key} = {str(path)!r}: cannot be read: {error}")
        return b"", b""
    if secret is None:
        problems.append(f"{key} = {str(path)!r}: holds no secret key; expected a NAME{SECRET_SUFFIX}")
    return public, secret or b""


def _public(path: Path, key: str, problems: list[str]) -> bytes | None:
    try:
        return zmq.auth.load_certificate(path)[0]
    except (OSError, ValueError) as error:
        problems.append(f"{key}: {str(path)!r} cannot be read: {error}")
        return None
