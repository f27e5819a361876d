"""Submits that come before the first READY, when eos and vocabulary are not known yet: they wait, in their order.

Owns the waiting only. None of them is accepted: what becomes of one is decided when it is released. `clients.py` calls
it.
"""

from collections import deque

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
        self._waiting: deque[Early] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._most

    def add(self, early: Early) -> None:
        self._waiting.append(early)

    def pop(self) -> Early:
        """The one that came first."""
        return self._waiting.popleft()

    def repeats(self, client: int, message: wire.Submit) -> bool:
        """Whether the very same words wait already: a client said them again on another connection."""
        return any((one.client, one.message) == (client, message) for one in self._waiting)

    def find(self, client: int, request_id: str) -> Early | None:
        """The first that waits under this id of the client's."""
        mine = (one for one in self._waiting if (one.client, one.message.request_id) == (client, request_id))
        return next(mine, None)

    def remove(self, early: Early) -> None:
        self._waiting.remove(early)

    def drop(self, client: int) -> None:
        """All of a client's that has left."""
        self._waiting = deque(one for one in self._waiting if one.client != client)
