"""Rounds for a calibration: verified drafts with the confidence that the drafter had in them, out of two kinds of file.

Owns the readers: traces (`serve --trace`, whose policy asks for confidences, or whose requests ask for their passes),
and the JSON lines that `generate --passes --output` writes. `calibration.py` fits, `cli/calibrate.py` shows.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs
import msgspec

from ...statemachine.errors import Refused
from ..core import events, results
from .reading import Event, is_trace, read_trace
from .replay import replay


@attrs.frozen
class Round:
    """One verify pass: logits of the block's positions in order, how many were verified, how many of these stood."""

    confidence_logits: tuple[float, ...]
    draft_len: int
    accepted_len: int


class _Pass(msgspec.Struct):
    draft_token_ids: list[int]
    accepted_len: int
    emitted_token_ids: list[int]
    confidence_logits: list[float] | None = None


class _Row(msgspec.Struct):
    passes: list[_Pass]


def rounds(path: Path) -> Iterator[Round]:
    """Read a record of either kind. Raises `Refused` naming what does not read."""
    if is_trace(path):
        return rounds_of_trace(path)
    return rounds_of_rows(path)


def rounds_of_trace(path: Path) -> Iterator[Round]:
    """Replay, and meet each verified draft with the logits that its slot reported when it was drafted."""
    held: dict[tuple[int, int], list[float]] = {}  # by slot and epoch
    command: results.Command | None = None
    for step in replay(path):
        report = step.event.input
        if type(report) is events.Report and command is not None and report.step_id == command.step_id:
            for row, got in zip(command.rows, report.rows, strict=False):
                if type(got) is not events.Emitted:
                    continue
                logits = held.pop((got.slot, got.epoch), None)
                if logits is None and got.detail is not None:  # of a request that asked for its passes
                    logits = got.detail.confidence_logits
                if logits is not None and type(row) is events.Decode and row.draft_len:
                    yield Round(tuple(logits[: row.draft_len]), row.draft_len, got.accepted_len)
                if got.held_confidence_logits is not None:
                    held[got.slot, got.epoch] = got.held_confidence_logits
        for output in step.outputs:
            command = output if type(output) is results.Command else command


def models_of(path: Path) -> dict[str, str]:
    """What the engine that made a trace had measured its costs on; empty for rows, and where nothing was measured."""
    if is_trace(path):
        for entry in read_trace(path):
            one = entry.input if isinstance(entry, Event) else None
            if isinstance(one, events.WorkerReady) and one.costs is not None:
                return dict(one.costs.fingerprint)
    return {}


def rounds_of_rows(path: Path) -> Iterator[Round]:
    """Read what `dsparkd generate --passes --output` wrote. Raises `Refused` (BAD_CONFIG) naming the line.

    Passes without a draft or without confidences are left out. Where the output was cut by a stop or a limit, what
    stood behind the cut is not known, so the round ends there.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("BAD_CONFIG", f"record {path}: cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Row)
        except (msgspec.MsgspecError, RecursionError) as error:
            said = f"record {path}, line {number}: {error}: expected a row of `generate --passes`"
            raise Refused("BAD_CONFIG", said) from error
        for one in row.passes:
            if not (0 <= one.accepted_len <= len(one.draft_token_ids)) or _is_short(one):
                raise Refused("BAD_CONFIG", f"record {path}, line {number}: {one}: lengths that do not fit each other")
            cut = len(one.emitted_token_ids) == one.accepted_len
            draft_len = one.accepted_len if cut else len(one.draft_token_ids)
            if draft_len and one.confidence_logits:
                yield Round(tuple(one.confidence_logits[:draft_len]), draft_len, one.accepted_len)


def _is_short(one: _Pass) -> bool:
    return one.confidence_logits is not None and len(one.confidence_logits) < len(one.draft_token_ids)
