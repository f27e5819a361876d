"""A bench whose reports pass the service's search for stop strings, and the plain answer to compare with."""

from collections.abc import Sequence
from typing import Any

from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.service.stops import StopFinder, mark_stops
from dsparkd.scheduler.service.text import IncrementalText
from dsparkd.scheduler.testing import Bench

# Texts overlap each other and stop strings, one is empty, two are halves of a character.
PIECES = (b"a", b"b", b"ab", b"ba", b"", b"\xc3", b"\xa9", b"\n", b"a\n", b"bab")


class Pieces:
    """A tokenizer of `PIECES`."""

    def encode(self, text: str) -> list[int]:
        return [PIECES.index(one.encode()) for one in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        if min(token_ids, default=0) < 0:
            raise OverflowError("no token id")
        return b"".join(PIECES[one] for one in token_ids).decode(errors="replace")


class StopBench(Bench):
    """What `Service` does with a report, between worker and core; and the text that a client is told."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.finders: dict[int, StopFinder] = {}
        self.texts: dict[int, IncrementalText] = {}
        self.told: dict[int, str] = {}
        super().__init__(*arguments, vocab_size=len(PIECES), **options)

    def ask(
        self, request: int, prompt: Sequence[int], stops: Sequence[str], *, min_tokens: int = 0, **options: Any
    ) -> None:
        self.finders[request] = StopFinder(Pieces(), stops, min_tokens=min_tokens)
        self.texts[request], self.told[request] = IncrementalText(Pieces()), ""
        self.submit(request, prompt, stop=tuple(stops), **options)

    def send(self, event: events.Input) -> list[results.Output]:
        if isinstance(event, events.Report):
            mark_stops(event, self.core.ledger, self.finders.get)
        outputs = super().send(event)
        for output in outputs:
            if isinstance(output, results.Tokens):
                self.told[output.request] += self.texts[output.request].push(output.token_ids)
            elif isinstance(output, results.Ended):
                rest = self.finders[output.request].rest if output.reason == "stop" else ""
                self.told[output.request] += self.texts[output.request].flush() + rest
        return outputs


def plain(token_ids: Sequence[int], stops: Sequence[str], *, min_tokens: int = 0) -> tuple[int, str, str]:
    """(tokens kept, text, reason) of an output that is looked at whole, after each of its tokens."""
    wholes = [(0, 0)]  # (tokens, length of their text) wherever the text does not end in half a character
    for count in range(1, len(token_ids) + 1):
        text = Pieces().decode(token_ids[:count])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            continue
        wholes.append((count, len(text)))
        first = next((length for tokens, length in wholes if tokens >= min_tokens), len(text))
        places = [place for stop in stops if (place := text.find(stop, first)) >= 0]
        if places:
            where = min(places)
            return max(tokens for tokens, length in wholes if length <= where), text[:where], "stop"
    return len(token_ids), Pieces().decode(token_ids), "length"
