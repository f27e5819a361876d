"""Stop strings: where the text of an output is complete up to one, or may be the beginning of one.

Owns the search, token by token, so that it finds the same in every division into steps. The worker knows no text and
the core sees none: what is found here goes to the core as two facts of the report's row (`Emitted.text_stop` and
`Emitted.hold_len`), which a trace holds like any other input. `translate.py` calls it for each report.
"""

from collections.abc import Callable, Sequence

import attrs

from ..core.events import Emitted, Report, TextStop
from ..core.ledger import Ledger
from ..core.settle import impossible
from .text import TextPieces, Tokenizer

FinderOf = Callable[[int], "StopFinder | None"]  # of a request


def mark_stops(report: Report, ledger: Ledger, finder_of: FinderOf) -> None:
    """Write into the rows of the report that answers the step in flight what their text means."""
    flying = ledger.step
    if flying is None or (report.session, report.step_id) != (ledger.worker.session, flying.id):
        return  # the core will drop it
    if impossible(flying.rows, report) is not None:
        return  # no lawful worker says this: the core ends that worker, and nothing in it is looked at
    for row in report.rows:
        if type(row) is Emitted:
            owner = ledger.slots[row.slot].owner
            finder = None if owner is None else finder_of(owner)
            if finder is not None and owner is not None:
                one = ledger.requests[owner]
                row.hold_len, row.text_stop = finder.look(one.output, row.token_ids, one.options.stop_token_ids)


@attrs.define
class _Found:
    """What the text of an output says so far. `ends`: how long the text is after each token, where that is certain."""

    text: TextPieces
    tail: str = ""  # the end of the text, from the last token on that a stop string cannot begin before
    tail_start: int = 0  # where that begins in the whole text
    ends: list[tuple[int, int]] = attrs.field(factory=list)  # (tokens, text length) wherever a token ends whole

    def copy(self) -> "_Found":
        return _Found(self.text.copy(), self.tail, self.tail_start, self.ends.copy())


class StopFinder:
    """Looks for the stop strings of one request, after its first `min_tokens` tokens."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, min_tokens: int = 0) -> None:
        self.stops = tuple(stops)
        self.min_tokens = min_tokens
        self.rest = ""  # what a token said before the stop string that was found in it
        self._reach = max(map(len, self.stops))
        self._sure = _Found(TextPieces(tokenizer))
        self._num_sure = 0

    def look(
        self, output: Sequence[int], token_ids: Sequence[int], stop_token_ids: frozenset[int]
    ) -> tuple[int, TextStop | None]:
        """What a row that emits `token_ids` after `output` means: `Emitted.hold_len` and `Emitted.text_stop`.

        Behind a stop id nothing is looked at. Calling it again, for a row that came to nothing, does no harm.
        """
        for token_id in output[self._num_sure :]:
            self._push(self._sure, token_id, self._num_sure)
            self._num_sure += 1
        self.rest, ahead, length = "", self._sure.copy(), len(output)
        for token_id in token_ids:
            where = self._push(ahead, token_id, length)
            length += 1
            if where is not None:
                keep_len, before = self._whole_before(ahead, where)
                self.rest = ahead.tail[before - ahead.tail_start : where - ahead.tail_start]
                return 0, TextStop(length - len(output), keep_len)
            if token_id in stop_token_ids and length > self.min_tokens:
                break
        return length - self._decided_len(ahead, length), None

    def _push(self, found: _Found, token_id: int, index: int) -> int | None:
        """Add one token; return where the first stop string begins that it completes."""
        piece = found.text.push([token_id])
        if not found.text.is_whole:
            return None
        begun = found.ends[-1][0] if found.ends else 0
        end = found.tail_start + len(found.tail)
        if begun < self.min_tokens:  # too early to count: nothing of it is part of a stop string
            found.tail_start, found.tail = end + len(piece), ""
            found.ends = [(index + 1, found.tail_start)]
            return None
        found.tail += piece
        found.ends.append((index + 1, end + len(piece)))
        places = [place for stop in self.stops if (place := found.tail.find(stop)) >= 0]
        if places:
            return found.tail_start + min(places)
        self._forget(found)
        return None

    def _forget(self, found: _Found) -> None:
        """Keep what a stop string may begin in, from the end of a token on."""
        reached = found.tail_start + len(found.tail) - self._reach + 1
        passed = [one for one in found.ends if one[1] <= reached]
        if passed:
            found.tail, found.tail_start = found.tail[passed[-1][1] - found.tail_start :], passed[-1][1]
            found.ends = found.ends[len(passed) - 1 :]

    def _whole_before(self, found: _Found, where: int) -> tuple[int, int]:
        """How many tokens lie wholly before `where` in the text, and how long theirs is."""
        return max((one for one in found.ends if one[1] <= where), default=(0, 0))

    def _decided_len(self, found: _Found, length: int) -> int:
        """How many of the first `length` tokens no stop string can begin in any more."""
        end = found.tail_start + len(found.tail)
        partial = max(_begun_len(found.tail, stop) for stop in self.stops)
        if partial:
            return self._whole_before(found, end - partial)[0]
        return length if found.text.is_whole else (found.ends[-1][0] if found.ends else 0)


def _begun_len(text: str, stop: str) -> int:
    """How much of `stop`, not all of it, the text ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
