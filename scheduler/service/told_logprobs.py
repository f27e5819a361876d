"""The log-probabilities that a client has been told, to be told again when it resumes its stream.

Owns those of one request that asked for them. The core keeps none: they decide nothing. `translate.py` calls it.
"""

from ..core.results import Tokens

Tops = list[list[tuple[int, float]]]


class LogprobsTold:
    """By output index. What a worker could not tell (a report that failed after its commit) is absent."""

    def __init__(self) -> None:
        self._own: dict[int, float] = {}
        self._top: dict[int, list[tuple[int, float]]] = {}

    def tell(self, output: Tokens) -> tuple[list[float] | None, Tops | None]:
        """Those of the output's tokens: fresh ones, or, of a part that is repeated, what was told before."""
        detail = output.detail
        indices = range(output.index, output.index + len(output.token_ids))
        if detail is not None and detail.logprobs is not None:
            self._own.update(zip(indices, detail.logprobs, strict=True))
        if detail is not None and detail.top_token_ids is not None and detail.top_logprobs is not None:
            pairs = zip(detail.top_token_ids, detail.top_logprobs, strict=True)
            self._top.update(zip(indices, [list(zip(*one, strict=True)) for one in pairs], strict=True))
        own, top = ([known.get(index) for index in indices] for known in (self._own, self._top))
        return (
            None if None in own else own,  # type: ignore[return-value]
            None if None in top else top,
        )
