"""The policy `confidence`: how much of each held draft to verify, from the drafter's own confidence in it.

Owns the choice, in two forms, and the chance that a confidence logit stands for; what it knows are ledger facts (the
logits of held and of past drafts, the cost table of READY). docs/policies.md states the formula and why neither form
changes a distribution: a draft's fate is decided by what was known before its token was drawn.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs

from ....statemachine import request
from ..costs import CostTable
from ..ledger import Ledger, Request
from .want import Want

SEED_READY = request.State.SEED_READY
EARLY_STOP, BUDGET = "early_stop", "budget"
NO_CHANCE_BELOW = -40.0  # sigmoid(-40) = 4e-18

Survivals = Sequence[Sequence[float]]  # [row][j]: the chance that drafts 0..j all stand, never rising in j
Speed = Callable[[int], float]  # steps per time, of a step with so many tokens in all


@attrs.frozen(kw_only=True)
class Confidence:
    """`temperatures`: one for each position of the block, or none at all: every one is 1.

    `fingerprint` names the models that they were fitted for, as far as it is known: (key, value).
    """

    form: str = EARLY_STOP
    max_len: int | None = None
    temperatures: tuple[float, ...] = ()
    fingerprint: tuple[tuple[str, str], ...] = ()
    version: int = 1
    needs_costs: bool = True
    needs_confidence: bool = True

    @property
    def name(self) -> str:
        return "confidence" if self.form == EARLY_STOP else f"confidence:{self.form}"

    def decide(self, rows: Sequence[Request], ledger: Ledger) -> Sequence[int | Want]:
        capacity = ledger.worker.capacity
        if capacity is None or capacity.costs is None:
            return [0] * len(rows)  # no READY: nobody runs either
        most = capacity.block_len if self.max_len is None else min(self.max_len, capacity.block_len)
        if most <= 1:
            return [most] * len(rows)  # nothing to choose
        decoding = [one for one in rows if one.state is not SEED_READY]
        lengths = self._lengths(decoding, capacity.costs, most) if decoding else []
        return [*map(Want, lengths), *[Want(0)] * (len(rows) - len(decoding))]

    def _lengths(self, rows: Sequence[Request], costs: CostTable, most: int) -> list[int]:
        block_ns = costs.draft(sum(one.options.max_draft_len != 0 for one in rows))

        def speed(num_tokens: int) -> float:
            return 1 / (costs.target(len(rows), num_tokens) + block_ns)

        held = [self._survival(one, one.held_confidence, most) for one in rows]
        if self.form == EARLY_STOP:
            return early_stop(held, speed)
        past = [self._survival(one, one.past_confidence, most) for one in rows]
        return best_ranked(held, best_budget(past, speed))

    def _survival(self, one: Request, logits: Sequence[float] | None, most: int) -> list[float]:
        """Products of the calibrated chances, up to the request's own maximum; nothing for nothing held."""
        own = one.options.max_draft_len
        length = most if own is None else min(own, most)
        return survival((logits or ())[:length], self.temperatures)


def early_stop(survivals: Survivals, speed: Speed) -> list[int]:
    """Return a length for each row: drafts join by falling survival as long as each makes the step worth more.

    The first one that does not ends it, whatever would come after: a later draft's survival tells the token before it.
    """
    lengths = [0] * len(survivals)
    tokens = len(survivals)
    expected: float = tokens  # emitted: one a row, and the drafts that stand
    best = expected * speed(tokens)
    for chance_of_all, row, length in ranked(survivals):
        tokens, expected = tokens + 1, expected + chance_of_all
        worth = expected * speed(tokens)
        if not worth > best:
            break
        best, lengths[row] = worth, length
    return lengths


def best_budget(survivals: Survivals, speed: Speed) -> int:
    """How many drafts in all are worth most. Searches the whole path, so `survivals` must be those of past drafts."""
    tokens = len(survivals)
    expected: float = tokens
    best, budget = expected * speed(tokens), 0
    for count, (chance_of_all, _, _) in enumerate(ranked(survivals), 1):
        expected += chance_of_all
        worth = expected * speed(tokens + count)
        if worth > best:
            best, budget = worth, count
    return budget


def best_ranked(survivals: Survivals, budget: int) -> list[int]:
    """Return a length for each row: the `budget` likeliest drafts, as prefixes."""
    lengths = [0] * len(survivals)
    for (_, row, length), _ in zip(ranked(survivals), range(budget), strict=False):
        lengths[row] = length
    return lengths


def ranked(survivals: Survivals) -> Iterator[tuple[float, int, int]]:
    """Yield (survival, row, length) of drafts with any chance, the likeliest first; ties by length, then by row."""
    order = [
        (-chance_of_all, length, row)
        for row, line in enumerate(survivals)
        for length, chance_of_all in enumerate(line, 1)
        if chance_of_all > 0
    ]
    for negated, length, row in sorted(order):
        yield -negated, row, length


def survival(logits: Sequence[float], temperatures: Sequence[float] = ()) -> list[float]:
    """For each position the chance that all drafts up to it stand: products of sigmoid(logit / temperature)."""
    products, product = [], 1.0
    for index, logit in enumerate(logits):
        product *= chance(logit / temperatures[index] if temperatures else logit)
        products.append(product)
    return products


def chance(logit: float) -> float:
    """sigmoid(logit) within 1e-14, by + - * / alone: mathematical libraries differ in the last bit, replays do not."""
    size = -logit if logit > 0 else logit
    if size < NO_CHANCE_BELOW:
        return 1.0 if logit > 0 else 0.0
    part = size / 64
    power = term = 1.0
    for index in range(1, 10):
        term *= part / index
        power += term
    for _ in range(6):
        power *= power
    return (1 if logit > 0 else power) / (1 + power)


def misfits(policy: Confidence, block_len: int, costs: CostTable | None) -> list[str]:
    """Say why the calibration cannot be of this drafter."""
    problems = []
    if policy.temperatures and len(policy.temperatures) != block_len:
        problems.append(
            f"confidence_calibration has {len(policy.temperatures)} temperatures: "
            f"expected {block_len}, one for each position of the drafter's block"
        )
    known = {} if costs is None else dict(costs.fingerprint)
    problems += [
        f"confidence_calibration was fitted for {key} = {value!r}: expected this worker's {known[key]!r}"
        for key, value in policy.fingerprint
        if known.get(key, value) != value
    ]
    return problems
