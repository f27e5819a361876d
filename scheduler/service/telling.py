"""What a client hears of its request: the core's outputs as messages, with text and log-probabilities.

Owns the record of each interned request and its spelling on the wire; never whom it goes to. `translate.py` interns,
`clients.py` calls `tell` in the order of outputs, for the text's sake.
"""

from typing import Any

import attrs

from ...statemachine.errors import LocalError
from ..core import events, results
from ..wire import messages as wire
from .promises import Promise
from .stops import StopFinder
from .text import IncrementalText
from .told_logprobs import LogprobsTold

RequestOutput = results.Tokens | results.Accepted | results.Ended | results.CancelAck | results.Refusal


@attrs.define
class Record:
    """One interned request, until its terminal output."""

    client: int
    request_id: str
    prompt_len: int
    seed: int
    passes: bool
    label: str | None
    arrived_ns: int
    text: IncrementalText | None
    submit: events.Submit  # as the core heard it, and
    options: bytes  # as the client said it: what a journal must know
    stops: StopFinder | None = None
    told: LogprobsTold | None = None  # for who asked
    accepted: bool = False


def tell(record: Record, output: RequestOutput) -> wire.Message:
    """Return what the client hears of `output`. Called in the order of outputs too, for the text's sake."""
    if isinstance(output, results.Tokens):
        return _tokens(record, output)
    if isinstance(output, results.Accepted):
        return wire.Accepted(request_id=record.request_id, prompt_len=record.prompt_len, seed=record.seed)
    if isinstance(output, results.Ended):
        return _finished(record, output, rest_of(record, output))
    if isinstance(output, results.CancelAck):
        return wire.CancelAck(request_id=record.request_id, live=output.live)
    return wire.Refused(code=output.code, message=output.message, request_id=record.request_id)


def _tokens(record: Record, output: results.Tokens) -> wire.Tokens:
    detail = output.detail
    logprobs, top_logprobs = logprobs_of(record, output.index, len(output.token_ids))
    verify = None
    if record.passes and output.draft_len is not None:
        verify = wire.Pass(
            start_pos=output.start_pos,
            draft_len=output.draft_len,
            accepted_len=output.accepted_len,
            emitted_token_ids=output.token_ids,
            draft_token_ids=detail.draft_token_ids if detail else None,
            confidence_logits=detail.confidence_logits if detail else None,
        )
    return wire.Tokens(
        request_id=record.request_id,
        index=output.index,
        token_ids=output.token_ids,
        accepted_len=output.accepted_len,
        text=_text(record.text, output) if record.text else None,
        verify=verify,
        margins=detail.margins if detail else None,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )


def logprobs_of(record: Record, index: int, length: int) -> tuple[Any, Any]:
    """What its promise holds, of who asked: `clients.py` writes a fact before it tells of it."""
    return (None, None) if record.told is None else record.told.of(index, length)


def _finished(record: Record, output: results.Ended, rest: str) -> wire.Finished:
    """`rest`: of its text, what comes after all that its tokens say."""
    counts = attrs.asdict(output.counts)
    counts |= {name: list(counts[name]) for name in ("accepted_at", "verified_at")}
    return wire.Finished(
        request_id=record.request_id,
        state=output.state,
        reason=output.reason,
        prompt_len=output.prompt_len,
        output_len=output.output_len,
        counts=wire.RequestCounts(**counts),
        transitions=output.transitions,
        text=record.text.flush() + rest if record.text else None,
        message=output.message,
    )


def _text(text: IncrementalText, output: results.Tokens) -> str:
    """The text of `output`; a resumed stream hears some of it again."""
    if output.draft_len is None and output.index < text.num_ids:
        text.rewind(output.index)
    return text.push(output.token_ids)


def rest_of(record: Record, ended: results.Ended) -> str:
    """What a token said before a stop string that begins inside it."""
    return record.stops.rest if record.stops is not None and ended.reason == "stop" else ""


def tell_again(record: Record, promise: Promise, from_index: int) -> list[wire.Message]:
    """A request that has ended, from output `from_index` on. record: a fresh one, of the same options."""
    if promise.ended is None:
        raise LocalError(f"request {promise.request_id} has not ended")
    before, after = promise.token_ids[:from_index], promise.token_ids[from_index:]
    if record.text is not None:
        record.text.push_each(before)
    told: list[wire.Message] = [tell(record, results.Accepted(promise.submit.client, promise.submit.request))]
    if after:
        text = record.text.push(after) if record.text else None
        own, top = logprobs_of(record, from_index, len(after))
        told.append(
            wire.Tokens(
                request_id=record.request_id,
                index=from_index,
                token_ids=after,
                text=text,
                logprobs=own,
                top_logprobs=top,
            )
        )
    return [*told, _finished(record, promise.ended, promise.rest)]
