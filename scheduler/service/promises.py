"""What clients were promised: each accepted request, what was told of it, how it ended, until its client has heard.

Owns the facts and their folding: the same fold serves a running engine, which keeps ended requests for who comes back
for them, and one that starts from a journal (`journal.py` writes facts, this module knows what they mean). Facts are
lists `[kind, ...]` of plain values and of a Submit or Ended, which may come packed; times are of the wall clock.
`clients.py` says what happened; never decides.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from ...statemachine.errors import Refused
from ..core import events, results
from .packing import unpack
from .told_logprobs import LogprobsTold, Own, Tops

CLIENT, GONE, ACCEPTED, EMITTED, ENDED, HEARD = "client", "gone", "accepted", "emitted", "ended", "heard"
Fact = list[Any]


@attrs.define
class Promise:
    """One accepted request. `submit` has its deadline in ns of the wall clock; `options` are the wire's, as they came.

    `ended` is how it ended, once it has, and `rest` the end of its text that no token says (`telling.rest_of`).
    """

    submit: events.Submit
    request_id: str
    options: bytes
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: LogprobsTold = attrs.field(factory=LogprobsTold)  # of one that asked for them
    ended: results.Ended | None = None
    rest: str = ""


class Promises:
    """All of them, by request; `clients` has each client's resume token, `kept` what ended, by client in that order.

    `most_kept`: of each client, so that one that never says what it has heard costs no more than that.
    """

    def __init__(self, *, most_kept: int) -> None:
        self.clients: dict[int, str] = {}
        self.requests: dict[int, Promise] = {}
        self.kept: dict[int, dict[str, int]] = {}  # client -> request id -> request
        self._most_kept = most_kept

    def add(self, fact: Fact) -> None:
        """Fold one fact in. Raises `Refused` (BAD_FILE) for one that cannot follow those before it."""
        try:
            _FOLDS[fact[0]](self, *fact[1:])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused("BAD_FILE", f"a fact that does not fit: {type(error).__name__}: {error}") from error

    def facts(self) -> Iterator[Fact]:
        """The shortest history that leads here: what a journal begins anew with."""
        for number, token in self.clients.items():
            yield [CLIENT, number, token]
        for request, one in self.requests.items():
            yield [ACCEPTED, one.submit, one.request_id, one.options]
            if one.token_ids:
                yield [EMITTED, request, 0, one.token_ids, one.logprobs.own or None, one.logprobs.top or None]
        for kept in self.kept.values():
            for one in map(self.requests.__getitem__, kept.values()):
                yield [ENDED, one.ended, one.rest]

    @property
    def live(self) -> list[int]:
        """Requests that have not ended, in accept order."""
        return [request for request, one in self.requests.items() if one.ended is None]

    def ended_of(self, client: int, request_id: str) -> Promise | None:
        """The ended request of this id that is kept for its client."""
        request = self.kept.get(client, {}).get(request_id)
        return None if request is None else self.requests[request]

    # ---- folds --------------------------------------------------------------------------------------------------

    def _client(self, number: int, token: str) -> None:
        self.clients[number] = token

    def _gone(self, number: int) -> None:
        """Nobody may come back for its requests: those that are live end by themselves."""
        self.clients.pop(number, None)
        for request in self.kept.pop(number, {}).values():
            del self.requests[request]

    def _accepted(self, submit: Any, request_id: str, options: bytes) -> None:
        event = submit if isinstance(submit, events.Submit) else unpack(submit)
        if not isinstance(event, events.Submit) or event.request in self.requests or event.client not in self.clients:
            raise ValueError(f"{event!r}: expected a Submit of a new request and a known client")
        self.requests[event.request] = Promise(event, request_id, options)

    def _emitted(
        self, request: int, index: int, token_ids: list[int], own: Own | None = None, top: Tops | None = None
    ) -> None:
        """`own` and `top`: log-probabilities, of who asked for them."""
        told = self.requests[request].token_ids
        if index != len(told):
            raise ValueError(f"request {request}: tokens at {index} after {len(told)}")
        told += token_ids
        self.requests[request].logprobs.add(index, own, top)

    def _ended(self, packed: Any, rest: str) -> None:
        ended = packed if isinstance(packed, results.Ended) else unpack(packed)
        if not isinstance(ended, results.Ended):
            raise ValueError(f"{ended!r}: expected an Ended")
        one = self.requests[ended.request]
        if ended.client not in self.clients:  # nobody can come back for it
            del self.requests[ended.request]
            return
        one.ended, one.rest = ended, rest
        kept = self.kept.setdefault(ended.client, {})
        kept[one.request_id] = ended.request
        if len(kept) > self._most_kept:
            del self.requests[kept.pop(next(iter(kept)))]

    def _heard(self, client: int, request_id: str) -> None:
        del self.requests[self.kept[client].pop(request_id)]


_FOLDS: dict[str, Callable[..., None]] = {
    CLIENT: Promises._client,
    GONE: Promises._gone,
    ACCEPTED: Promises._accepted,
    EMITTED: Promises._emitted,
    ENDED: Promises._ended,
    HEARD: Promises._heard,
}
