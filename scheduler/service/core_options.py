"""What a client asked for, as the core and the worker know it: defaults resolved, end tokens added.

Owns the spelling; values were judged by `options.py`, but for what depends on the checkpoint. `translate.py` calls it.
"""

from ...statemachine.errors import Refused
from ..core import events
from ..wire.messages import RequestOptions


def core_options(
    options: RequestOptions, *, seed: int, eos_token_ids: frozenset[int], vocab_size: int | None
) -> events.Options:
    """Return them. Raises `Refused` (BAD_OPTION) for `min_tokens` where every token ends the output."""
    named = frozenset(options.stop_token_ids)
    stops = named if options.ignore_eos else named | eos_token_ids
    return events.Options(
        max_tokens=options.max_tokens,
        stop_token_ids=stops,
        max_draft_len=options.max_draft_len,
        salt=options.cache_salt or "",
        params=events.Params(
            temperature=float(options.temperature),
            top_k=options.top_k,
            top_p=float(options.top_p),
            min_p=float(options.min_p),
            seed=seed,
            sample_index=options.sample_index,
            margins=options.margins,
            passes=options.passes,
            min_tokens=options.min_tokens,
            masked_token_ids=_masked(stops, vocab_size) if options.min_tokens else (),
            logprobs=options.logprobs,
            top_logprobs=options.top_logprobs,
        ),
        priority=options.priority,
        stop=tuple(options.stop),
    )


def _masked(stops: frozenset[int], vocab_size: int | None) -> tuple[int, ...]:
    """What may not be drawn before `min_tokens`; ids beyond the vocabulary are drawn by nobody."""
    masked = tuple(sorted(one for one in stops if vocab_size is None or one < vocab_size))
    if len(masked) == vocab_size:
        raise Refused("BAD_OPTION", "min_tokens: every token ends the output, expected one that does not")
    return masked
