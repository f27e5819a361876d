"""The log-probabilities that a client has been told, to be told again when it resumes its stream.

Owns those of one request that asked for them. The core keeps none: they decide nothing. Its promise holds them, so a
journal does, too (`promises.py`); `telling.py` reads them.
"""

from typing import Any

import attrs

from ..core.results import Tokens

Own = list[float | None]
Tops = list[list[tuple[int, float]] | None]


@attrs.define
class LogprobsTold:
    """By output index. What a worker could not tell (a report that failed after its commit) is None."""

    own: Own = attrs.field(factory=list)
    top: Tops = attrs.field(factory=list)

    def add(self, index: int, own: Own | None, top: Tops | None) -> None:
        _put(self.own, index, own)
        _put(self.top, index, top)

    def of(self, index: int, length: int) -> tuple[Own | None, Tops | None]:
        """Those of `length` tokens; None where one is not known."""
        own, top = self.own[index : index + length], self.top[index : index + length]
        return (
            None if len(own) < length or None in own else own,
            None if len(top) < length or None in top else top,
        )


def _put(kept: list[Any], index: int, fresh: list[Any] | None) -> None:
    if fresh is not None:
        kept += [None] * (index - len(kept))
        kept += fresh


def logprobs_in(output: Tokens) -> tuple[Own | None, Tops | None]:
    """What `add` takes of fresh tokens: their own log-probabilities, and the best tokens with theirs."""
    detail = output.detail
    if detail is None or detail.logprobs is None:
        return None, None
    if detail.top_token_ids is None or detail.top_logprobs is None:
        return list(detail.logprobs), None
    pairs = zip(detail.top_token_ids, detail.top_logprobs, strict=True)
    return list(detail.logprobs), [list(zip(*one, strict=True)) for one in pairs]
