"""The policy `auto`: the lengths with the most expected tokens per measured step time, none included.

Owns the choice; what it knows are ledger facts (running acceptance, the cost table of READY, what slots hold).
docs/policies.md states the formula. It never looks at tokens or confidences, so it is lossless in every mode.
"""

from collections.abc import Sequence
from itertools import accumulate

import attrs

from ....statemachine import request
from ..acceptance import FIRST_GUESS
from ..costs import CostTable
from ..ledger import Ledger, Request
from ..step_costs import Kind, StepCosts

SEED_READY = request.State.SEED_READY
STICK = 0.02  # a row that drafts counts for so much more than one that rests: nobody flaps between equals
CLOSE = 1.3  # drafting that promises less than so many times the rate of resting is compared to it now and then,
TRIAL_LEN = 64  # once in so many steps, sooner while little is known;
NEAR = 1.15  # and so is resting that promises less than so many times the rate of drafting, which costs more to try:
SELDOM = 4  # so many times as seldom
PROBE_LEN = 128  # passes after which a resting row drafts once, to see whether its text became predictable,
PROBE_SHARE = 64  # and seldomer where that would take more than the 64th part of all time


@attrs.frozen
class Auto:
    """`max_len`: the engine's `max_draft_len`; None: the drafter's block."""

    name: str = "auto"
    version: int = 1
    max_len: int | None = None
    learns: bool = True
    needs_costs: bool = True

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int]:
        capacity = ledger.worker.capacity
        if capacity is None or capacity.costs is None:
            return [0] * len(rows)  # no READY: nobody runs either
        most = capacity.block_len if self.max_len is None else min(self.max_len, capacity.block_len)
        prior = ledger.acceptance.chances(most, [FIRST_GUESS] * most)
        decoding = [one for one in rows if one.state is not SEED_READY]
        survivals = [_survival(one, prior, most) for one in decoding]
        factors = ledger.step_costs.factors()
        wants, advantage = best_lengths(survivals, capacity.costs, factors=factors)
        if len(decoding) < len(rows):  # a prompt drafts if it will be worth it once all of them decode
            both = survivals + [_survival(one, prior, most) for one in rows[len(decoding) :]]
            chunks = best_lengths(both, capacity.costs, factors=factors)[0][len(decoding) :]
        else:
            chunks = []
            trial = _trial(survivals, advantage, ledger.step_costs, costs=capacity.costs, factors=factors)
            if trial is not None:  # beside chunks it would teach nothing
                return [min(trial, len(own)) for own in survivals]
        resting = [at for at, one in enumerate(decoding) if wants[at] == one.held_len == 0 and survivals[at]]
        if resting:
            probing = _waited(decoding, resting, survivals, ledger, costs=capacity.costs)
            probing += _went_well(decoding, resting, survivals, costs=capacity.costs, factors=factors)
            for at in probing:
                wants[at] = most
        return wants + chunks


def best_lengths(
    survivals: Sequence[Sequence[float]], costs: CostTable, *, factors: Sequence[float] = (1.0, 1.0, 1.0)
) -> tuple[list[int], float]:
    """survivals[row][j]: the chance that drafts 0..j all stand. Return a length for each row (one length, or none), and
    how many times the rate of resting that promises.

    `factors`: what the table's time is multiplied with, by kind of step.

    Rows are tried in order of what their whole block promises: the best 1, 2, 4, ... and all of them draft, all by one
    length, as rows of one width attend together. Of all these the most tokens per time wins.
    """
    num_rows = len(survivals)
    if num_rows == 0:
        return [], 1.0
    rest_rate = num_rows / (factors[Kind.REST] * costs.target(num_rows, num_rows))
    order = _by_promise(survivals)
    best_rate, best_size, best_len = rest_rate, 0, 0
    for size in sorted({min(1 << power, num_rows) for power in range(num_rows.bit_length() + 1)}):
        rate, length, _ = _best_of([survivals[row] for row in order[:size]], num_rows, costs, factors)
        if rate > best_rate:
            best_rate, best_size, best_len = rate, size, length
    lengths = [0] * num_rows
    for row in order[:best_size]:
        lengths[row] = min(best_len, len(survivals[row]))
    return lengths, best_rate / rest_rate


def _by_promise(survivals: Sequence[Sequence[float]]) -> list[int]:
    return sorted(range(len(survivals)), key=lambda row: (-sum(survivals[row]), row))


