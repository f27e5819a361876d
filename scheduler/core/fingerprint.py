"""A canonical value of a ledger: two with equal fingerprints behave alike from here on.

Owns what counts as the same: ids keep their accept order, epochs and step ids are taken relative to the present, times
relative to now; what only counts is left out, and what is left out decides nothing. The explorer and tests compare.
"""

from typing import TYPE_CHECKING, Any

from .events import Decode, Seed

if TYPE_CHECKING:
    from .ledger import Ledger, Request


def fingerprint(ledger: "Ledger") -> tuple[Any, ...]:
    now = ledger.now_ns
    rank = {one.id: index for index, one in enumerate(sorted(ledger.requests.values(), key=_by_order))}
    waited = sorted(ledger.seated.values(), key=_by_wait)  # the last step ids themselves do not matter
    return (
        tuple([_request_print(one, rank[one.id]) for one in ledger.requests.values()]),
        tuple([rank[one.id] for one in ledger.queue]),
        tuple([rank.get(key) for key in ledger.seated]),
        tuple([rank.get(one.id) for one in waited]),
        tuple([(int(one.state), None if one.owner is None else rank.get(one.owner)) for one in ledger.slots]),
        _content_print(ledger),
        tuple(ledger.free),
        tuple(ledger.condemned),
        tuple([rank.get(key) for key in ledger.suspects]),
        _step_print(ledger),
        _worker_print(ledger),
        ledger.acceptance,
        ledger.step_costs,
        tuple([(one.id, int(one.state)) for one in ledger.clients.values()]),
        int(ledger.engine.state),
        tuple(
            sorted(
                [
                    (int(timer), subject, delay, -1 if due is None else due - now)
                    for (timer, subject), (delay, due) in ledger.timers.items()
                ]
            )
        ),
        tuple(sorted([(one[0] - now, rank[one[2]]) for one in ledger.deadlines if ledger.owns(*one)])),
    )


def _worker_print(ledger: "Ledger") -> tuple[Any, ...]:
    one = ledger.worker
    can = None if one.capacity is None else (one.capacity.block_len, one.capacity.drafter_window, one.capacity.costs)
    return (int(one.state), one.fruitless_respawns, can, *one.lost)


def _content_print(ledger: "Ledger") -> tuple[Any, ...]:
    """What serves later prompts; when somebody left a slot counts as an order among those that have content."""
    ages = sorted([one.left_order for one in ledger.slots if one.content])
    prints: list[tuple[Any, ...]] = []
    for one in ledger.slots:
        away = one.epoch - one.content_epoch
        if one.content:
            age = ages.index(one.left_order)
            prints.append((one.content, one.salt, age, away, one.window_len, one.context_start))
        else:
            prints.append((one.window_len, one.context_start) if one.owner is not None and not away else ())
    return tuple(prints)


def _step_print(ledger: "Ledger") -> tuple[Any, ...] | None:
    if ledger.step is None:
        return None
    rows: list[tuple[int, ...]] = []
    for row in ledger.step.rows:
        if type(row) is Decode:
            rows.append((row.slot, ledger.slots[row.slot].epoch - row.epoch, row.draft_len, row.propose_len))
        elif type(row) is Seed:
            age, ends = ledger.slots[row.slot].epoch - row.epoch, row.start_pos + len(row.token_ids)
            rows.append((row.slot, age, row.propose_len, row.start_pos, ends, row.last, row.opens is not None))
        else:
            rows.append((row.slot,))
    return (int(ledger.step.state), *rows)


def _by_order(one: "Request") -> int:
    return one.order


def _by_wait(one: "Request") -> tuple[int, int]:
    return one.last_step_id, one.order


def _request_print(one: "Request", rank: int) -> tuple[Any, ...]:
    return (
        rank,
        int(one.state),
        one.client,
        one.slot,
        one.prompt,
        tuple(one.output),
        one.options,
        one.held_len,
        one.held_confidence,
        one.past_confidence,
        one.seeded_len,
        one.restarts,
        one.max_restarts,
        one.acceptance,
        one.front,
        tuple([(row.index, row.accepted_len, row.draft_len) for row in one.untold]),
    )
