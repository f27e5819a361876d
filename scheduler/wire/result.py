"""A finished request as a whole, folded from the messages of its stream.

Owns the folding; `stream.py` and `client_async.py` feed it what a stream's reader has read.
"""

from typing import TypeVar

import attrs

from ...statemachine.errors import EngineError
from . import messages

T = TypeVar("T")
StreamMessage = messages.Accepted | messages.Tokens | messages.Finished


class EngineLost(EngineError):
    """No engine answers at the address."""


@attrs.frozen(kw_only=True)
class Result:
    """A finished request. `error` is set when `state` is FAILED; `text` is None for an engine without a tokenizer."""

    request_id: str
    token_ids: list[int]
    text: str | None
    finish_reason: str
    state: str
    prompt_len: int
    counts: messages.RequestCounts
    passes: list[messages.Pass]
    seed: int | None
    transitions: dict[str, int]
    error: str | None
    logprobs: list[float | None] | None = None  # of each token, for who asked; None where the engine had none to tell
    top_logprobs: list[list[tuple[int, float]] | None] | None = None


class ResultBuilder:
    """Folds a stream's messages. Tokens and texts lie at their `index`, so a resumed stream may repeat some."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._start: int | None = None  # output index of the first of them: a stream may be resumed from later on
        self._texts: list[tuple[int, str]] = []
        self._passes: list[messages.Pass] = []
        self._logprobs: dict[int, float] = {}  # by output index
        self._tops: dict[int, list[tuple[int, float]]] = {}
        self._seed: int | None = None
        self.result: Result | None = None

    def add(self, message: StreamMessage) -> None:
        if isinstance(message, messages.Accepted):
            self._seed = message.seed
        elif isinstance(message, messages.Tokens):
            if self._start is None or message.index < self._start:
                self._start = message.index
            self._token_ids[message.index - self._start :] = message.token_ids
            if message.text is not None:
                while self._texts and self._texts[-1][0] >= message.index:
                    self._texts.pop()
                self._texts.append((message.index, message.text))
            if message.verify is not None:
                self._passes.append(message.verify)
            self._logprobs.update(enumerate(message.logprobs or (), message.index))
            self._tops.update(enumerate(message.top_logprobs or (), message.index))
        else:
            self._finish(message)

    def whole(self) -> Result:
        """The result of a stream that was read to its end."""
        if self.result is None:
            raise EngineLost("the stream was left, or had failed, before its end")
        return self.result

    def _finish(self, end: messages.Finished) -> None:
        if end.text is not None:
            self._texts.append((end.output_len, end.text))
        self.result = Result(
            request_id=end.request_id,
            token_ids=self._token_ids,
            text="".join(text for _, text in self._texts) if self._texts else None,
            finish_reason=end.reason,
            state=end.state,
            prompt_len=end.prompt_len,
            counts=end.counts,
            passes=self._passes,
            seed=self._seed,
            transitions=end.transitions,
            error=(end.message or end.reason) if end.state == "FAILED" else None,
            logprobs=self._by_token(self._logprobs),
            top_logprobs=self._by_token(self._tops),
        )

    def _by_token(self, told: dict[int, T]) -> list[T | None] | None:
        start = self._start or 0
        return [told.get(start + index) for index in range(len(self._token_ids))] if told else None
