"""Prefix reuse: whose committed content can serve a prompt, which slot takes it, and what its first Seed must say.

Owns the choice and the facts that it rests on (`Slot.content` and its companions); never sends anything. `effects.seat`
asks for a slot, `plan` for an Open, the step's path tells what was sent and committed. What a slot holds is a fact of
the worker: it is forgotten when the worker dies and when the slot is condemned, and a retiring slot offers nothing.
"""

from collections.abc import Iterable, Iterator

from ...statemachine import slot
from .events import Open, Seed
from .ledger import Ledger, Request, Slot
from .limits import Limits

FREE, HELD = slot.State.FREE, slot.State.HELD
NOTHING = Open()
Content = tuple[Slot, str, tuple[int, ...]]  # a slot, whose salt, and tokens that its window surely holds


def choose_slot(one: Request, ledger: Ledger, limits: Limits) -> Slot:
    """The free slot that `one` takes: the one with the longest prefix of its text, or the least recently used.

    A slot whose content is mostly something else is left for who comes back to it, while another one is free: the
    prefix is copied from it then.
    """
    free = [ledger.slots[index] for index in ledger.free]
    if limits.min_reuse_len is None:
        return free[0]
    best, keep_len = _longest(one, [_retained(held) for held in free], ledger, limits)
    if best is not None:
        if 2 * keep_len >= len(best.content) or len(free) == 1:
            return best
        free.remove(best)
    return min(free, key=_age)


def open_for(one: Request, held: Slot, ledger: Ledger, limits: Limits) -> Open:
    """What the first Seed of `one` in its slot keeps: the slot's own content, or a copy of another one's."""
    if limits.min_reuse_len is None:
        return NOTHING
    source, keep_len = _longest(one, _sources(held, ledger), ledger, limits)
    return NOTHING if source is None else Open(keep_len, source.id, source.content_epoch)


def sent(held: Slot, row: Seed, ledger: Ledger) -> None:
    """An Open is on its way: of the slot's former content only what it keeps in place is sure from now on."""
    opens = row.opens
    if opens is None:
        return
    source = None if opens.source_slot is None else ledger.slots[opens.source_slot]
    if source is None:
        held.context_start = 0
    else:
        lost = context_lost(source, opens.keep_len, ledger)
        held.context_start = opens.keep_len if lost else source.context_start
    if source is held:
        held.content, held.window_len = held.content[: opens.keep_len], opens.keep_len
    else:
        held.content, held.window_len = (), 0


def failed(held: Slot, row: Seed, ledger: Ledger) -> None:
    """The step of a chunk failed before its commit: what it wrote may stand where the ring's oldest rows were.

    The spare rows of a ring take a block and one token more; a longer chunk goes over what was readable.
    """
    capacity = ledger.worker.capacity
    if capacity is not None and capacity.block_len:
        lost_len = row.start_pos + len(row.token_ids) - capacity.drafter_window - capacity.block_len - 1
        held.context_start = max(held.context_start, min(lost_len, held.window_len))


def left(held: Slot, one: Request, ledger: Ledger, limits: Limits) -> None:
    """`one` leaves a window that nothing has gone wrong with: what is known of it serves later prompts."""
    if limits.min_reuse_len is not None and held.content_epoch == held.epoch:
        ledger.num_left += 1
        held.left_order = ledger.num_left
        held.content, held.salt = _text(one)[: held.window_len], one.options.salt


def forget(held: Slot) -> None:
    held.content = ()


def _age(held: Slot) -> tuple[int, int]:
    return (held.left_order if held.content else 0, held.id)


def _text(one: Request) -> tuple[int, ...]:
    return (*one.prompt, *one.output)


def _retained(held: Slot) -> Content:
    return held, held.salt, held.content


def _sources(held: Slot, ledger: Ledger) -> Iterator[Content]:
    """The slot's own content first, then that of free slots and of live requests, as far as it is committed.

    Who is seated and has not opened its window yet is left out: its own Open may be in the same command.
    """
    yield _retained(held)
    for source in ledger.slots:
        if source.state is FREE:
            yield _retained(source)
        elif source.state is HELD and source is not held and source.content_epoch == source.epoch:
            owner = ledger.requests[source.owner]  # type: ignore[index]  # HELD means owned
            yield source, owner.options.salt, _text(owner)[: source.window_len]


def _longest(one: Request, contents: Iterable[Content], ledger: Ledger, limits: Limits) -> tuple[Slot | None, int]:
    """The slot that saves most positions, and how many; the first of equals. (None, 0) when nothing is worth it."""
    text, best, most = _text(one), None, 0
    least = limits.min_reuse_len or 1
    for source, salt, content in contents:
        if salt != one.options.salt or len(content) < least:
            continue
        keep_len = usable_len(source, _common_len(text, content), ledger)
        if keep_len >= least and keep_len > most:
            best, most = source, keep_len
    return best, most


def _common_len(text: tuple[int, ...], content: tuple[int, ...]) -> int:
    """Of the common prefix, the last token of `text` left out: its chunk must sample. Slices compare fast, so halve."""
    low, high = 0, min(len(text) - 1, len(content))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == content[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def usable_len(source: Slot, common_len: int, ledger: Ledger) -> int:
    """Where the drafter would read rows that are not there, the last window of positions is seeded again."""
    lost = context_lost(source, common_len, ledger)
    return max(0, common_len - _drafter_window(ledger)) if lost else common_len


def context_lost(source: Slot, keep_len: int, ledger: Ledger) -> bool:
    """Whether some of the rows that the drafter reads after `keep_len` positions have left the ring, or never were."""
    window = _drafter_window(ledger)
    return max(0, keep_len - window) < max(source.context_start, source.window_len - window)


def _drafter_window(ledger: Ledger) -> int:
    """Positions of the drafter's ring; without a drafter everything may be kept."""
    capacity = ledger.worker.capacity
    return capacity.drafter_window if capacity is not None and capacity.block_len else 1 << 62
