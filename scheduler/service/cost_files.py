"""Cost tables as files: written from an engine's statistics, read before it starts.

Owns the file's form (JSON, as `stats` shows the table) and its judgement; whether it fits the worker, the worker says.
`loop.py` reads one when the setting `cost_table` names it, `dsparkd costs` writes one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...statemachine.errors import Refused, refuse_all
from ..core.costs import cost_problems, falls
from ..wire.messages import CostTable
from .worker_rows import core_costs


def read_costs(path: Path) -> CostTable:
    """Raises `Refused` (BAD_CONFIG) for what is no table, and for times that are not positive or that fall."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values.pop("corrections", None)  # news about the measuring; the times are corrected already
        table = msgspec.convert(values, CostTable)
    except (OSError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise Refused("BAD_CONFIG", f"cost_table {path}: cannot be read: {error}") from error
    known = core_costs(table)
    refuse_all(f"cost_table {path}", cost_problems(known) or falls(known))
    return table


def write_costs(path: Path, stats: Mapping[str, Any]) -> None:
    """Raises `Refused` when the engine has no table, or the file cannot be written."""
    table = stats["cost_table"]
    if table is None:
        raise Refused(
            "NO_COST_TABLE", "the engine has no cost table: measure_costs is off, or its worker measures none"
        )
    try:
        path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {path}: cannot be written: {error}") from error
