"""A worker without torch: target and drafter as pure functions of the text, with the real worker's entry checks.

Owns what a slot would hold and what its drafter would propose; never a socket or a clock (`scripted_backend.py` makes
it a peer). Simulators and tests call `ScriptedModel.run_rows`. A token is a function of the whole text before it, so
any loss of state shows in the output.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ...statemachine.errors import refuse_all
from ..core import events
from .scripted_details import detail_of
from .scripted_faults import Faults as Faults
from .scripted_faults import RowRefused as RowRefused
from .scripted_faults import ScriptedFault as ScriptedFault
from .text_hash import EMPTY_HASH, MASK, hash_of, mix, push

GREEDY_BELOW = 1e-5

Target = Callable[[Sequence[int]], int] | Sequence[int]  # of the text so far, or the token at each position (cycled)
Propose = Callable[[Sequence[int], int], Sequence[int]]  # text so far (anchor included), how many -> drafts
Acceptance = Callable[[int, int], int] | Sequence[int]  # of (blocks drafted in this tenancy, text length), or cycled
Confidence = Callable[[int], Sequence[float]]  # of how many drafts of a block are true -> a logit for each


@attrs.define
class Slot:
    """What the worker holds for one slot. While `anchored`, the text's last token is the anchor, not in the window."""

    epoch: int | None = None
    text: list[int] = attrs.field(factory=list)
    hash: int = EMPTY_HASH
    anchored: bool = False
    held: list[int] = attrs.field(factory=list)
    params: Any = None
    free_pos: int = 0  # before this position none of the masked tokens of `params` is drawn
    num_blocks: int = 0

    @property
    def window_len(self) -> int:
        return len(self.text) - self.anchored


