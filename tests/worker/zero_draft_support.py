"""Requests driven by hand through zero-draft phases, and the check that their slots are as good as fresh ones."""

from functools import cache
from itertools import count
from typing import Any

import attrs
import torch
from dsparkd.models.checkpoint import read_drafter, read_target
from dsparkd.models.reference import Draft, ReferenceDrafter, ReferenceTarget
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.wire import messages as wire
from tokenizers import Tokenizer
from torch import Tensor
from worker_support import GOLDEN, NAMES, TOLERANCE, Driver, backend, phases_of, samples, seed

PAIRS = (*NAMES, "shipped")
NEAR = 1e-4
CHUNK_LEN = 3


@cache
def driver_of(name: str, runner: str = "eager") -> Driver:
    """One warm worker for each pair: every test takes new tenancies of its slots. The largest pair runs unwatched."""
    return Driver(backend(name, runner=runner, max_model_len=400, paranoid=name != "shipped"))


_epochs = count(1)


@cache
def prompts(name: str) -> list[list[int]]:
    if name != "shipped":
        return [sample["prompt_ids"] for sample in samples(name)]
    read = Tokenizer.from_file(str(shipped_pair().target / "tokenizer.json"))
    lines = ("def main():\n    for name in sorted(", "class Reader:\n    def __init__(self", "import os\n", "x = 1\n")
    return [read.encode(line).ids for line in lines]


@cache
def twin(name: str) -> tuple[ReferenceTarget, ReferenceDrafter]:
    shipped = shipped_pair()
    folders = (
        (shipped.target, shipped.drafter) if name == "shipped" else (GOLDEN / name / "target", GOLDEN / name / "draft")
    )
    config, tensors = read_target(folders[0])
    draft_config, draft_tensors = read_drafter(folders[1], config)
    wide = [{key: value.float() for key, value in group.items()} for group in (tensors, draft_tensors)]
    target = ReferenceTarget(config, wide[0], taps=draft_config.target_layer_ids)
    return target, ReferenceDrafter(draft_config, wide[1])


@torch.inference_mode()
def reference_draft(name: str, text: list[int], *, window: int | None = None) -> Draft:
    """What the readable twin proposes after `text`, everything recomputed from scratch. window: context positions."""
    target, drafter = twin(name)
    if window is not None:
        drafter = ReferenceDrafter(drafter.config, drafter.tensors, window=window)
    start = len(text) - 1
    features = target.logits_and_features(text)[1]
    return drafter.propose(features[:start], text[-1], start, lambda _, logits: int(logits.argmax()))


def readable_context(driver: Driver, slot: int) -> list[Tensor]:
    """The rows of the drafter's ring that its next block reads, in the order of their positions."""
    windows = phases_of(driver.backend).windows
    assert windows.context is not None
    length = windows.table[slot].context_len
    positions = torch.arange(max(0, length - windows.shape.drafter_window), length) % windows.context.length
    return [rows[slot, :, positions] for rows in (*windows.context.keys, *windows.context.values)]


def tolerance(rows: Tensor) -> float:
    """2e-5 for rows up to 4, as all golden ones are; the shipped pair's reach 20, and float32 rounds with their size.

    A chunk and single tokens go through kernels of different shapes, which is all that the two contexts differ in.
    """
    return TOLERANCE * max(1.0, float(rows.abs().max()) / 4)


