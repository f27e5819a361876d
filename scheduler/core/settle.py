"""The end of a step: its report judged, cut and handed to the requests that its rows named.

Owns the one place that decides what a row emitted (`cut`): output, counts and metrics all read that result.
`doors.py` calls `impossible`; STEP's effects call `settle`, `undo` and `lose`.
"""

import math
from typing import TYPE_CHECKING, Any

import attrs

from ...statemachine import request, slot
from ...statemachine.errors import LocalError
from . import prefix
from .events import (
    CommandRow,
    Decode,
    Emitted,
    PassDetail,
    Report,
    ReportRow,
    RowFault,
    Scrub,
    Scrubbed,
    Seed,
    Seeded,
    StepFault,
    WorkerReady,
)
from .ledger import Request, Slot, StepInFlight
from .plan import remaining_len
from .strict import given
from .tables import Machine
from .untold import cut_detail

if TYPE_CHECKING:
    from .handle import Core

# Bound once for the path of every row: looking an enum's member up costs as much as a small function.
REQUEST, EMITTED = Machine.REQUEST, request.Event.EMITTED
LOGPROB_ROUNDING = 1e-3  # a probability of 1 may come out a little above it


@attrs.frozen
class Ending:
    """Why a request ends when no token ended it: data of CANCEL, DEADLINE, ABANDON, INTERNAL and lost restarts."""

    reason: str
    message: str = ""


@attrs.frozen
class WorkerNews:
    """Data and facts of WORKER's events: a reason for people, and on READY what the worker can do."""

    reason: str = ""
    ready: WorkerReady | None = None
    lost: tuple[str, ...] = ()
    unfit: bool = False


@attrs.define
class Outcome:
    """What a row emitted after the cut: facts and data of EMITTED. `draft_len` is None for a prompt's last chunk."""

    token_ids: list[int]
    accepted_len: int
    held_len: int
    ending: str | None
    draft_len: int | None
    detail: PassDetail | None
    held_confidence: tuple[float, ...] | None = None
    hold_len: int = 0  # how many of the output's last tokens nobody shall hear of yet
    keep_len: int | None = None  # where a stop string cuts the whole output


def cut(core: "Core", one: Request, row: Seed | Decode, emitted: Emitted) -> Outcome:
    """Cut what the worker emitted at the first stop and at the limit; a stop inside the limit wins.

    A stop string that is complete no later than a stop id wins: the output ends before it then (`untold.py`).
    """
    room = remaining_len(one, core.limits)
    token_ids = emitted.token_ids if len(emitted.token_ids) <= room else emitted.token_ids[:room]
    ending = "length" if len(token_ids) == room else None
    stops = one.options.stop_token_ids
    if stops:
        for index, token_id in enumerate(token_ids):
            if token_id in stops:
                token_ids, ending = token_ids[: index + 1], "stop"
                break
    text_stop, keep_len = emitted.text_stop, None
    if text_stop is not None and text_stop.found_len <= len(token_ids):
        token_ids, ending, keep_len = token_ids[: text_stop.found_len], "stop", text_stop.keep_len
    return Outcome(
        token_ids=token_ids,
        accepted_len=min(emitted.accepted_len, len(token_ids)),
        held_len=emitted.held_len,
        ending=ending,
        draft_len=row.draft_len if type(row) is Decode else None,
        detail=cut_detail(emitted.detail, len(token_ids)),
        held_confidence=None if emitted.held_confidence_logits is None else tuple(emitted.held_confidence_logits),
        hold_len=emitted.hold_len,
        keep_len=keep_len,
    )


def impossible(rows: list[CommandRow], report: Report) -> str | None:
    """Say why no lawful worker reports this for these rows, or None. Judged before any machine moves."""
    if report.cost_ns < 0:
        return f"cost_ns = {report.cost_ns}: expected 0 or more"
    if len(report.rows) != len(rows):
        return f"{len(report.rows)} report rows for {len(rows)} command rows"
    for row, got in zip(rows, report.rows, strict=True):
        wrong = _impossible_row(row, got)
        if wrong is not None:
            return f"{wrong} (row {row!r}, reported {got!r})"
    return None


def _impossible_row(row: CommandRow, got: ReportRow) -> str | None:
    if got.slot != row.slot:
        return "another slot"
    if type(row) is Scrub:
        return None if type(got) is Scrubbed else "not the answer to a scrub"
    if type(got) is Scrubbed or got.epoch != row.epoch:  # type: ignore[union-attr]
        return "another epoch"
    if type(got) is RowFault:
        return None
    samples = type(row) is Decode or row.last  # type: ignore[union-attr]
    if type(got) is not (Emitted if samples else Seeded):
        return "not what the row asks for"
    if type(got) is Seeded:
        return None
    return _impossible_tokens(row, got)  # type: ignore[arg-type]


def _impossible_tokens(row: Seed | Decode, got: Emitted) -> str | None:
    draft_len = row.draft_len if type(row) is Decode else 0
    if not 0 <= got.accepted_len <= draft_len:
        return f"accepted_len = {got.accepted_len}: expected 0..{draft_len}"
    if len(got.token_ids) != got.accepted_len + 1:
        return f"{len(got.token_ids)} tokens: expected accepted_len + 1"
    if got.held_len not in (0, row.propose_len):
        return f"held_len = {got.held_len}: expected {row.propose_len}, or 0 after a drafter fault"
    if min(got.token_ids) < 0:
        return "a negative token id"
    logits = got.held_confidence_logits
    if logits is not None and (len(logits) != got.held_len or not all(map(math.isfinite, logits))):
        return f"held_confidence_logits = {logits}: expected {got.held_len} finite numbers, one for each draft"
    return None if got.detail is None else _impossible_logprobs(got.detail, len(got.token_ids))


