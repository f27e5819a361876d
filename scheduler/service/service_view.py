"""What `stats` shows: the core's numbers, and beside them what the process around the core knows.

Owns presentation only. `loop.py` answers GetStats with it; docs and `dsparkd top` read it.
"""

from typing import Any

from ..core.handle import Core
from .clients import ClientEdge
from .workers import WorkerEdge


def describe_service(
    core: Core, settings: dict[str, Any], clients: ClientEdge, worker: WorkerEdge, *, metrics_url: str | None
) -> dict[str, Any]:
    """Every number by its name. The list of slots says whose request it is by the name that its client gave."""
    stats = core.stats()
    for one in stats["slot_list"]:
        record = clients.translate.records.get(one.get("request"))
        if record is not None:
            one["request_id"], one["label"] = record.request_id, record.label
    return {
        **stats,
        **worker.times,
        "client_frames_dropped": clients.drops.count,
        "worker_frames_dropped": worker.drops.count,
        "early_len": len(clients.early),
        "clients_turned_away": clients.router.num_turned_away,
        "refused_at_door": dict(clients.refused),
        "metrics_url": metrics_url,
        "settings": settings,
    }
