"""Submits that come before the first READY, when eos and vocabulary are not known yet: they wait, in their order.

Owns the waiting only. None of them is accepted: what becomes of one is decided when it is released. `clients.py` calls
it.
"""

import attrs

from ..wire import messages as wire


@attrs.frozen
class Early:
    arrived_ns: int
    client: int
    message: wire.Submit


class EarlySubmits:
    """At most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._len = 0
        self._by_id: dict[tuple[int, str], list[Early]] = {}  # more than one: of an id that was said again, otherwise

    def __len__(self) -> int:
        return self._len

    @property
    def is_full(self) -> bool:
        return self._len >= self._most

    def add(self, early: Early) -> None:
        self._by_id.setdefault((early.client, early.message.request_id), []).append(early)
        self._len += 1

    def pop(self) -> Early:
        """The one whose id came first."""
        first = next(iter(self._by_id.values()))[0]
        self.remove(first)
        return first

    def repeats(self, client: int, message: wire.Submit) -> bool:
        """Whether the very same words wait already: a client said them again on another connection."""
        return any(one.message == message for one in self._by_id.get((client, message.request_id), ()))

    def find(self, client: int, request_id: str) -> Early | None:
        """The first that waits under this id of the client's."""
        return next(iter(self._by_id.get((client, request_id), ())), None)

    def remove(self, early: Early) -> None:
        key = (early.client, early.message.request_id)
        self._by_id[key].remove(early)
        if not self._by_id[key]:
            del self._by_id[key]
        self._len -= 1

    def drop(self, client: int) -> None:
        """All of a client's that has left."""
        for early in [one for waiting in self._by_id.values() for one in waiting if one.client == client]:
            self.remove(early)