def _impossible_logprobs(detail: PassDetail, length: int) -> str | None:
    """One for each token, however many of the best beside it, and none of them a number that is no logarithm."""
    own, top_ids, top = detail.logprobs, detail.top_token_ids, detail.top_logprobs
    for name, each in (("logprobs", own), ("top_token_ids", top_ids), ("top_logprobs", top)):
        if each is not None and len(each) != length:
            return f"{len(each)} {name}: expected one for each of {length} tokens"
    if not all(number <= LOGPROB_ROUNDING for number in own or ()):
        return f"logprobs = {own}: expected numbers of at most 0"
    if [len(each) for each in top_ids or ()] != [len(each) for each in top or ()]:
        return "top_token_ids and top_logprobs of different lengths"
    return None


def settle(core: "Core", one: StepInFlight, data: Any) -> None:
    """Hand each row to its request; what a retiring slot reports is counted and delivered to nobody."""
    report = given(data, Report, "SETTLE")
    if core.learns and report.cost_ns:
        _learn_costs(core, one, report)
    slots = core.ledger.slots
    for row, got in zip(one.rows, report.rows, strict=True):
        held = slots[row.slot]
        if isinstance(row, Scrub):
            if held.state is slot.State.QUARANTINED:
                core.send(Machine.SLOT, held, slot.Event.SCRUBBED)
            continue
        if type(got) is not RowFault:
            _grow(core, held, row, got)
        if held.owner is None:
            core.totals.rows_discarded += 1
            core.totals.tokens_discarded += len(got.token_ids) if type(got) is Emitted else 0
            _step_over(core, held, faulted=type(got) is RowFault)
        else:
            _hand_over(core, core.ledger.requests[held.owner], row, got)


def _learn_costs(core: "Core", one: StepInFlight, report: Report) -> None:
    """Of a step that only decoded: what it took, beside what the table would have said."""
    capacity = core.ledger.worker.capacity
    rows = [row for row in one.rows if type(row) is Decode]
    if capacity is not None and capacity.costs is not None and len(rows) == len(one.rows):
        lens = [row.draft_len for row in rows]
        drafting = sum(row.propose_len > 0 for row in rows)
        core.ledger.step_costs = core.ledger.step_costs.after(capacity.costs, lens, drafting, report.cost_ns)


def _grow(core: "Core", held: Slot, row: Seed | Decode, got: Any) -> None:
    """What the worker has committed to the window, whoever it is for."""
    if isinstance(row, Decode):
        held.window_len += got.accepted_len + 1
        return
    held.window_len = row.start_pos + len(row.token_ids)
    held.content_epoch = row.epoch
    opens = row.opens
    if opens is not None and opens.keep_len and held.owner is not None:
        core.ledger.requests[held.owner].num_reused += opens.keep_len


def _hand_over(core: "Core", owner: Request, row: Seed | Decode, got: ReportRow) -> None:
    if core.ledger.suspects and owner.id in core.ledger.suspects:
        core.ledger.suspects.remove(owner.id)  # it ran alone and lives
    if type(got) is Emitted:
        outcome = cut(core, owner, row, got)
        core.send(REQUEST, owner, EMITTED, outcome, facts=outcome)
    elif type(got) is Seeded:
        core.send(Machine.REQUEST, owner, request.Event.SEEDED, row)
    elif type(got) is RowFault:
        ending = Ending("ROW_FAULT", f"{got.code}: {got.message}")
        core.send(Machine.REQUEST, owner, request.Event.ROW_FAULT, ending)
    else:
        raise LocalError(f"report row {got!r} has no meaning for request {owner.id}")


def undo(core: "Core", one: StepInFlight, data: Any) -> None:
    """Nothing moved. Several rows are planned once more, one by one; a row that faults alone is the row fault."""
    fault = given(data, StepFault, "UNDO")
    alone = len(one.rows) == 1
    for row in one.rows:
        held = core.ledger.slots[row.slot]
        if type(row) is Scrub:
            continue  # still quarantined: the next plan scrubs it again
        if type(row) is Seed:
            prefix.failed(held, row, core.ledger)
        if held.owner is None:
            _step_over(core, held, faulted=alone)
            continue
        owner = core.ledger.requests[held.owner]
        if alone:
            ending = Ending("ROW_FAULT", f"{fault.code}: {fault.message}")
            core.send(Machine.REQUEST, owner, request.Event.ROW_FAULT, ending)
        else:
            core.send(Machine.REQUEST, owner, request.Event.UNDONE)
            if owner.id not in core.ledger.suspects:
                core.ledger.suspects.append(owner.id)


def lose(core: "Core", one: StepInFlight, data: Any) -> None:
    """The worker died under it: the requests that it names are charged a restart."""
    core.ledger.suspects.clear()
    for row in one.rows:
        held = core.ledger.slots[row.slot]
        if held.owner is not None:
            ending = Ending("WORKER_LOST", core.ledger.worker.reason)
            core.send(Machine.REQUEST, core.ledger.requests[held.owner], request.Event.WORKER_LOST, ending)
        elif type(row) is not Scrub:
            _step_over(core, held, faulted=False)


def _step_over(core: "Core", held: Slot, *, faulted: bool) -> None:
    """A slot whose request ended in flight: free now, unless the fault leaves its window in doubt."""
    if held.state is slot.State.RETIRING:
        core.send(Machine.SLOT, held, slot.Event.FAULT if faulted else slot.Event.STEP_OVER)
