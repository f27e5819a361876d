"""A house of tenants: a scheduler's view of one worker by hand, which knows what every readable row must be.

The house knows the text of each slot's content, lets chunks, passes, zero steps, prefix hits and faults happen, and
holds every row that may be read against the same text recomputed from scratch, by the models alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import attrs
import torch
from dsparkd.models.drafter import DSparkDrafter
from dsparkd.models.layers import grouped_attention
from dsparkd.models.target import Qwen3Target
from dsparkd.scheduler.wire import messages as wire
from dsparkd.worker import faults
from dsparkd.worker.windows import Window, Windows
from torch import Tensor
from worker_support import TOLERANCE, Driver, backend, phases_of, samples, seed
from zero_draft_support import NEAR, reference_draft

MAX_MODEL_LEN = 64
_epochs = count(1)


class ToldToFail(Exception):
    """An injected fault."""


@cache
def _models(name: str) -> tuple[Qwen3Target, DSparkDrafter]:
    made = backend(name, num_slots=1, max_model_len=MAX_MODEL_LEN)
    assert made.target is not None
    assert made.drafter is not None
    return made.target, made.drafter


@cache
@torch.inference_mode()
def from_scratch(name: str, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Target rows and context rows of `text`: [2 * layers, G, len(text), D] each, keys and values in turn.

    One pass of the models over the whole text, without anything of the worker: no window, batch, phase or runner.
    """
    target, drafter = _models(name)
    rows: list[Tensor] = []
    causal = torch.ones(1, len(text), len(text)).tril().bool()

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = k.transpose(0, 1), v.transpose(0, 1)  # [G, tokens, D]
        rows.extend((keys, values))
        return grouped_attention(q.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), causal)[0]

    positions = torch.arange(len(text))
    _, features = target.forward(torch.tensor(text), positions, attend)
    context = torch.stack(drafter.context(features, positions), 1)  # [layers, 2, tokens, G, D]
    return torch.stack(rows), context.flatten(0, 1).transpose(1, 2)


@attrs.define
class Tenant:
    """Who lives in a slot: `prompt` is what is still to be seeded; `anchor` None until it is seeded to the end."""

    epoch: int
    prompt: list[int]
    opens: wire.Open | None
    whole: list[int]  # the prompt from its first token on
    anchor: int | None = None


