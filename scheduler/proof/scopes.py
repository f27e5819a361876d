"""The scopes that ship: small ones that together reach every row and every named situation, and large ones for depth.

Owns the list, nothing else. `SMALL` runs in the tests and for every mutant that is still alive; `LARGE` runs once, in
`dsparkd check`.
"""

from .scope import Scope

SMALL = (
    Scope(
        name="boot",
        num_requests=1,
        num_slots=1,
        max_tokens=1,
        booted=False,
        restart_budget=1,
        late_words=True,
        troubles={"wait": 1, "death": 2, "broken": 2, "partial": 1, "shrunk": 1, "drain": 1, "stop": 1},
    ),
    Scope(
        name="decode",
        num_requests=2,
        num_slots=2,
        max_tokens=5,
        max_step_tokens=5,
        wants=(0, 2),
        troubles={"cancel": 1},
    ),
    Scope(
        name="faults",
        num_requests=2,
        num_slots=2,
        max_tokens=3,
        accepted=(0,),
        troubles={"row_fault": 1, "step_fault": 2, "cancel": 1, "bug": 1},
    ),
    Scope(
        name="deaths",
        num_requests=2,
        num_slots=2,
        max_tokens=3,
        accepted=(0,),
        deadlines=frozenset({0}),
        troubles={"death": 2, "wait": 2, "cancel": 1, "drafter_fault": 1},
    ),
    Scope(
        name="chunks",
        num_requests=2,
        num_slots=2,
        prompt_len=3,
        max_tokens=2,
        max_step_tokens=2,
        troubles={"step_fault": 1, "death": 1, "cancel": 1, "bug": 1},
    ),
    Scope(
        name="poison",
        num_requests=2,
        num_slots=1,
        max_tokens=2,
        max_restarts=2,
        restart_budget=4,
        idle_drain=False,
        troubles={"death": 3, "drain": 1},
    ),
    Scope(
        name="labels",
        num_requests=2,
        num_slots=1,
        max_tokens=4,
        restart_budget=1,
        late_words=True,
        reuse_ids=True,
        deadlines=frozenset({0}),
        troubles={"broken": 1, "stop_token": 1, "cancel": 1, "wait": 2, "unfit": 1},
    ),
    Scope(
        name="clients",
        num_requests=2,
        num_slots=1,
        max_tokens=2,
        clients=(0, 1),
        troubles={"away": 2, "goodbye": 1, "wait": 2, "cancel": 1},
    ),
    Scope(
        name="drain",
        num_requests=2,
        num_slots=1,
        max_tokens=3,
        restart_budget=1,
        deadlines=frozenset({1}),
        troubles={"drain": 1, "stop": 1, "death": 1, "wait": 3, "drafter_fault": 1, "step_fault": 1, "unfit": 1},
    ),
)
LARGE = (
    Scope(
        name="crowd",
        num_requests=3,
        num_slots=2,
        max_tokens=4,
        max_step_tokens=6,
        wants=(0, 2),
        troubles={"cancel": 1, "death": 1},
    ),
    Scope(
        name="storm",
        num_requests=2,
        num_slots=2,
        prompt_len=2,
        max_tokens=4,
        max_step_tokens=5,
        wants=(0, 1, 2),
        troubles={"row_fault": 1, "step_fault": 1, "death": 1, "cancel": 1, "drain": 1},
    ),
)