def _best_of(
    drafting: Sequence[Sequence[float]], num_rows: int, costs: CostTable, factors: Sequence[float]
) -> tuple[float, int, Kind]:
    """Tokens a time when these rows of a step draft by the length that is best for them, that length, and the kind."""
    promises = [list(accumulate(one)) for one in drafting if one]  # [n - 1]: accepted drafts expected of n
    block_ns = costs.draft(len(promises))
    best = (0.0, 0, Kind.PART)
    for length in range(1, max(map(len, promises), default=0) + 1):
        lens = [min(length, len(one)) for one in promises]
        gain = sum(one[own - 1] for one, own in zip(promises, lens, strict=True))
        kind = Kind.WHOLE if lens == [length] * num_rows else Kind.PART
        rate = (num_rows + gain) / (factors[kind] * (costs.target(num_rows, num_rows + sum(lens)) + block_ns))
        if rate > best[0]:
            best = (rate, length, kind)
    return best


def _trial(
    survivals: Sequence[Sequence[float]],
    advantage: float,
    known: StepCosts,
    *,
    costs: CostTable,
    factors: Sequence[float],
) -> int | None:
    """The length that all rows try now, or None: what resting costs only an engine that rests knows, and what drafting
    costs only one that drafts. Each takes two steps: the first gets rid of drafts, or makes them."""
    if not survivals or advantage >= CLOSE:
        return None
    if advantage > 1.0:
        return 0 if _is_due(known, Kind.REST, TRIAL_LEN) else None
    if not _is_due(known, Kind.WHOLE, SELDOM * TRIAL_LEN):
        return None
    num_rows = len(survivals)
    rate, length, kind = _best_of(survivals, num_rows, costs, factors)
    rest_rate = num_rows / (factors[Kind.REST] * costs.target(num_rows, num_rows))
    return length if kind is Kind.WHOLE and rate * NEAR > rest_rate else None


def _is_due(known: StepCosts, kind: Kind, interval: int) -> bool:
    """For two steps in `interval`, even if they turn out to be of another kind; at first after an eighth of it, ..."""
    waited = known.since[kind] - min(interval, interval // 8 * (1 + int(known.counts[kind])))
    return waited >= 0 and waited % interval < 2


def _survival(one: Request, prior: Sequence[float], most: int) -> list[float]:
    """Products of the request's chances, a little more for who drafts than for who rests; none for who must not."""
    own = one.options.max_draft_len
    favour = 1 + STICK if one.held_len > 0 else 1 - STICK
    chances = one.acceptance.chances(most if own is None else min(own, most), prior)
    return [favour * survival for survival in accumulate(chances, lambda a, b: a * b)]


def _waited(
    decoding: Sequence[Request],
    resting: Sequence[int],
    survivals: Sequence[Sequence[float]],
    ledger: Ledger,
    *,
    costs: CostTable,
) -> list[int]:
    """Who drafts once because long nobody looked: those who rested half the time go together, as a block for many
    costs little more than one for one. Requests may be too short to wait so long, but the engine is not: when nobody
    drafts at all, the passes of all of them count, and one of them goes."""
    rested = {at: decoding[at].acceptance.rest_len for at in resting}
    longest = max(resting, key=rested.__getitem__)
    going = [at for at in resting if rested[at] >= PROBE_LEN // 2] or [longest]
    num_rows = len(decoding)
    rest_ns = costs.target(num_rows, num_rows)
    probe_ns = costs.target(num_rows, num_rows + sum(len(survivals[at]) for at in going)) + costs.draft(len(going))
    patience = max(float(PROBE_LEN), PROBE_SHARE * (probe_ns - rest_ns) / rest_ns)
    alone = all(one.held_len == 0 for one in decoding) and ledger.acceptance.rest_len >= patience * num_rows
    return going if alone or rested[longest] >= patience else []


def _went_well(
    decoding: Sequence[Request],
    resting: Sequence[int],
    survivals: Sequence[Sequence[float]],
    *,
    costs: CostTable,
    factors: Sequence[float],
) -> list[int]:
    """Who drafts once more at once, after a draft of which so many stood that it would pay if it went on like that."""
    heard = {at: decoding[at].acceptance.last_accepted_len for at in resting if decoding[at].acceptance.rest_len == 0}
    if not any(heard.values()):
        return []
    hopes = [[1.0] * min(heard[at], len(own)) if at in heard else own for at, own in enumerate(survivals)]
    lengths, _ = best_lengths(hopes, costs, factors=factors)
    return [at for at in heard if lengths[at] > 0]
