"""Requests with a client's options on the real worker, through the service's own code."""

from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.core_options import core_options
from dsparkd.scheduler.service.options import read_options
from dsparkd.scheduler.service.stops import StopFinder, mark_stops
from dsparkd.scheduler.testing import Bench
from dsparkd.worker.backend import TorchBackend
from worker_support import TorchRows, phases_of, samples

NAME = "block7"
PROMPTS = [sample["prompt_ids"] for sample in samples(NAME)][:4]
LENGTH = 24


class Letters:
    """A tokenizer that the golden pairs lack: each token is a letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(one) - 97 for one in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(97 + one % 26) for one in token_ids)


class Asked(Bench):
    """Options as a client says them, through the service's own code."""

    finders: dict[int, StopFinder]

    def ask(self, request: int, prompt: Sequence[int], **options: Any) -> None:
        self.finders = getattr(self, "finders", {})
        read = read_options(msgspec.Raw(msgspec.msgpack.encode(options)))
        vocab_size = self.worker.backend.target.config.vocab_size  # type: ignore[attr-defined]
        made = core_options(read, seed=read.seed or 0, eos_token_ids=frozenset(), vocab_size=vocab_size)
        if read.stop:
            self.finders[request] = StopFinder(Letters(), read.stop, min_tokens=read.min_tokens)
        self.submit(request, prompt, **attrs.asdict(made, recurse=False))

    def send(self, event: events.Input) -> list[results.Output]:
        if isinstance(event, events.Report):
            mark_stops(event, self.core.ledger, getattr(self, "finders", {}).get)
        return super().send(event)

    def told(self, request: int, part: str) -> list[Any]:
        """One of the parts of a row that are there for each token."""
        rows = [one for one in self.outputs if isinstance(one, results.Tokens) and one.request == request]
        return [number for one in rows for number in getattr(one.detail, part)]


def asked(policy: str, made: TorchBackend) -> Asked:
    shape = phases_of(made).windows.shape
    limits = Limits(num_slots=shape.num_slots, max_model_len=shape.max_model_len, max_step_tokens=64)
    return Asked(policy, limits=limits, worker=lambda: TorchRows(made))


def answers(engine: Asked, *, death: bool = False, **options: Any) -> list[tuple[Any, ...]]:
    for number, prompt in enumerate(PROMPTS):
        engine.ask(number, prompt, **{"max_tokens": LENGTH, **options})
    if death:
        for _ in range(3):
            engine.tick()
            engine.answer()
        engine.lose_worker()
        engine.revive()
    engine.run()
    return [(engine.tokens.get(number, []), engine.ended[number][0].reason) for number in range(len(PROMPTS))]