def check_slot(driver: Driver, name: str, slot: int, text: list[int]) -> None:
    """The slot's draft and context are those of `text` from scratch. Raises AssertionError with what is stale."""
    window = driver.window(slot)
    assert (window.length, window.anchor) == (len(text) - 1, text[-1])
    assert (window.context_len, window.pending_len) == (window.length, 0), "the context has a hole"
    fresh = driver_of(name)
    spare = phases_of(fresh.backend).windows.shape.num_slots - 1
    seeded = fresh.one(seed(spare, next(_epochs), text[:-1], propose_len=len(window.held)))
    for mine, its in zip(readable_context(driver, slot), readable_context(fresh, spare), strict=True):
        assert (mine - its).abs().max() <= tolerance(its), "context rows differ from those of a freshly seeded slot"
    expected = reference_draft(name, text)
    for index, token in enumerate(window.held):
        best = expected.draft_logits[index].topk(2).values
        if token != expected.token_ids[index]:
            assert best[0] - best[1] < NEAR, f"draft {index} is {token}, the twin's is {expected.token_ids[index]}"
            return
    if seeded.token_ids[0] == text[-1]:
        assert fresh.window(spare).held == window.held


class Chunks:
    """A prompt that never ends in slot 3: each step of the phase carries a chunk of distinct tokens before its rows."""

    def __init__(self) -> None:
        self.epoch, self.start = next(_epochs), 0

    def row(self) -> wire.Seed:
        if self.start >= 120:
            self.epoch, self.start = next(_epochs), 0
        token_ids = [(self.start + offset) * 7 % 241 for offset in range(CHUNK_LEN)]
        opens = wire.Open() if self.start == 0 else None
        row = seed(3, self.epoch, token_ids, start_pos=self.start, last=False, opens=opens)
        self.start += CHUNK_LEN
        return row


@attrs.define
class Run:
    """Up to three requests on one worker, driven by hand: who drafts is said, texts and passes are kept."""

    driver: Driver
    params: wire.Params = attrs.field(factory=wire.Params)
    texts: dict[int, list[int]] = attrs.field(factory=dict)
    epochs: dict[int, int] = attrs.field(factory=dict)
    passes: dict[int, list[tuple[int, tuple[int, ...], int]]] = attrs.field(factory=dict)  # start, draft, accepted

    @property
    def size(self) -> int:
        return phases_of(self.driver.backend).windows.shape.block_len

    def open(self, slot: int, prompt: list[int], *, drafts: bool = True) -> None:
        self.epochs[slot] = next(_epochs)
        row = seed(slot, self.epochs[slot], prompt, propose_len=self.size if drafts else 0, params=self.params)
        self.texts[slot], self.passes[slot] = [*prompt, *self.driver.one(row).token_ids], []

    def step(self, drafting: dict[int, bool], *extra: Any) -> None:
        """One step of the slots: each verifies all it holds; who drafts keeps a whole block."""
        rows, held = [], {}
        for slot, drafts in drafting.items():
            held[slot] = tuple(self.driver.window(slot).held)
            rows.append(wire.Decode(slot, self.epochs[slot], len(held[slot]), self.size if drafts else 0))
        report = self.driver.step(*extra, *rows)
        for slot, row in zip(drafting, report.rows[len(extra) :], strict=True):
            assert isinstance(row, wire.Emitted)
            self.passes[slot].append((len(self.texts[slot]) - 1, held[slot], row.accepted_len))
            self.texts[slot] += row.token_ids


def opened(name: str, *, runner: str = "eager", params: wire.Params | None = None, driver: Driver | None = None) -> Run:
    """Three requests in mid-life, each holding a draft."""
    run = Run(driver or driver_of(name, runner), params or wire.Params())
    for slot in range(3):
        run.open(slot, prompts(name)[slot])
    run.step(dict.fromkeys(range(3), True))
    return run


def zero_phase(run: Run, num_zero: int, *, resting: tuple[int, ...], chunked: bool) -> None:
    """`num_zero` steps in which `resting` propose nothing; the first verifies what they hold. Then all propose."""
    chunks = Chunks()
    for _ in range(num_zero):
        run.step({slot: slot not in resting for slot in run.texts}, *([chunks.row()] if chunked else []))
    for slot in resting:
        assert run.driver.window(slot).held == []
    run.step(dict.fromkeys(run.texts, True), *([chunks.row()] if chunked else []))
