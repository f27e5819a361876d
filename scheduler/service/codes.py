"""Every code that dsparkd says: refusals, reasons for which requests end, faults of a worker. For docs/protocol.md.

Owns what each means and what to do about it; who says one writes it where it happens. A test holds this list and the
code together. `protocol_pages.py` reads it.
"""

# What an engine answers with `Refused`: code -> (when, what a client may do).
REFUSALS: dict[str, tuple[str, str]] = {
    "BAD_INDEX": ("`from_index` of a resume lies beyond what was told", "ask from an index that was told"),
    "BAD_MESSAGE": ("a frame cannot be read: magic, version, size, type or a field; or (from a client of this package, "
                    "before anything is sent) it could not be", "correct the client"),
    "BAD_OPTION": ("an option has a value that it cannot have; all of them are named", "correct the request"),
    "BAD_PROMPT": ("not exactly one of `prompt`, `prompt_token_ids` and `messages`, or (from a client of this package) "
                   "one of no kind that can be sent", "correct the request"),
    "BAD_TOKEN": ("a token id that the vocabulary does not hold", "correct the request"),
    "BAD_VERSION": ("`ClientHello.version` is not the engine's", "use a client of that version"),
    "CANCELLED": ("it was cancelled while it waited for the first worker, before it was accepted", "nothing"),
    "CLIENT_LIMIT": ("max_client_requests of this client are live", "wait for one of them"),
    "DRAINING": ("the engine finishes what is live and takes nothing new", "go to another engine, or try later"),
    "DUPLICATE_ID": ("this client has a request of this id, live or kept until it says Heard; the other one goes on",
                     "take another id; after a lost connection: resume it"),
    "EMPTY_PROMPT": ("the prompt has no token", "correct the request"),
    "ENGINE_GONE": ("last word of an engine that ends; it has no request id",
                    "say Goodbye, for which it waits a moment; connect to the next one"),
    "ENGINE_RESTARTED": ("a resume came with a token of an engine that is gone, which kept no journal", "submit anew"),
    "HELLO_FIRST": ("this connection has not said hello, or was forgotten", "say ClientHello, then all that waits"),
    "NO_WORKER": ("no worker is left, and none will be started", "see the engine's log; go to another engine"),
    "PROMPT_TOO_LONG": ("the prompt takes more than max_prompt_len tokens, or its text more than 64 characters for "
                        "each of max_model_len", "shorten it"),
    "QUEUE_FULL": ("max_queue requests wait", "try later"),
    "TEMPLATE_UNAVAILABLE": ("messages of a chat, and the checkpoint has no template", "send a prompt"),
    "TEXT_UNAVAILABLE": ("a prompt or a stop is text, and the engine has no tokenizer", "send token ids"),
    "UNKNOWN_CLIENT": ("the engine has forgotten this client meanwhile", "say ClientHello again"),
    "UNKNOWN_ID": ("a resume names no request of this client, live or kept", "submit it"),
    "UNKNOWN_REQUEST": ("a resume names a request that has ended in this moment", "resume again: it is kept"),
    "UNSUPPORTED_OPTION": ("an option that is not offered; it is named", "leave it out"),
}  # fmt: skip

# `Finished.reason` -> (state, when).
REASONS: dict[str, tuple[str, str]] = {
    "stop": ("FINISHED", "a stop token, a stop string or the checkpoint's end"),
    "length": ("FINISHED", "max_tokens, or max_model_len"),
    "cancelled": ("CANCELLED", "its client cancelled it"),
    "client_gone": ("CANCELLED", "its client said goodbye, or was away for client_grace_s"),
    "DEADLINE": ("FAILED", "its deadline_ms passed"),
    "DRAIN_DEADLINE": ("FAILED", "the engine drained, and drain_deadline_s passed"),
    "ENGINE_STOPPED": ("FAILED", "the engine was told to stop at once"),
    "INTERNAL": ("FAILED", "a fault of the scheduler's own; please report it"),
    "ROW_FAULT": ("FAILED", "the worker cannot run its row; the fault's code is in `message`"),
    "WORKER_LOST": ("FAILED", "more than max_restarts workers died under it, or none is left"),
}

# `code` of RowFault and StepFault -> when.
WORKER_FAULTS: dict[str, str] = {
    "BAD_COMMAND": "a command that no scheduler may send: two rows of one slot, an unknown slot",
    "BROKEN": "an earlier step failed after its commit and could not be brought to an end: the worker must be replaced",
    "CONTEXT": "a row's context for the drafter is not there",
    "EPOCH": "a row names another tenancy than the slot holds",
    "HELD": "a row verifies more drafts than the slot holds",
    "INTERNAL": "the worker raised something unexpected; its log has the whole",
    "LIMIT": "a row leads beyond max_model_len, or wants more than a block",
    "NON_FINITE": "the target computed what is not finite",
    "OPEN": "an Open does not fit its source",
    "OUT_OF_MEMORY": "the step needs memory that is not there",
    "POSITION": "a row begins elsewhere than its window ends",
    "STALE_WINDOW": "with `paranoid`: a row that may be read does not belong to its tenant's text",
    "STEP_GAP": "another step than the next one came",
    "TOKEN": "a token id that the vocabulary does not hold",
}

# Codes of `Refused` errors that clients of this package and the command line raise by themselves.
RAISED_LOCALLY: dict[str, str] = {
    "ADDRESS_IN_USE": "somebody else listens at `bind` or `metrics`",
    "BAD_CONFIG": "settings, flags, a checkpoint or an address are not what they must be; all problems are listed",
    "BAD_FILE": "a file is damaged or of another kind; its name and place are told",
    "BAD_ROW": "a row of a batch cannot be read",
    "BAD_TRACE": "a recorded walk of `dsparkd check` cannot be read",
    "DIFFERENT": "a trace replays otherwise than it was recorded",
    "FAILED": "a request of `dsparkd generate` failed",
    "NO_COST_TABLE": "the engine has no cost table to write down",
    "OUT_OF_MEMORY": "windows of this size do not fit; the bytes of a slot and a `num_slots` that would are told",
    "RESUMED": "a newer stream of this client has taken the request over",
    "STALE_DOCS": "a generated page is not what it is generated from",
}
