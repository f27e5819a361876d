"""dsparkd: an engine for DSpark speculative decoding.

The public API, loaded on first use: `Client`, `AsyncClient` (talk to an engine), `local` (an engine of one's own for a
`with` block), `curve_keys` (for an engine beyond this machine), and the errors that they raise. Importing this never
loads torch.
"""

from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scheduler.wire.client import Client, Stream
    from .scheduler.wire.client_async import AsyncClient, AsyncStream
    from .scheduler.wire.curve import curve_keys
    from .scheduler.wire.result import EngineLost, Result
    from .statemachine.errors import EngineError, LocalError, PeerError, Refused

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "scheduler.wire.client_async",
    "AsyncStream": "scheduler.wire.client_async",
    "Client": "scheduler.wire.client",
    "EngineError": "statemachine.errors",
    "EngineLost": "scheduler.wire.result",
    "LocalError": "statemachine.errors",
    "PeerError": "statemachine.errors",
    "Refused": "statemachine.errors",
    "Result": "scheduler.wire.result",
    "Stream": "scheduler.wire.client",
    "curve_keys": "scheduler.wire.curve",
}
__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "EngineError",
    "EngineLost",
    "LocalError",
    "PeerError",
    "Refused",
    "Result",
    "Stream",
    "__version__",
    "curve_keys",
    "local",
]


def local(**settings: Any) -> "AbstractContextManager[Client]":
    """Start scheduler and worker as child processes; yield a client once they serve, and end them with the block.

    `settings` are keys of docs/configuration.md; without a `target` the shipped pair is served. `wait_s` (120): seconds
    until it must serve; `timeout_s` (30): of the client; `log`: a file for the log (None: our stderr; by
    default nobody reads it). Raises `Refused` for bad settings, and with the engine's own reason when it will not serve
    them; `EngineLost` when it does not get ready in time.
    """
    from .models.shipped import shipped_pair
    from .scheduler.service.local import local as start

    if "target" not in settings:
        pair = shipped_pair()
        settings = {"target": str(pair.target), "drafter": str(pair.drafter), **settings}
    return start(**settings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
