"""Mutants that change nothing, each with its reason: the only ones that may survive.

Owns the list. `verdict.py` fails when one of them is noticed after all (its reason is wrong then), when the list names
a mutant that does not exist, and when it grows beyond three in a hundred.
"""

from collections.abc import Mapping

_FORGIVEN = (
    "a request that decodes was forgiven when its last chunk emitted, and nothing charges it before it is queued"
)
_NEVER_SERVED = "a worker that never served has no step, no seated request and no quarantined slot to lose"
_LATE_DEGRADE = "the report that brings DEGRADE has just started the same timer with the same delay"
_TIMER_STOPS = "failing the rest makes the engine idle, which stops the timer within the same input"


def _early(state: str) -> list[str]:
    ways = ("DIED--> DEAD", "STALLED--> DEAD", "BROKE_CONTRACT--> DEAD", "DRAIN--> STOPPED")
    return [f"WORKER {state} --{way}: add LOSE_ALL" for way in ways]


EQUIVALENT: Mapping[str, str] = {
    "REQUEST VERIFYING --EMITTED[DRAFT_LEFT]--> DRAFT_READY: drop FORGIVE": _FORGIVEN,
    "REQUEST VERIFYING --EMITTED[ANCHOR_LEFT]--> ANCHOR_READY: drop FORGIVE": _FORGIVEN,
    "REQUEST VERIFYING --UNDONE--> DRAFT_READY: add FORGIVE": _FORGIVEN,
    "REQUEST STEPPING --EMITTED[DRAFT_LEFT]--> DRAFT_READY: drop FORGIVE": _FORGIVEN,
    "REQUEST STEPPING --EMITTED[ANCHOR_LEFT]--> ANCHOR_READY: drop FORGIVE": _FORGIVEN,
    "REQUEST STEPPING --UNDONE[DRAFT]--> DRAFT_READY: add FORGIVE": _FORGIVEN,
    "REQUEST STEPPING --UNDONE[ANCHOR]--> ANCHOR_READY: add FORGIVE": _FORGIVEN,
    **dict.fromkeys([*_early("SPAWNED"), *_early("LOADING"), *_early("WARMING")], _NEVER_SERVED),
    "WORKER DEAD --DRAIN--> STOPPED: add LOSE_ALL": "what it had was lost when it died",
    "WORKER READY --DEGRADE--> DEGRADED: add ARM": _LATE_DEGRADE,
    "ENGINE DRAINING --DRAIN_DEADLINE--> DRAINING: add START_DRAIN_TIMER": _TIMER_STOPS,
}
