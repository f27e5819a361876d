"""What a request asks for: what the worker must know to sample for it, and what the core must know of it.

Owns the two records; `service/core_options.py` makes them, `events.py` is the page to import them from. Nothing here
judges a value: whoever accepted the request has done so.
"""

import attrs


@attrs.frozen(cache_hash=True)
class Params:
    """What the worker must know to sample for a request; the core carries it and looks at nothing in it."""

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sample_index: int = 0
    margins: bool = False  # report how near each decision was
    passes: bool = False  # report the verified draft and its confidences
    min_tokens: int = 0  # below this output index none of `masked_token_ids` is drawn
    masked_token_ids: tuple[int, ...] = ()
    logprobs: bool = False  # report each token's log-probability
    top_logprobs: int = 0  # and those of so many best tokens


@attrs.frozen(cache_hash=True)
class Options:
    """What the core must know of a request."""

    max_tokens: int = 256
    stop_token_ids: frozenset[int] = frozenset()
    max_draft_len: int | None = None  # None: whatever the policy says
    salt: str = ""  # content is reused among requests of one salt only
    params: Params = attrs.field(factory=Params)
    priority: int = 0  # the lower number leaves the queue first
    stop: tuple[str, ...] = ()  # looked for by `service/stops.py`, which tells what it finds with the row's report