class ScriptedModel:
    """Runs the rows of a command; raises `ScriptedFault` with nothing moved.

    `mean` is the mean acceptance length (1..block_len + 1) of the minimum-variance schedule: floor(mean - 1) drafts
    always stand, one more with the fractional part. `acceptance`, `target` and `propose` replace parts of it;
    `confidence` gives it a confidence head.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        vocab_size: int = 1000,
        block_len: int = 7,
        seed: int = 0,
        mean: float | None = None,
        acceptance: Acceptance | None = None,
        target: Target | None = None,
        propose: Propose | None = None,
        confidence: Confidence | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.mean = (1 + block_len / 2) if mean is None else mean
        problems = _problems(num_slots, max_model_len, vocab_size, block_len, self.mean)
        refuse_all("scripted model", problems)
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.block_len = block_len
        self.seed = seed
        self.slots = [Slot() for _ in range(num_slots)]
        self.lost: str | None = None  # of the last run
        self.num_runs = 0
        self._acceptance = acceptance
        self._target = target
        self._propose, self._confidence, self.has_confidence = propose, confidence, confidence is not None
        self._faults = faults or Faults()

    def run_rows(self, rows: Sequence[Any]) -> list[events.ReportRow]:
        """Run core rows or wire rows (they have the same names) and return one report row for each, in their order."""
        number = self.num_runs + 1
        drafter_fails = number in self._faults.drafter
        staged: dict[int, Slot] = {}
        reports = []
        for row in rows:
            if row.slot in staged or not 0 <= row.slot < len(self.slots):
                self.num_runs = number
                raise ScriptedFault("BAD_COMMAND", f"slot {row.slot} is named twice or is none of {len(self.slots)}")
            staged[row.slot], report = self._run_row(row, number=number, drafts=not drafter_fails)
            reports.append(report)
        self.num_runs = number
        if number in self._faults.steps:
            raise ScriptedFault("SCRIPTED", f"step {number} was told to fail")
        for index, slot in staged.items():
            self.slots[index] = slot
        self.lost = "the drafter was told to fail" if drafter_fails else None
        return reports

    def fail_rows(self, rows: Sequence[Any]) -> None:
        """What a step leaves behind that fails before its commit: nothing moved, but windows were being opened."""
        for row in rows:
            if getattr(row, "opens", None) is not None:
                self._opened(row)

    def next_token(self, text: Sequence[int], params: Any = None) -> int:
        """Return the target's token after `text`, recomputed from scratch."""
        return self._token(text, hash_of(text), params)

    def continuation(self, text: Sequence[int], length: int, *, params: Any = None) -> list[int]:
        """Return the target's next `length` tokens after `text`: what any lawful engine emits."""
        grown, state, free_pos = list(text), hash_of(text), _free_pos(params, len(text), 0)
        for _ in range(length):
            grown.append(self._token(grown, state, params, free_pos))
            state = push(state, grown[-1])
        return grown[len(text) :]

    def _run_row(self, row: Any, *, number: int, drafts: bool) -> tuple[Slot, events.ReportRow]:
        """Return the slot as it will be after the commit, and the report. A refused row leaves the slot as it is."""
        kind = type(row).__name__
        if kind == "Scrub":
            return Slot(), events.Scrubbed(row.slot)
        try:
            if (number, row.slot) in self._faults.rows:
                raise RowRefused("SCRIPTED", f"slot {row.slot} was told to fail in step {number}")
            return self._seed(row, drafts) if kind == "Seed" else self._decode(row, drafts)
        except RowRefused as refused:
            return self.slots[row.slot], events.RowFault(row.slot, row.epoch, refused.code, str(refused))

    def _seed(self, row: Any, drafts: bool) -> tuple[Slot, events.ReportRow]:
        slot = self._opened(row)
        self._check_epoch(slot, row)
        if slot.anchored or row.start_pos != len(slot.text):
            raise RowRefused("POSITION", f"chunk starts at {row.start_pos}, the window holds {slot.window_len}")
        if not row.token_ids or len(slot.text) + len(row.token_ids) > self.max_model_len:
            raise RowRefused(
                "LIMIT", f"{len(row.token_ids)} tokens at {row.start_pos}, the window has {self.max_model_len}"
            )
        self._check_propose(row)
        for token_id in row.token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise RowRefused("TOKEN", f"token id {token_id}: expected 0..{self.vocab_size - 1}")
            slot.hash = push(slot.hash, token_id)
        slot.text.extend(row.token_ids)
        slot.params, slot.free_pos = row.params, _free_pos(row.params, len(slot.text), row.output_len)
        if not row.last:
            return slot, events.Seeded(row.slot, row.epoch)
        return self._emit(slot, row, accepted=[], drafts=drafts, draft=None)

    def _decode(self, row: Any, drafts: bool) -> tuple[Slot, events.ReportRow]:
        before = self.slots[row.slot]
        self._check_epoch(before, row)
        if not before.anchored:
            raise RowRefused("POSITION", f"slot {row.slot} has no anchor: its prompt is not seeded to the end")
        if row.draft_len > len(before.held):
            raise RowRefused("HELD", f"draft_len {row.draft_len}, the slot holds {len(before.held)}")
        if row.draft_len < 0 or len(before.text) + row.draft_len > self.max_model_len:
            raise RowRefused("LIMIT", f"draft_len {row.draft_len} at {before.window_len} of {self.max_model_len}")
        self._check_propose(row)
        slot = attrs.evolve(before, text=list(before.text))
        accepted: list[int] = []
        draft = before.held[: row.draft_len]
        for token_id in draft:
            if token_id != self._token(slot.text, slot.hash, slot.params, slot.free_pos):
                break
            accepted.append(token_id)
            self._append(slot, token_id)
        return self._emit(slot, row, accepted=accepted, drafts=drafts, draft=draft)

    def _emit(
        self, slot: Slot, row: Any, *, accepted: list[int], drafts: bool, draft: list[int] | None
    ) -> tuple[Slot, events.ReportRow]:
        """Sample the extra token, which becomes the anchor, then draft after it."""
        extra = self._token(slot.text, slot.hash, slot.params, slot.free_pos)
        self._append(slot, extra)
        slot.anchored = True
        propose_len = row.propose_len if drafts else 0
        logits = (
            list(self._confidence(self._num_true(slot)))[:propose_len] if self._confidence and propose_len else None
        )
        slot.held = self._drafted(slot, propose_len) if propose_len else []
        tokens, held_len = [*accepted, extra], len(slot.held)
        detail = detail_of(slot.params, tokens, draft, text_len=len(slot.text), vocab_size=self.vocab_size)
        return slot, events.Emitted(row.slot, row.epoch, tokens, len(accepted), held_len, detail, logits)

    def _drafted(self, slot: Slot, propose_len: int) -> list[int]:
        """Draft a whole block and keep `propose_len` of it: true tokens first, then wrong ones."""
        num_true = self._num_true(slot)
        slot.num_blocks += 1
        if self._propose is not None:
            return list(self._propose(slot.text, self.block_len))[:propose_len]
        grown, state, block = list(slot.text), slot.hash, []
        for index in range(propose_len):
            token_id = self._token(grown, state, slot.params, slot.free_pos)
            if index >= num_true:
                token_id = (token_id + 1) % self.vocab_size
            block.append(token_id)
            grown.append(token_id)
            state = push(state, token_id)
        return block

    def _num_true(self, slot: Slot) -> int:
        if callable(self._acceptance):
            return self._acceptance(slot.num_blocks, len(slot.text))
        if self._acceptance is not None:
            return self._acceptance[slot.num_blocks % len(self._acceptance)]
        always, fraction = divmod(self.mean - 1, 1)
        return int(always) + (mix(slot.hash ^ ~self.seed & MASK) < fraction * (MASK + 1))

    def _opened(self, row: Any) -> Slot:
        """Return a copy of the slot to grow, after what the row's Open says.

        The window itself is cut at once to what is kept in place, and is lost when it is copied over: a step that
        fails does not bring it back.
        """
        if row.opens is None:
            before: Slot = self.slots[row.slot]
            return attrs.evolve(before, text=list(before.text))
        opens = row.opens
        kept: list[int] = []
        if opens.source_slot is not None:
            source = self.slots[opens.source_slot]
            if source.epoch != opens.source_epoch:
                raise RowRefused(
                    "EPOCH", f"source slot {opens.source_slot}: {opens.source_epoch}, it has {source.epoch}"
                )
            if opens.keep_len > source.window_len:
                raise RowRefused("POSITION", f"keep_len {opens.keep_len}, the source holds {source.window_len}")
            kept = source.text[: opens.keep_len]
        elif opens.keep_len:
            raise RowRefused("POSITION", f"keep_len {opens.keep_len} without a source")
        if opens.source_slot == row.slot:
            self.slots[row.slot] = Slot(epoch=opens.source_epoch, text=kept, hash=hash_of(kept))
        elif kept:
            self.slots[row.slot] = Slot()
        return Slot(epoch=row.epoch, text=list(kept), hash=hash_of(kept))

    def _check_epoch(self, slot: Slot, row: Any) -> None:
        if slot.epoch != row.epoch:
            raise RowRefused("EPOCH", f"slot {row.slot}: the row says epoch {row.epoch}, the window has {slot.epoch}")

    def _check_propose(self, row: Any) -> None:
        if not 0 <= row.propose_len <= self.block_len:
            raise RowRefused("LIMIT", f"propose_len {row.propose_len}: expected 0..{self.block_len}")

    def _append(self, slot: Slot, token_id: int) -> None:
        slot.text.append(token_id)
        slot.hash = push(slot.hash, token_id)

    def _token(self, text: Sequence[int], state: int, params: Any, free_pos: int = 0) -> int:
        token_id = self._wanted(text, state, params)
        while len(text) < free_pos and token_id in params.masked_token_ids:
            token_id = (token_id + 1) % self.vocab_size
        return token_id

    def _wanted(self, text: Sequence[int], state: int, params: Any) -> int:
        if callable(self._target):
            return self._target(text)
        if self._target is not None:
            return self._target[len(text) % len(self._target)]
        state ^= self.seed
        if params is not None and params.temperature >= GREEDY_BELOW:
            state = push(push(state, params.seed), params.sample_index)
        return mix(state) % self.vocab_size


def _free_pos(params: Any, text_len: int, output_len: int) -> int:
    masks = params is not None and params.masked_token_ids
    return text_len - output_len + params.min_tokens if masks else 0


def _problems(num_slots: int, max_model_len: int, vocab_size: int, block_len: int, mean: float) -> list[str]:
    least: Mapping[str, tuple[int, int]] = {
        "num_slots": (num_slots, 1),
        "max_model_len": (max_model_len, 2),
        "vocab_size": (vocab_size, 2),
        "block_len": (block_len, 0),
    }
    problems = [f"{name} = {value}: expected {low} or more" for name, (value, low) in least.items() if value < low]
    if not 1 <= mean <= block_len + 1:
        problems.append(f"mean = {mean}: expected 1..{block_len + 1} (block_len + 1)")
    return problems
