"""dsparkd: an engine for DSpark speculative decoding.

The public API, loaded on first use: `Client`, `AsyncClient` (talk to an engine), `local` (an engine of one's own for a
`with` block), `curve_keys` (for an engine beyond this machine), and the errors that they raise. Importing this never
loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scheduler.service.local import local
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
    "local": "scheduler.service.local",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
