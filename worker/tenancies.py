"""What a first Seed may ask of its Open: a window that begins empty, or with what a slot still holds of some text.

Owns the judgement; changes nothing (`Windows.open` moves the content). `runner.py` calls it. Whether the content is the
prefix that the new tenant means is the scheduler's knowledge: the worker holds positions, not texts.
"""

from ..scheduler.wire import messages as wire
from .faults import RowRefused
from .windows import Tenancy, Window, Windows


def judge_open(windows: Windows, row: wire.Seed, opens: wire.Open) -> Tenancy:
    """The tenancy that `row` opens. Raises `RowRefused` (OPEN) when its source is not there, or holds less."""
    source, keep_len = opens.source_slot, opens.keep_len
    if source is None:
        if keep_len or opens.source_epoch is not None:
            raise RowRefused("OPEN", f"slot {row.slot}: keep_len {keep_len} of no slot: expected 0 and no epoch")
        return Tenancy(row.slot, Window(row.epoch), None)
    if not 0 <= source < windows.shape.num_slots:
        raise RowRefused("OPEN", f"source_slot {source}: expected 0..{windows.shape.num_slots - 1}")
    held = windows.table[source]
    if held.epoch is None or held.epoch != opens.source_epoch:
        raise RowRefused("OPEN", f"slot {source}: source_epoch {opens.source_epoch}: expected {held.epoch}")
    if not 1 <= keep_len <= held.length:
        raise RowRefused("OPEN", f"slot {source}: keep_len {keep_len}: expected 1..{held.length}, what it holds")
    return Tenancy(row.slot, windows.head(held, keep_len, epoch=row.epoch), source)