@attrs.define
class House:
    """One worker. `contents`: the token of every position that a slot's window counts, present tenant or not."""

    name: str
    driver: Driver
    tenants: dict[int, Tenant] = attrs.field(factory=dict)
    contents: dict[int, list[int]] = attrs.field(factory=dict)
    epochs: dict[int, int] = attrs.field(factory=dict)  # by which the worker knows these contents
    passes: dict[int, list[tuple[int, int]]] = attrs.field(factory=dict)  # start and accepted_len of each pass
    num_rows_compared: int = 0

    @property
    def windows(self) -> Windows:
        return phases_of(self.driver.backend).windows

    @property
    def block_len(self) -> int:
        return self.windows.shape.block_len

    def text(self, slot: int) -> list[int]:
        anchor = self.tenants[slot].anchor
        return self.contents[slot] + ([] if anchor is None else [anchor])

    # ---- what a scheduler does --------------------------------------------------------------------------------

    def usable(self, source: int, keep_len: int) -> int:
        """Section 6's rule: where the ring has lost what the drafter would read, the last window is seeded again."""
        window, size = self.windows.table[source], self.windows.shape.drafter_window
        lost = max(0, keep_len - size) < max(window.context_start, window.length - size)
        return max(0, keep_len - size) if lost else keep_len

    def begin(self, slot: int, prompt: list[int], *, source: int | None = None, keep_len: int = 0) -> int:
        """A new tenancy whose first `keep_len` tokens are those of `source`'s content. Returns what is really kept."""
        if source is not None:
            assert prompt[:keep_len] == self.contents[source][:keep_len]
            keep_len = self.usable(source, keep_len)
        opens = wire.Open() if not keep_len else wire.Open(keep_len, source, self.epochs[source])  # type: ignore[index]
        self.tenants[slot] = Tenant(next(_epochs), prompt[keep_len:], opens, prompt)
        self.passes[slot] = []
        return keep_len

    def chunk(self, slot: int, width: int, *, propose_len: int | None = None) -> wire.Seed:
        """The next `width` tokens of the slot's prompt; the last chunk drafts a whole block unless told otherwise."""
        tenant = self.tenants[slot]
        if tenant.opens is not None and not self._stands(tenant.opens):
            tenant.opens, tenant.prompt = wire.Open(), tenant.whole
        last = width >= len(tenant.prompt)
        start = tenant.opens.keep_len if tenant.opens is not None else len(self.contents[slot])
        propose = self.block_len if propose_len is None else propose_len
        return seed(
            slot,
            tenant.epoch,
            tenant.prompt[:width],
            start_pos=start,
            last=last,
            propose_len=propose if last else 0,
            opens=tenant.opens,
        )

    def _stands(self, opens: wire.Open) -> bool:
        """Whether the source still holds what was to be kept: others may have opened in it since."""
        source = opens.source_slot
        return source is None or (
            self.epochs.get(source) == opens.source_epoch and len(self.contents[source]) >= opens.keep_len
        )

    def decode(self, slot: int, draft_len: int | None = None, propose_len: int | None = None) -> wire.Decode:
        """A pass over as much of the held draft as is asked for and fits."""
        held, room = len(self.driver.window(slot).held), MAX_MODEL_LEN - len(self.contents[slot]) - 1
        draft_len = min(held, room, held if draft_len is None else draft_len)
        return wire.Decode(
            slot, self.tenants[slot].epoch, draft_len, self.block_len if propose_len is None else propose_len
        )

    def step(self, *rows: Any, fault: str = "none") -> bool:
        """Run one command and keep account of it; False when the fault hit before the commit."""
        held = {row.slot: list(self.driver.window(row.slot).held) for row in rows}
        before = {slot: list(text) for slot, text in self.contents.items()}
        for row in rows:
            if isinstance(row, wire.Seed) and row.opens is not None:
                self._opened(row, before)
        try:
            with injected(self.driver, fault):
                report = self.driver.step(*rows)
        except ToldToFail:
            return False
        for row, answer in zip(rows, report.rows, strict=True):
            assert not isinstance(answer, wire.RowFault), answer
            self._committed(row, answer, held[row.slot], before)
        return True

    def _opened(self, row: wire.Seed, before: dict[int, list[int]]) -> None:
        """What is left in the slot if the step fails: what is kept in place, else nothing."""
        assert row.opens is not None
        if row.opens.source_slot == row.slot:
            self.contents[row.slot] = before[row.slot][: row.opens.keep_len]
        else:
            self.contents.pop(row.slot, None)
            self.epochs.pop(row.slot, None)

    def _committed(self, row: Any, answer: Any, held: list[int], before: dict[int, list[int]]) -> None:
        tenant, slot = self.tenants[row.slot], row.slot
        if isinstance(row, wire.Seed):
            if row.opens is not None:
                source = row.opens.source_slot
                self.contents[slot] = before[source][: row.opens.keep_len] if source is not None else []
                self.epochs[slot], tenant.opens = tenant.epoch, None
            self.contents[slot] += row.token_ids
            tenant.prompt = tenant.prompt[len(row.token_ids) :]
        else:
            assert tenant.anchor is not None
            self.passes[slot].append((len(self.contents[slot]), answer.accepted_len))
            self.contents[slot] += [tenant.anchor, *held[: answer.accepted_len]]
        if isinstance(answer, wire.Emitted):
            tenant.anchor = answer.token_ids[-1]

    def seed_all(self, slot: int, widths: Iterator[int] | None = None) -> None:
        """Seed the slot's prompt to its end, in chunks of `widths` or whole."""
        while self.tenants[slot].prompt:
            self.step(self.chunk(slot, len(self.tenants[slot].prompt) if widths is None else next(widths)))

    # ---- the law -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every row that may be read is that of the slot's text. Raises AssertionError."""
        for slot, window in enumerate(self.windows.table[:-1]):
            if window.epoch is None:
                assert slot not in self.contents
                continue
            assert window.epoch == self.epochs[slot]
            assert window.length == len(self.contents[slot])
            self._check_rows(slot, window)

    def _check_rows(self, slot: int, window: Window) -> None:
        store = self.windows.context
        assert store is not None
        target, context = from_scratch(self.name, tuple(self.contents[slot]))
        near(self.windows.target.rows[:, slot, :, : window.length], target)
        first = self.windows.first_context(window)
        near(store.rows[:, slot, :, self.windows.context_cells(window)], context[:, :, first : window.context_len])
        self.num_rows_compared += window.length + window.context_len - first
        if window.pending_len:
            keys, values = self._projected(slot, window)
            near(keys, context[0::2, :, window.context_len :])
            near(values, context[1::2, :, window.context_len :])

    def _projected(self, slot: int, window: Window) -> tuple[Tensor, Tensor]:
        """What the pending features will be in the context: [layers, G, pending, D] each."""
        drafter, pending = phases_of(self.driver.backend).drafter, self.windows.pending
        assert drafter is not None and pending is not None
        with torch.inference_mode():
            positions = torch.arange(window.context_len, window.length)
            keys, values = drafter.context(pending.of(slot, window.pending_len), positions)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def check_draft(self, slot: int) -> None:
        """What the slot holds is what the readable twin proposes after its text, near ties left out."""
        size = self.windows.shape.drafter_window
        expected = reference_draft(self.name, self.text(slot), window=size)
        for index, token in enumerate(self.driver.window(slot).held):
            if token != expected.token_ids[index]:
                best = expected.draft_logits[index].topk(2).values
                assert best[0] - best[1] < NEAR, f"draft {index} is {token}, the twin's is {expected.token_ids[index]}"
                return


