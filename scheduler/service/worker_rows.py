"""Between the wire and the core on the worker's side: commands down, reports up. The hot path: a step passes it twice.

Owns nothing but the change of spelling. `workers.py` calls it.
"""

from ...statemachine.errors import PeerError
from ..core import events, results
from ..core.costs import CostTable
from ..wire import messages as wire

WireRow = wire.Seed | wire.Decode | wire.Scrub


def wire_step(command: results.Command) -> wire.Step:
    return wire.Step(command.session, command.step_id, [_wire_row(row) for row in command.rows])


def _wire_row(row: events.CommandRow) -> WireRow:
    if type(row) is events.Decode:
        return wire.Decode(row.slot, row.epoch, row.draft_len, row.propose_len)
    if type(row) is events.Scrub:
        return wire.Scrub(row.slot)
    return _wire_seed(row)  # type: ignore[arg-type]


def _wire_seed(row: events.Seed) -> wire.Seed:
    params, opens = row.params, row.opens
    return wire.Seed(
        slot=row.slot,
        epoch=row.epoch,
        start_pos=row.start_pos,
        token_ids=list(row.token_ids),
        last=row.last,
        propose_len=row.propose_len,
        params=wire.Params(
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed,
            params.sample_index,
            params.margins,
            params.passes,
            params.min_tokens,
            list(params.masked_token_ids),
            params.logprobs,
            params.top_logprobs,
        ),
        output_len=row.output_len,
        opens=None if opens is None else wire.Open(opens.keep_len, opens.source_slot, opens.source_epoch),
    )


def worker_event(message: wire.FromWorker) -> events.Input:
    """Return what the core must hear of a worker's message, after its Hello was checked by the supervisor."""
    if type(message) is wire.Report:
        rows = [_core_row(row) for row in message.rows]
        return events.Report(message.session, message.step_id, rows, message.lost, message.cost_ns)
    if type(message) is wire.StepFault:
        return events.StepFault(message.session, message.step_id, message.code, message.message)
    if type(message) is wire.Pong:
        return events.WorkerBeat(message.session, message.last_step_id)
    if type(message) is wire.Loaded:
        return events.WorkerLoaded(message.session)
    if type(message) is wire.Ready:
        return events.WorkerReady(
            message.session,
            message.num_slots,
            message.max_model_len,
            message.block_len,
            tuple(message.lost),
            None if message.costs is None else core_costs(message.costs),
            drafter_window=message.drafter_window,
            has_confidence=message.has_confidence,
        )
    if type(message) is wire.Hello:
        return events.WorkerHello(message.session)
    raise PeerError(f"{type(message).__name__} has no event")  # Goodbye: `WorkerEdge` makes a death of it


def core_costs(table: wire.CostTable) -> CostTable:
    """The table as the core knows it; nothing is judged here."""
    return CostTable(
        fingerprint=tuple(sorted(table.fingerprint.items())),
        context_len=table.context_len,
        rows=tuple(table.rows),
        widths=tuple(table.widths),
        target_ns=tuple(tuple(line) for line in table.target_ns),
        draft_ns=tuple(table.draft_ns),
    )


def _core_row(row: wire.Emitted | wire.Seeded | wire.Scrubbed | wire.RowFault) -> events.ReportRow:
    if type(row) is wire.Emitted:
        detail = None
        if not (row.draft_token_ids is row.confidence_logits is row.margins is row.logprobs is None):
            detail = events.PassDetail(
                row.draft_token_ids,
                row.confidence_logits,
                row.margins,
                row.logprobs,
                row.top_token_ids,
                row.top_logprobs,
            )
        return events.Emitted(
            row.slot,
            row.epoch,
            row.token_ids,
            row.accepted_len,
            row.held_len,
            detail,
            row.held_confidence_logits,
        )
    if type(row) is wire.Seeded:
        return events.Seeded(row.slot, row.epoch)
    if type(row) is wire.RowFault:
        return events.RowFault(row.slot, row.epoch, row.code, row.message)
    return events.Scrubbed(row.slot)
