"""What each field of the messages between client and engine means, for docs/protocol.md.

Owns words, units and limits; types and defaults are the messages' own, limits of a request's options those of
`options.py`. `protocol_pages.py` reads it.
"""

import attrs

from ..wire import messages as wire


@attrs.frozen
class Note:
    """`unit`: of the number; `limit`: what a value must be, where its type says less."""

    meaning: str
    unit: str = ""
    limit: str = ""


_ID = Note("the client's name for this request; free again when the client has said Heard of it, or is gone")
_ID_AGAIN = Note("the request that this is about")
_TOKEN_IDS = "below the vocabulary of the checkpoint"

CLIENT_FIELDS: dict[type, dict[str, Note]] = {
    wire.ClientHello: {
        "version": Note("the protocol version that the client speaks", limit="that of the header"),
        "resume_token": Note("that of an earlier Welcome, to be that client and have its requests; an unknown one "
                             "makes a new client"),
    },
    wire.Submit: {
        "request_id": _ID,
        "prompt": Note("the prompt as text, where `Welcome.has_text`", limit="at most 64 characters for each of "
                       "max_model_len"),
        "prompt_token_ids": Note("the prompt as token ids", limit=f"one or more, {_TOKEN_IDS}"),
        "messages": Note("turns of a chat; the checkpoint's template makes one prompt of them",
                         limit="as many characters as a `prompt`"),
        "options": Note("the request's options; judged by themselves, so that a bad one is refused with its name"),
    },
    wire.ChatMessage: {
        "role": Note("who speaks, in the template's words: system, user, assistant"),
        "content": Note("what was said"),
    },
    wire.RequestOptions: {
        "max_tokens": Note("most tokens to emit; max_model_len ends it sooner", "tokens"),
        "temperature": Note("0 is greedy, and so is all below 1e-5"),
        "top_k": Note("draw among so many best tokens; 0: all", "tokens"),
        "top_p": Note("draw among the fewest best tokens with this much probability together"),
        "min_p": Note("draw among tokens with at least this share of the best one's probability"),
        "seed": Note("the noise's seed; without it one is drawn, and told by Accepted"),
        "sample_index": Note("another sample of the same seed"),
        "stop_token_ids": Note("the output ends after one of these, which is part of it"),
        "ignore_eos": Note("the checkpoint's end tokens do not end the output"),
        "deadline_ms": Note("FAILED (DEADLINE) when it is not done by then, counted from its arrival", "ms"),
        "max_draft_len": Note("at most so many draft tokens in a pass; 0: none; absent: as the policy says", "tokens"),
        "margins": Note("tell how near each decision was"),
        "passes": Note("tell each verify pass"),
        "label": Note("for the engine's log"),
        "cache_salt": Note("prefixes are reused among requests of one salt only"),
        "stop": Note("the output ends before the first of these texts, where `Welcome.has_text`"),
        "min_tokens": Note("nothing but a limit ends the output before", "tokens", "at most max_tokens"),
        "logprobs": Note("tell each token's log-probability, of unfiltered logits"),
        "top_logprobs": Note("and those of so many best tokens", "tokens", "0 without logprobs"),
        "priority": Note("the lower number leaves the queue first"),
    },
    wire.CancelRequest: {"request_id": _ID_AGAIN},
    wire.ResumeRequest: {
        "request_id": _ID_AGAIN,
        "from_index": Note("the output index from which on it is told again", "tokens",
                           "0 to the number of tokens that were told"),
    },
    wire.Heard: {"request_id": _ID_AGAIN},
    wire.GetStats: {},
    wire.GetHealth: {},
    wire.KeepAlive: {},
    wire.Goodbye: {
        "reason": Note("for the log"),
        "session": Note("of a worker: which life of it says this; a client leaves it out"),
        "refused": Note("of a worker: it cannot serve its Init, nor could another one; a client leaves it out"),
    },
    wire.Connected: {},
    wire.Welcome: {
        "client_id": Note("the client's number in logs and statistics"),
        "resume_token": Note("who brings it in a ClientHello is this client: keep it secret"),
        "keep_alive_s": Note("say something at least this often; after three times as long the client counts as "
                             "unreachable", "s"),
        "num_slots": Note("requests that run at once"),
        "max_model_len": Note("longest prompt + output", "tokens"),
        "has_text": Note("prompts and stops may be text, and Tokens carry text"),
        "resumed": Note("the client was here before: its requests are there"),
        "version": Note("the protocol version that the engine speaks"),
    },
    wire.Accepted: {
        "request_id": _ID_AGAIN,
        "prompt_len": Note("length of the prompt", "tokens"),
        "seed": Note("the seed in use; with it, prompt and options give the same output again",
                     limit="0..2^63 - 1: wider than a float can hold"),
    },
    wire.Pass: {
        "start_pos": Note("the anchor's position in the text", "tokens"),
        "draft_len": Note("drafted tokens that were verified", "tokens"),
        "accepted_len": Note("of these, those that stood", "tokens"),
        "emitted_token_ids": Note("what the pass added to the output, cut at its end"),
        "draft_token_ids": Note("what was drafted, where it is told"),
        "confidence_logits": Note("the confidence head's, one for each drafted token, where there is one"),
    },
    wire.Tokens: {
        "request_id": _ID_AGAIN,
        "index": Note("output index of the first token here; the next message begins where this one ends", "tokens"),
        "token_ids": Note("the tokens"),
        "accepted_len": Note("so many of them, from the first on, are drafts that stood", "tokens"),
        "text": Note("text that is certain now; never half a character: what is held back comes later"),
        "verify": Note("the verify pass, for who asked for `passes`"),
        "margins": Note("for who asked for them, one for each token: how far the decision was from another one"),
        "logprobs": Note("for who asked for them, one for each token", "nats"),
        "top_logprobs": Note("for who asked for them, for each token (token id, log-probability), the best first",
                             "nats"),
    },
    wire.RequestCounts: {
        "num_passes": Note("verify passes", "passes"),
        "num_zero_passes": Note("of these, without a draft", "passes"),
        "num_drafted": Note("tokens that the drafter left in the slot", "tokens"),
        "num_verified": Note("drafted tokens that were verified", "tokens"),
        "num_accepted": Note("of these, those that stood", "tokens"),
        "num_emitted_drafting": Note("emitted by passes with a draft", "tokens"),
        "accepted_at": Note("for each position of a draft: passes in which it stood", "passes"),
        "verified_at": Note("for each position of a draft: passes in which it was verified", "passes"),
        "num_restarts": Note("worker deaths and faults that it survived"),
        "prefix_tokens_reused": Note("prompt positions that a slot held already", "tokens"),
    },
    wire.Finished: {
        "request_id": _ID_AGAIN,
        "state": Note("how it ended", limit="FINISHED, CANCELLED or FAILED"),
        "reason": Note("why; the list is [below](#how-requests-end)"),
        "prompt_len": Note("length of the prompt", "tokens"),
        "output_len": Note("length of the output: where it is more than a client has, something was lost on the way",
                           "tokens"),
        "counts": Note("what it took, in numbers"),
        "transitions": Note("moves of its machine, as `FROM>TO`, and how often"),
        "text": Note("text that was held back, now that nothing can follow"),
        "message": Note("of a failure: for people"),
    },
    wire.Refused: {
        "code": Note("why not; the list is [below](#refusals)"),
        "message": Note("for people: key, value and what was expected"),
        "request_id": Note("the request that is refused; absent: a message that could not be read, or the whole "
                           "connection"),
    },
    wire.CancelAck: {
        "request_id": _ID_AGAIN,
        "live": Note("there was something to cancel; cancelling twice is no error"),
    },
    wire.Stats: {"values": Note("a snapshot: counters, gauges, `slot_list`, `settings`; keys may be added any time")},
    wire.Health: {
        "ok": Note("the engine takes requests and its worker makes progress"),
        "engine": Note("state of ENGINE", limit="OPEN, DRAINING or STOPPED"),
        "worker": Note("state of WORKER", limit="a state of its [machine](machines/worker.md)"),
        "reasons": Note("what is not as it should be, a sentence each"),
    },
}  # fmt: skip
