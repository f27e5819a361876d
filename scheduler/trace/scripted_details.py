"""What the scripted worker says beside its tokens, for who asked.

Owns made-up log-probabilities: each says at which position its token stands, so that a wrong row shows. `scripted.py`
calls it.
"""

from typing import Any

from ..core.events import PassDetail


def detail_of(
    params: Any, tokens: list[int], draft: list[int] | None, *, text_len: int, vocab_size: int
) -> PassDetail | None:
    """Of the last `tokens` of a text; `draft` is what a pass verified."""
    told = draft if params.passes else None
    if not params.logprobs:
        return None if told is None else PassDetail(draft_token_ids=told)
    own = [logprob_at(text_len - len(tokens) + index) for index in range(len(tokens))]
    detail = PassDetail(draft_token_ids=told, logprobs=own)
    if params.top_logprobs:
        tops = range(min(params.top_logprobs, vocab_size))
        detail.top_token_ids = [[(token_id + one) % vocab_size for one in tops] for token_id in tokens]
        detail.top_logprobs = [[number - one for one in tops] for number in own]
    return detail


def logprob_at(position: int) -> float:
    return -(1 + position % 64) / 64
