"""What watches the loop: metrics, and a log line for each transition; either only when settings ask for it.

Owns the choice; without it the loop carries something that does nothing. `loop.py` calls both at start.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from ..core import events, results
from ..core.handle import Core
from ..core.ledger import Record
from ..core.tables import Machine
from .clients import ClientEdge
from .config import Settings
from .workers import WorkerEdge

if TYPE_CHECKING:
    from .metrics_server import MetricsServer

log = structlog.get_logger()


class Unwatched:
    """Metrics that nobody asked for."""

    url: str | None = None

    def took(self, event: events.Input, outputs: list[results.Output]) -> None: ...

    def obeyed(self, began_ns: int) -> None: ...

    def end_turn(self, began_ns: int) -> None: ...

    def close(self) -> None: ...


def watch_turns(
    settings: Settings, core: Core, clients: ClientEdge, worker: WorkerEdge, *, wake: Callable[[], None]
) -> "Unwatched | MetricsServer":
    """Return what hears of turns, listening already if it serves metrics. Raises `Refused` when it cannot listen."""
    if settings.metrics is None:
        return Unwatched()
    from .metrics import Metrics  # only now: nobody else needs a web server
    from .metrics_server import MetricsServer

    server = MetricsServer(settings.metrics, Metrics(core, clients, worker), wake=wake)
    log.info("metrics_served", url=server.url)
    return server


def watch_transitions(settings: Settings, core: Core) -> None:
    """At log level `debug` every step of every machine is a line."""
    if settings.log_level != "debug":
        return

    def told(machine: Machine, record: Record, event: Any, index: int) -> None:
        entry = core.tables[machine].listing[index]
        state: Any = record.state  # type: ignore[attr-defined]
        case = getattr(entry, "case", None)
        log.debug(
            "transition",
            machine=machine.name,
            id=getattr(record, "id", None),  # there is one worker and one engine
            **{"from": state.name},
            event_name=event.name,
            case=None if case is None else case.name,
            to=getattr(entry, "next", state).name,
        )

    core.watch = told