def prompt_of(name: str, length: int) -> list[int]:
    """A prompt of `length` tokens, the first golden one over and over."""
    token_ids: list[int] = samples(name)[0]["prompt_ids"]
    return (token_ids * length)[:length]


def near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert not found.numel() or float((found - expected).abs().max()) <= TOLERANCE, "rows differ from those made anew"


def house(name: str = "vanilla", **init: Any) -> House:
    return House(name, Driver(backend(name, **{"num_slots": 3, "max_model_len": MAX_MODEL_LEN, **init})))


# Where a step can be told to fail, and when. (An Open that fails on entry: `test_worker_prefix.py`.)
FAULTS: dict[str, tuple[faults.Point, faults.When] | None] = {
    "none": None,
    "open done": (faults.Point.OPEN, faults.When.DONE),
    "target entry": (faults.Point.FORWARD, faults.When.ENTRY),
    "target done": (faults.Point.FORWARD, faults.When.DONE),
    "accept done": (faults.Point.ACCEPT, faults.When.DONE),
    "context entry": (faults.Point.PROJECT, faults.When.ENTRY),
    "context done": (faults.Point.PROJECT, faults.When.DONE),
    "successor done": (faults.Point.SUCCESSOR, faults.When.DONE),
    "commit entry": (faults.Point.COMMIT, faults.When.ENTRY),
    "draft": (faults.Point.PROPOSE, faults.When.ENTRY),
    "draft done": (faults.Point.PROPOSE, faults.When.DONE),
    "report": (faults.Point.REPORT, faults.When.ENTRY),
}


@contextmanager
def injected(driver: Driver, fault: str) -> Iterator[None]:
    """Let one phase raise, on entry or when all of its work is done."""
    place = FAULTS[fault]
    if place is None:
        yield
        return
    with faults.injected(driver.backend.runner, place[0], lambda: ToldToFail(fault), when=place[1]):
        yield
