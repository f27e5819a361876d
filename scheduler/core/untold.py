"""Rows that were reported and that nobody hears of yet: their text may be the beginning of a stop string.

Owns `Request.untold`, the end of the output that is there for the worker and not for the client; a stop string cuts it,
and what was told is never taken back. A row is told whole, when all of it is decided, and counted then, so that ids and
counts are cut alike. Never looks at text (`service/stops.py` does). The effects and `settle.cut` call it.
"""

from typing import TYPE_CHECKING

import attrs

from ...statemachine.errors import LocalError
from .events import PassDetail
from .results import Tokens

if TYPE_CHECKING:
    from .handle import Core
    from .ledger import Request
    from .settle import Outcome


def told_len(one: "Request") -> int:
    """How many tokens of the output its client has heard of."""
    return len(one.output) - sum([len(row.token_ids) for row in one.untold])


def take(core: "Core", one: "Request", row: Tokens, outcome: "Outcome") -> None:
    """A row whose tokens are in the output already: cut at a stop string, then told as far as it is decided."""
    one.untold.append(row)
    if outcome.keep_len is not None:
        _cut(one, outcome.keep_len)
    decided_len = len(one.output) - (0 if outcome.ending else outcome.hold_len)
    while one.untold and one.untold[0].index + len(one.untold[0].token_ids) <= decided_len:
        first = one.untold.pop(0)
        count(one, first)
        if first.token_ids:
            core.emit(first)


def drop(one: "Request") -> None:
    """It ends by something else than a token: what is undecided is never told."""
    _cut(one, told_len(one))
    for row in one.untold:
        count(one, row)
    one.untold.clear()


def count(one: "Request", row: Tokens) -> None:
    """A row's part of its request's numbers, after the cut."""
    if row.draft_len is None:
        return
    if len(one.verified_hist) <= row.draft_len:
        grow = [0] * (row.draft_len + 1 - len(one.verified_hist))
        one.verified_hist += grow
        one.accepted_hist += grow
    one.verified_hist[row.draft_len] += 1
    one.accepted_hist[row.accepted_len] += 1
    if row.draft_len > 0:
        one.num_emitted_drafting += len(row.token_ids)


def cut_detail(detail: PassDetail | None, length: int) -> PassDetail | None:
    """The parts that say something of each token, of the first `length` tokens."""
    if detail is None:
        return None
    each = ("margins", "logprobs", "top_token_ids", "top_logprobs")
    parts = {name: getattr(detail, name) for name in each}
    cut = {name: part[:length] for name, part in parts.items() if part is not None and len(part) > length}
    return attrs.evolve(detail, **cut) if cut else detail


def _cut(one: "Request", keep_len: int) -> None:
    """The output ends after `keep_len` tokens; rows that lie beyond keep none."""
    if not told_len(one) <= keep_len <= len(one.output):
        raise LocalError(
            f"request {one.id}: cut at {keep_len} tokens of {len(one.output)}, {told_len(one)} of them were told"
        )
    del one.output[keep_len:]
    one.untold = [_shortened(row, keep_len) for row in one.untold]


def _shortened(row: Tokens, keep_len: int) -> Tokens:
    length = max(0, keep_len - row.index)
    if length >= len(row.token_ids):
        return row
    return attrs.evolve(
        row,
        index=min(row.index, keep_len),
        token_ids=row.token_ids[:length],
        accepted_len=min(row.accepted_len, length),
        detail=cut_detail(row.detail, length),
    )
