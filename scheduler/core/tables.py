"""Which table runs each machine: an argument of the core, so that a changed table can be put in and judged.

Owns the set of machines, nothing of their rows.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from ...statemachine import client, engine, request, slot, step, worker
from ...statemachine.table import Table


class Machine(IntEnum):
    REQUEST = 0
    SLOT = 1
    STEP = 2
    WORKER = 3
    CLIENT = 4
    ENGINE = 5


Tables = Mapping[Machine, Table[Any, Any, Any]]

TABLES: Tables = {
    Machine.REQUEST: request.TABLE,
    Machine.SLOT: slot.TABLE,
    Machine.STEP: step.TABLE,
    Machine.WORKER: worker.TABLE,
    Machine.CLIENT: client.TABLE,
    Machine.ENGINE: engine.TABLE,
}
