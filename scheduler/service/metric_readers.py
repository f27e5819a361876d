"""How numbers are read off a `Reading`: functions that return samples, pairs of label values and a number.

Owns no metric; `metric_list.py` names them and says what they mean.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...statemachine import request
from ...statemachine.rows import Row
from ..core.tables import TABLES, Machine
from .metrics import Reading

Sample = tuple[tuple[str, ...], Any]  # label values, and a number or a Distribution
Reader = Callable[[Reading], Iterable[Sample]]
KEPT_BY = ("request", "engine", "remaining", "held", "budget", "no_drafter")  # what `plan.py` can say

# ---- ways to read -----------------------------------------------------------------------------------------------


def stat(name: str) -> Reader:
    return lambda reading: [((), reading.stats[name])]


def by_key(read: Callable[[Reading], Mapping[str, Any]]) -> Reader:
    return lambda reading: [((key,), value) for key, value in read(reading).items()]


def states_of(name: str, states: Any) -> Reader:
    """How many are in each state, those with none included."""
    return lambda reading: [((state.name,), reading.stats[name].get(state.name, 0)) for state in states]


def state_of(name: str, states: Any) -> Reader:
    return lambda reading: [((state.name,), int(reading.stats[name] == state.name)) for state in states]


def positions(name: str) -> Reader:
    return lambda reading: [((str(index + 1),), count) for index, count in enumerate(reading.stats[name])]


def distribution(name: str) -> Reader:
    return lambda reading: [((), reading.distributions[name])]


def fired(machine: Machine, applies: Callable[[Row[Any, Any, Any]], bool]) -> Callable[[Reading], int]:
    """How often rows of a table were taken."""
    indices = [index for index, row in enumerate(TABLES[machine].page.rows) if applies(row)]
    return lambda reading: sum(reading.fired[machine][index] for index in indices)


def transitions(reading: Reading) -> Iterator[Sample]:
    """Those that were taken; the table knows all that may be."""
    for machine in Machine:
        for index, row in enumerate(TABLES[machine].page.rows):
            count = reading.fired[machine][index]
            if count:
                case = "" if row.case is None else row.case.name
                yield (machine.name, row.state.name, row.event.name, case, row.next.name), count


# ---- numbers that need a sentence -------------------------------------------------------------------------------

charged = fired(Machine.REQUEST, lambda row: request.Effect.CHARGE in row.effects)
row_faults = fired(Machine.REQUEST, lambda row: row.event is request.Event.ROW_FAULT)


def refused(reading: Reading) -> Iterator[Sample]:
    codes = {**reading.stats["refused"]}
    for code, count in reading.refused_at_door.items():
        codes[code] = codes.get(code, 0) + count
    return (((code,), count) for code, count in codes.items())


def rows(reading: Reading) -> Iterator[Sample]:
    return (((kind,), reading.sums[f"{kind}_rows"]) for kind in ("seed", "decode", "scrub"))


def tokens(reading: Reading) -> list[Sample]:
    sums = reading.sums
    return [(("seed",), sums["seed_tokens"]), (("anchor",), sums["decode_rows"]), (("draft",), sums["draft_tokens"])]


def by_draft_len(reading: Reading) -> list[Sample]:
    """`verified_at[k]` passes verified k + 1 drafts or more."""
    longer = [*reading.stats["verified_at"], 0]
    exact = [longer[index] - longer[index + 1] for index in range(len(longer) - 1)]
    return [((str(length),), count) for length, count in enumerate([reading.stats["zero_passes"], *exact])]


def choices(reading: Reading) -> list[Sample]:
    short: Mapping[str, int] = reading.stats["drafts_short"]
    free = reading.sums["decode_rows"] - sum(short.values())
    return [(("policy",), free), *(((kept_by,), short.get(kept_by, 0)) for kept_by in KEPT_BY)]


def worker_seconds(reading: Reading) -> Iterator[Sample]:
    return (((part,), reading.worker_times[f"{part}_ns"] / 1e9) for part in ("target", "draft", "cpu", "wait"))
