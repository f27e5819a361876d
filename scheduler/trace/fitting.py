"""What a recorded run tells a simulation: its arrivals, how often drafts stood, how long steps took.

Owns the three readings of a trace, all by replaying it. `dsparkd simulate TRACE --cost-table TRACE --acceptance TRACE`
asks what another policy would have made of the same day.
"""

from collections.abc import Sequence
from pathlib import Path

import attrs

from ...statemachine.errors import Refused
from ..core import events, results
from ..core.costs import CostTable
from ..core.events import CommandRow, Decode, Seed
from .arrivals import Arrival
from .replay import replay
from .simulated import Acceptance

NUM_FEATURES = 6


def features(rows: Sequence[CommandRow]) -> list[float]:
    """What a step's time is made of: itself, decode rows, their tokens, chunk tokens, a block, rows of the block."""
    decodes = [row for row in rows if type(row) is Decode]
    chunks = sum(len(row.token_ids) for row in rows if type(row) is Seed)
    drafting = sum(getattr(row, "propose_len", 0) > 0 for row in rows)
    tokens = len(decodes) + sum(row.draft_len for row in decodes)
    return [1.0, len(decodes), tokens, chunks, float(drafting > 0), drafting]


@attrs.frozen
class Recorded:
    """Everything that `simulate` needs of one recorded run."""

    arrivals: list[Arrival]
    acceptance: Acceptance
    times: "FittedTimes"
    num_slots: int
    max_step_tokens: int


@attrs.frozen
class FittedTimes:
    """Step times as a sum of features; never below the quickest tenth of what was recorded."""

    costs: CostTable
    weights_ns: tuple[float, ...]
    least_ns: int
    note: str

    def step_ns(self, rows: Sequence[CommandRow]) -> int:
        found = sum(weight * one for weight, one in zip(self.weights_ns, features(rows), strict=True))
        return max(self.least_ns, int(found))


def fit_trace(path: Path) -> Recorded:
    """Replay a trace; read arrivals, acceptance and step times off it. Raises `Refused` when it lacks one of them."""
    reading = _Reading()
    for step in replay(path):
        reading.take(step.event.input, step.outputs)
        core = step.core
    if not reading.arrivals or not reading.samples:
        raise Refused("BAD_FILE", f"{path}: expected a trace with finished requests and steps")
    capacity = core.ledger.worker.capacity
    block_len = 0 if capacity is None else capacity.block_len
    return Recorded(
        arrivals=reading.ordered(),
        acceptance=reading.acceptance(block_len, path.name),
        times=_fitted(reading.samples, path.name, None if capacity is None else capacity.costs),
        num_slots=core.limits.num_slots,
        max_step_tokens=core.limits.max_step_tokens,
    )


class _Reading:
    """Follows a replay. Inputs carry no time of their own: each happened before the Tick that follows it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.waiting: list[events.Submit] = []
        self.arrivals: dict[int, Arrival] = {}
        self.asked: dict[int, Arrival] = {}
        self.command: tuple[results.Command, int] | None = None
        self.reported: results.Command | None = None
        self.samples: list[tuple[list[float], int]] = []
        self.tested: list[int] = []
        self.stood: list[int] = []

    def take(self, one: events.Input, outputs: Sequence[results.Output]) -> None:
        if type(one) is events.Submit:
            self.waiting.append(one)
        elif type(one) is events.Report and self.command is not None and one.step_id == self.command[0].step_id:
            self.reported = self.command[0]
            self._count(self.reported, one)
        elif type(one) is events.Tick:
            self._tick(one.now_ns)
        for output in outputs:
            if type(output) is results.Command:
                self.command = (output, self.now_ns)
            elif type(output) is results.Ended and output.request in self.asked:
                asked = self.asked.pop(output.request)
                if output.output_len:
                    self.arrivals[output.request] = attrs.evolve(asked, output_len=output.output_len)

    def _tick(self, now_ns: int) -> None:
        self.now_ns = now_ns
        for submit in self.waiting:
            made = Arrival(at_ns=now_ns, prompt_len=len(submit.prompt), output_len=submit.options.max_tokens)
            self.asked[submit.request] = made
        self.waiting.clear()
        if self.reported is not None and self.command is not None:
            self.samples.append((features(self.reported.rows), now_ns - self.command[1]))
            self.reported = None

    def _count(self, command: results.Command, report: events.Report) -> None:
        for row, got in zip(command.rows, report.rows, strict=False):
            if type(row) is not Decode or type(got) is not events.Emitted or row.draft_len == 0:
                continue
            # As many as were emitted at most: numbers in a file may lie, its tokens are there.
            num_tested = max(0, min(got.accepted_len + 1, row.draft_len, len(got.token_ids)))
            grow = num_tested - len(self.tested)
            self.tested += [0] * grow
            self.stood += [0] * grow
            for index in range(num_tested):
                self.tested[index] += 1
                self.stood[index] += index < got.accepted_len

    def acceptance(self, block_len: int, note: str) -> Acceptance:
        """Positions that were never tested stand as often as the last one that was."""
        chances = [stood / tested for stood, tested in zip(self.stood, self.tested, strict=True) if tested]
        last = chances[-1] if chances else 0.0
        return Acceptance(tuple((chances + [last] * block_len)[:block_len]), note)

    def ordered(self) -> list[Arrival]:
        first = min(one.at_ns for one in self.arrivals.values())
        moved = [attrs.evolve(one, at_ns=one.at_ns - first) for one in self.arrivals.values()]
        return sorted(moved, key=lambda one: one.at_ns)


def _fitted(samples: Sequence[tuple[list[float], int]], note: str, costs: CostTable | None) -> FittedTimes:
    weights = least_squares([sample for sample, _ in samples], [float(took) for _, took in samples])
    took = sorted(took for _, took in samples)
    least = took[len(took) // 10]
    known = costs or CostTable(
        fingerprint=(("trace", note),),
        context_len=0,
        rows=(1,),
        widths=(1,),
        target_ns=((max(1, least),),),
        draft_ns=(),
    )
    return FittedTimes(known, tuple(weights), least, f"fitted to {len(samples)} steps of {note}")


def least_squares(lines: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Weights of the columns; a whisker of ridge, so that columns that never move get none."""
    count = len(lines[0])
    scale = [max(1e-12, sum(line[column] ** 2 for line in lines)) for column in range(count)]
    matrix = [[sum(line[a] * line[b] for line in lines) for b in range(count)] for a in range(count)]
    right = [sum(line[a] * value for line, value in zip(lines, wanted, strict=True)) for a in range(count)]
    for column in range(count):
        matrix[column][column] += 1e-9 * scale[column] + 1e-9
    return _solved(matrix, right)


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss, with the largest pivot first."""
    count = len(right)
    lines = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for column in range(count):
        pivot = max(range(column, count), key=lambda row: abs(lines[row][column]))
        lines[column], lines[pivot] = lines[pivot], lines[column]
        for row in range(count):
            if row != column:
                share = lines[row][column] / lines[column][column]
                lines[row] = [one - share * other for one, other in zip(lines[row], lines[column], strict=True)]
    return [line[count] / line[index] for index, line in enumerate(lines)]
