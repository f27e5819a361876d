"""What a lawful command is, seen by the worker that must run it: the entry checks of each row, and whose turn it is.

Owns the judgement and the windows that a command opens. `world.py` calls `take` for every command the core sends.
"""

from collections.abc import Iterator

from ...statemachine.errors import LocalError
from ..core import events, results
from .reference import SERVING, Reference, Window


class Contradiction(LocalError):
    """The core did what was not promised."""


def take(reference: Reference, command: results.Command) -> None:
    """Judge the command and put it in flight. Raises `Contradiction` listing everything that is wrong."""
    reference.undo = tuple(reference.windows)
    wrong = [*_whole(reference, command), *(fault for row in command.rows for fault in _row(reference, row))]
    if wrong:
        raise Contradiction(f"{command!r}: " + "; ".join(wrong))
    reference.flying = command


def _whole(reference: Reference, command: results.Command) -> Iterator[str]:
    scope = reference.scope
    if reference.phase != SERVING or reference.flying is not None:
        yield f"sent in phase {reference.phase} while {reference.flying} is in flight"
    if (command.session, command.step_id) != (reference.session, reference.last_step_id + 1):
        yield f"expected session {reference.session}, step {reference.last_step_id + 1}"
    slots = [row.slot for row in command.rows]
    if not slots or len(set(slots)) < len(slots):
        yield f"names slots {slots}"
    if reference.dirty and {row.slot for row in command.rows if type(row) is events.Scrub} != reference.dirty:
        yield f"slots {sorted(reference.dirty)} must be scrubbed first"
    if reference.suspects and not reference.dirty and len(slots) > 1:
        yield f"requests {sorted(reference.suspects)} must run alone"
    if sum(_width(row) for row in command.rows) > scope.max_step_tokens:
        yield f"more than {scope.max_step_tokens} tokens"


def _width(row: events.CommandRow) -> int:
    if type(row) is events.Seed:
        return len(row.token_ids)
    return row.draft_len + 1 if type(row) is events.Decode else 0


def _row(reference: Reference, row: events.CommandRow) -> Iterator[str]:
    if type(row) is events.Scrub:
        if row.slot not in reference.dirty:
            yield f"slot {row.slot} needs no scrub"
        return
    if row.slot in reference.dirty:
        yield f"slot {row.slot} is in doubt"
    if type(row) is events.Seed and row.opens is not None:
        yield from _open(reference, row)
    held = reference.windows[row.slot]
    if held is None or held.epoch != row.epoch:  # type: ignore[union-attr]
        yield f"slot {row.slot} holds {held}"
        return
    if held.serial not in reference.intents:
        yield f"request {held.serial} is over"
        return
    serial = held.serial
    output = reference.intents[serial].output
    remaining = reference.scope.max_tokens - len(output)
    if reference.suspects and serial not in reference.suspects:
        yield f"request {serial} runs before the suspects {sorted(reference.suspects)}"
    if type(row) is events.Seed:
        yield from _seed(row, held, text=reference.scope.prompt(serial) + output, output_len=len(output))
    elif type(row) is events.Decode:
        yield from _decode(row, held, remaining=remaining)
    if row.propose_len and (remaining < 3 or row.propose_len > min(reference.scope.block_len, remaining - 2)):  # type: ignore[union-attr]
        yield f"propose_len {row.propose_len} with {remaining} tokens to go"  # type: ignore[union-attr]


def _open(reference: Reference, row: events.Seed) -> Iterator[str]:
    """A new tenancy: the prompt says whose, and its epoch is newer than any that this worker saw in the slot."""
    before = reference.windows[row.slot]
    if before is not None and before.epoch >= row.epoch:
        yield f"slot {row.slot} is opened for epoch {row.epoch} after {before.epoch}"
    if before is not None and reference.tenant(row.slot) is not None:
        yield f"slot {row.slot} is taken from request {before.serial}"
    kept = row.opens.keep_len  # type: ignore[union-attr]
    if kept or row.opens.source_slot is not None:  # type: ignore[union-attr]
        yield from _keep(reference, row.opens)  # type: ignore[arg-type]
    ends, chunk = kept + len(row.token_ids), tuple(row.token_ids)
    owners = [serial for serial, text in _texts(reference) if text[kept:ends] == chunk]
    if len(owners) != 1:
        yield f"a prompt of nobody who is live: {row.token_ids}"
        return
    seats = [slot for slot, held in enumerate(reference.windows) if held is not None and held.serial == owners[0]]
    if any(slot != row.slot for slot in seats):
        yield f"request {owners[0]} has slots {seats} already"
    reference.windows[row.slot] = Window(row.epoch, owners[0], text_len=kept)


def _texts(reference: Reference) -> Iterator[tuple[int, tuple[int, ...]]]:
    for serial, one in reference.intents.items():
        yield serial, reference.scope.prompt(serial) + one.output


def _keep(reference: Reference, opens: events.Open) -> Iterator[str]:
    """What is kept is committed content of the named tenancy, and what all prompts begin with."""
    slot = opens.source_slot
    source = None if slot is None else reference.undo[slot]
    if source is None or source.epoch != opens.source_epoch or slot in reference.dirty:
        yield f"{opens} names a window that is none: {source}"
    elif not 1 <= opens.keep_len <= min(source.text_len - source.anchored, reference.scope.shared_len):
        yield f"{opens} keeps more than {source} has in common with anybody"


def _seed(row: events.Seed, held: Window, *, text: tuple[int, ...], output_len: int) -> Iterator[str]:
    ends = row.start_pos + len(row.token_ids)
    if held.anchored or row.start_pos != held.text_len:
        yield f"the chunk starts at {row.start_pos}, the window holds {held}"
    if tuple(row.token_ids) != text[row.start_pos : ends] or not row.token_ids:
        yield f"expected a piece of {text}"
    if row.last != (ends == len(text)) or row.output_len != output_len:
        yield f"last = {row.last}, output_len = {row.output_len} for a text of {len(text)} with {output_len} emitted"
    if row.propose_len and not row.last:
        yield "drafts before its last chunk"


def _decode(row: events.Decode, held: Window, *, remaining: int) -> Iterator[str]:
    if not held.anchored:
        yield f"no anchor in {held}"
    if not 0 <= row.draft_len <= min(held.held_len, remaining - 1):
        yield f"draft_len {row.draft_len}, held {held.held_len}, {remaining} tokens to go"
