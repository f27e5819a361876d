"""Who runs in the next step and how far: continuous batching, chunked prompts, draft lengths and their limits.

Owns the decision; never sends or steps a machine itself: it returns rows with the REQUEST event that each one means.
The core calls it on a Tick when no step is in flight.
"""

from collections.abc import Iterator, Sequence

from ...statemachine import request
from ...statemachine.errors import LocalError
from .events import Decode, Scrub, Seed
from .ledger import Ledger, Request, Slot
from .limits import Limits
from .policies import Policy, Want, lowered, wanted_lens
from .prefix import open_for

# The last one says what kept a draft shorter than the policy wanted it, for the numbers; nothing if it got its way.
Planned = tuple[Request, request.Event, Seed | Decode, str]

# Bound once for the path of every row.
PLAN_VERIFY, PLAN_ANCHOR = request.Event.PLAN_VERIFY, request.Event.PLAN_ANCHOR
SEED_READY = request.State.SEED_READY
READY_TO_DECODE = (request.State.DRAFT_READY, request.State.ANCHOR_READY)


def plan(ledger: Ledger, limits: Limits, policy: Policy) -> list[Planned]:
    """Return the rows of the next step, decode rows first, then the oldest chunks; empty when nobody can run."""
    decoding = [one for one in ledger.seated.values() if one.state in READY_TO_DECODE]
    seeding = [one for one in ledger.seated.values() if one.state is SEED_READY]
    if ledger.suspects:
        alone = ledger.suspects[0]
        decoding = [one for one in decoding if one.id == alone]
        seeding = [one for one in seeding if one.id == alone]
    if not decoding and not seeding:
        return []
    seeding.sort(key=lambda one: one.order)
    budget = limits.max_step_tokens - (1 if seeding else 0)  # always room for one chunk token
    block_len = ledger.worker.capacity.block_len if ledger.worker.capacity is not None else 0
    if (block_len + 1) * len(decoding) > budget:  # somebody may be left out: whoever waited longest goes first
        decoding.sort(key=lambda one: (one.last_step_id, one.order))
    rows = [*decoding, *seeding]
    asked = wanted_lens(policy, rows, ledger) if block_len else [0] * len(rows)  # without a drafter nobody is asked
    wanted = _lowered(asked, rows, limits, block_len=block_len) if block_len else asked
    planned = list(_decode_rows(decoding, asked, wanted, ledger, limits, budget=budget, block_len=block_len))
    budget = limits.max_step_tokens - sum(row.draft_len + 1 for _, _, row, _ in planned if isinstance(row, Decode))
    planned += _chunks(seeding, wanted[len(decoding) :], ledger, limits, budget=budget, block_len=block_len)
    return planned


def scrubs(ledger: Ledger) -> list[Scrub]:
    """Quarantined slots are scrubbed in a command of their own, so that nobody's tokens depend on a scrub."""
    return [Scrub(slot) for slot in ledger.condemned]


def remaining_len(one: Request, limits: Limits) -> int:
    """How many tokens the request may still emit."""
    room = min(one.options.max_tokens, limits.max_model_len - len(one.prompt))
    return room - len(one.output)


def lengths(remaining: int, held_len: int, *, wanted: int | Want, block_len: int) -> tuple[int, int]:
    """Return (draft_len, propose_len): what to verify now, what to leave behind.

    draft_len <= remaining - 1, as a pass emits one token more than it accepts. propose_len is 0 unless
    remaining >= 3: after this pass emits one, a draft needs room for itself and its extra token. Entering a zero-draft
    phase (wanted = 0) still verifies the draft that is held; a `Want` says both by itself.
    """
    verify, propose = (wanted or held_len, wanted != 0) if isinstance(wanted, int) else (wanted.verify, wanted.propose)
    draft_len = min(held_len, remaining - 1, verify)
    propose_len = min(block_len, remaining - 2) if propose and remaining >= 3 else 0
    return draft_len, propose_len


def _lowered(
    asked: Sequence[int | Want], rows: list[Request], limits: Limits, *, block_len: int
) -> Sequence[int | Want]:
    """The policy's word, lowered by the engine's and the request's own maximum."""
    most = block_len if limits.max_draft_len is None else limits.max_draft_len
    return [
        lowered(
            want,
            most if one.options.max_draft_len is None else min(most, one.options.max_draft_len),
            block_len=block_len,
        )
        for want, one in zip(asked, rows, strict=True)
    ]


def _slot_of(one: Request, ledger: Ledger) -> Slot:
    if one.slot is None:
        raise LocalError(f"request {one.id} ({one.state.name}) is among the seated without a slot")
    return ledger.slots[one.slot]


def _decode_rows(
    rows: list[Request],
    asked: Sequence[int | Want],
    wanted: Sequence[int | Want],
    ledger: Ledger,
    limits: Limits,
    *,
    budget: int,
    block_len: int,
) -> Iterator[Planned]:
    share = max(1, budget // max(1, len(rows)))  # tokens of a row whose length was told by its own draft, see below
    for one, ask, want in zip(rows, asked, wanted, strict=False):
        if budget < 1:
            return
        slot = _slot_of(one, ledger)
        remaining = remaining_len(one, limits)
        draft_len, propose_len = lengths(remaining, one.held_len, wanted=want, block_len=block_len)
        # Where drafts tell lengths, what others leave over depends on this row's draft as well; its share does not.
        draft_len = min(draft_len, budget - 1, share - 1 if type(want) is Want else draft_len)
        budget -= draft_len + 1
        event = PLAN_VERIFY if draft_len > 0 else PLAN_ANCHOR
        goal = ask.verify if type(ask) is Want else ask or one.held_len
        kept = "" if draft_len == goal and block_len else _keeps_short(one, draft_len, remaining, limits, block_len)
        yield one, event, Decode(slot.id, slot.epoch, draft_len, propose_len), kept


def _keeps_short(one: Request, draft_len: int, remaining: int, limits: Limits, block_len: int) -> str:
    """The first of these that allows no more than `draft_len`. For the numbers alone."""
    if block_len == 0:
        return "no_drafter"
    bounds = (
        ("request", one.options.max_draft_len),
        ("engine", limits.max_draft_len),
        ("remaining", remaining - 1),
        ("held", one.held_len),
    )
    return next((name for name, bound in bounds if bound == draft_len), "budget")


def _chunks(
    rows: list[Request], wanted: Sequence[int | Want], ledger: Ledger, limits: Limits, *, budget: int, block_len: int
) -> Iterator[Planned]:
    for one, want in zip(rows, wanted, strict=True):
        if budget < 1:
            return
        slot = _slot_of(one, ledger)
        text = [*one.prompt, *one.output]
        opens = None if slot.content_epoch == slot.epoch else open_for(one, slot, ledger, limits)
        start = one.seeded_len if opens is None else opens.keep_len
        chunk = text[start : start + budget]
        budget -= len(chunk)
        last = start + len(chunk) == len(text)
        propose_len = lengths(remaining_len(one, limits), 0, wanted=want, block_len=block_len)[1] if last else 0
        yield (
            one,
            request.Event.PLAN_CHUNK,
            Seed(
                slot=slot.id,
                epoch=slot.epoch,
                start_pos=start,
                token_ids=chunk,
                last=last,
                propose_len=propose_len,
                params=one.options.params,
                output_len=len(one.output),
                opens=opens,
            ),
            "",
        )
