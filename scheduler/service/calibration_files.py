"""Calibrations of the confidence head as files: what `dsparkd calibrate` writes and `confidence_calibration` names.

Owns the file's form (JSON) and its judgement; whether it fits the drafter is known at READY (`core/policies`).
"""

import json
import math
from pathlib import Path

import msgspec

from ...statemachine.errors import Refused, refuse_all

FORMAT = 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One temperature and one count of verified rounds for each position of the block.

    `fingerprint` names target and drafter as cost tables do, as far as they are known; `ece_*` are expected
    calibration errors of those rounds, for people.
    """

    format: int = FORMAT
    dsparkd: str
    fingerprint: dict[str, str]
    temperatures: list[float]
    num_rounds: list[int]
    ece_before: list[float]
    ece_after: list[float]


def read_calibration(path: Path) -> Calibration:
    """Raises `Refused` (BAD_CONFIG) for what is no calibration, with every fault of it."""
    try:
        made = msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Calibration)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Refused("BAD_CONFIG", f"confidence_calibration {path}: cannot be read: {error}") from error
    problems = [] if made.format == FORMAT else [f"format = {made.format}: expected {FORMAT}"]
    if not made.temperatures:
        problems.append("temperatures = []: expected one for each position of the block")
    problems += [
        f"temperatures[{index}] = {value}: expected a finite number above 0"
        for index, value in enumerate(made.temperatures)
        if not (math.isfinite(value) and value > 0)
    ]
    refuse_all(f"confidence_calibration {path}", problems)
    return made


def write_calibration(path: Path, made: Calibration) -> None:
    """Raises `Refused` (BAD_CONFIG) when the file cannot be written."""
    try:
        path.write_text(json.dumps(msgspec.to_builtins(made), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {path}: cannot be written: {error}") from error
