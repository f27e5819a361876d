"""What each field of the messages between scheduler and worker means, for docs/protocol.md.

Owns words, units and limits; types and defaults are the messages' own. `protocol_pages.py` reads it.
"""

from ..wire import messages as wire
from .client_field_notes import Note

_SLOT = Note("the seat", limit="0..num_slots - 1")
_EPOCH = Note("which tenancy of the slot is meant")
_SESSION = Note("which life of a worker this belongs to; others are dropped", limit="that of its start")
_STEP = Note(
    "steps count 1, 2, 3 within a session", limit="the last one + 1; or the last one, to have its report again"
)
_CODE = Note("what went wrong; the list is [below](#faults-of-a-worker)")
_MESSAGE = Note("for people")
_PROPOSE = Note("how much of the block drafted in this step the slot keeps; 0: no drafting for this row", "tokens",
                "0..block_len")  # fmt: skip

WORKER_FIELDS: dict[type, dict[str, Note]] = {
    wire.Hello: {
        "session": _SESSION,
        "token": Note("from its environment: proof that this scheduler started it"),
        "pid": Note("its process"),
        "version": Note("the protocol version that it speaks", limit="that of the header"),
    },
    wire.Init: {
        "session": _SESSION,
        "target": Note("folder of the target's checkpoint"),
        "drafter": Note("folder of the drafter's checkpoint; nil: plain decoding"),
        "num_slots": Note("seats to keep windows for", limit="1 or more"),
        "max_model_len": Note("positions of a window", "tokens", "2 or more"),
        "max_step_tokens": Note("most tokens of a step", "tokens"),
        "acceptance": Note("how drafts are judged", limit="coupled or rejection"),
        "dtype": Note("of weights and windows", limit="float32, bfloat16 or float16"),
        "device": Note("a torch device"),
        "num_threads": Note("torch's threads", limit="1 or more"),
        "runner": Note("how decode steps run", limit="eager, static (the CPU twin of graphs) or cuda"),
        "drafter_window": Note("context positions that the drafter sees; absent: the checkpoint's own window, else all",
                               "tokens"),
        "measure_costs": Note("measure a cost table while warming up"),
        "memory_limit_mb": Note("for windows and the work of a step, beside the weights; absent: what is free", "MiB"),
        "paranoid": Note("watch every window, at twice the time of a step"),
        "confidences": Note("report the confidence logits of every held draft"),
        "costs": Note("a table of an earlier worker or of a file: nothing is measured then"),
    },
    wire.CostTable: {
        "fingerprint": Note("what was measured: device, models, sizes"),
        "context_len": Note("positions that each row's window held meanwhile", "tokens"),
        "rows": Note("rows of the steps that were measured"),
        "widths": Note("tokens a row", "tokens"),
        "target_ns": Note("a verify pass, by rows and then widths", "ns"),
        "draft_ns": Note("a drafter's block by rows; empty without a drafter", "ns"),
    },
    wire.Step: {
        "session": _SESSION,
        "step_id": _STEP,
        "rows": Note("what to do, at most one row a slot"),
    },
    wire.Seed: {
        "slot": _SLOT,
        "epoch": _EPOCH,
        "start_pos": Note("position of the first token", "tokens", "the window's length"),
        "token_ids": Note("a chunk of the prompt", limit="one or more"),
        "last": Note("the prompt ends here: sample the first token, and draft"),
        "propose_len": _PROPOSE,
        "params": Note("how to sample"),
        "output_len": Note("so many of the last token_ids are output already, of an earlier tenancy", "tokens"),
        "opens": Note("on the first Seed of a tenancy: where its window begins"),
    },
    wire.Params: {
        "temperature": Note("0 is greedy"),
        "top_k": Note("0: all", "tokens"),
        "top_p": Note("1: all"),
        "min_p": Note("0: all"),
        "seed": Note("of the noise"),
        "sample_index": Note("of the noise"),
        "margins": Note("report margins"),
        "passes": Note("report what was drafted"),
        "min_tokens": Note("below this output index none of `masked_token_ids` is drawn", "tokens"),
        "masked_token_ids": Note("tokens that would end the output"),
        "logprobs": Note("report log-probabilities"),
        "top_logprobs": Note("and those of so many best tokens", "tokens"),
    },
    wire.Open: {
        "keep_len": Note("positions of the source that stay, in place or copied", "tokens"),
        "source_slot": Note("whose content is kept; absent: nothing is"),
        "source_epoch": Note("the source's tenancy"),
    },
    wire.Decode: {
        "slot": _SLOT,
        "epoch": _EPOCH,
        "draft_len": Note("drafted tokens to verify: a prefix of what the slot holds", "tokens", "0..held_len"),
        "propose_len": _PROPOSE,
    },
    wire.Scrub: {"slot": _SLOT},
    wire.Ping: {"session": _SESSION},
    wire.Leave: {"session": _SESSION},
    wire.Loaded: {"session": _SESSION},
    wire.Ready: {
        "session": _SESSION,
        "num_slots": Note("windows that are there"),
        "max_model_len": Note("positions of each", "tokens"),
        "vocab_size": Note("token ids are below it"),
        "block_len": Note("B, the drafts of one block; 0 without a drafter", "tokens"),
        "has_confidence": Note("the drafter has a confidence head"),
        "drafter_window": Note("context positions that the drafter sees; 0 without one", "tokens"),
        "eos_token_ids": Note("the checkpoint's end tokens"),
        "lost": Note("what was asked for and is missing (graphs, drafter): the worker is DEGRADED"),
        "warnings": Note("for the log"),
        "window_bytes": Note("memory of one slot", "bytes"),
        "costs": Note("the cost table, measured or handed in"),
    },
    wire.Report: {
        "session": _SESSION,
        "step_id": _STEP,
        "rows": Note("one for each row of the command, in its order"),
        "target_ns": Note("the target's part", "ns"),
        "draft_ns": Note("the drafter's part", "ns"),
        "cpu_ns": Note("CPU time of the worker's thread", "ns"),
        "cost_ns": Note("the step by the clock of the cost table", "ns"),
        "wait_ns": Note("how long the worker had waited for the command since its last report", "ns"),
        "lost": Note("what it has lost in this step: it is DEGRADED from here on"),
        "drafts_lost": Note("rows whose drafter computed what is not finite: they hold nothing"),
        "passes_uncaptured": Note("passes of the target that fit none of the captured graphs"),
    },
    wire.Emitted: {
        "slot": _SLOT,
        "epoch": _EPOCH,
        "token_ids": Note("accepted drafts and one extra token; the last one is the new anchor", limit="one or more"),
        "accepted_len": Note("drafts that stood", "tokens", "0..draft_len"),
        "held_len": Note("drafted tokens that the slot holds now", "tokens", "0..propose_len"),
        "draft_token_ids": Note("for `passes`: the draft that was verified"),
        "confidence_logits": Note("for `passes`: of that draft"),
        "margins": Note("for who asked for them: how far each decision was from another one"),
        "held_confidence_logits": Note("of the draft that the slot holds now, when Init asks"),
        "logprobs": Note("for who asked for them: of each token", "nats"),
        "top_token_ids": Note("for who asked for them: for each token the best ones, the best first"),
        "top_logprobs": Note("and theirs", "nats"),
    },
    wire.Seeded: {"slot": _SLOT, "epoch": _EPOCH},
    wire.Scrubbed: {"slot": _SLOT},
    wire.RowFault: {"slot": _SLOT, "epoch": _EPOCH, "code": _CODE, "message": _MESSAGE},
    wire.StepFault: {"session": _SESSION, "step_id": _STEP, "code": _CODE, "message": _MESSAGE},
    wire.Pong: {
        "session": _SESSION,
        "last_step_id": Note("the last step that was answered; 0: none"),
    },
}  # fmt: skip
