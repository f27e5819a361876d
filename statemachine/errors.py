"""The three kinds of error that the engine knows; every floor imports them from here.

A `LocalError` is our bug, a `PeerError` is a worker or client that broke the contract, a `Refused` is a
legitimate no with a code that a client can act on. Messages name the key, the value and what was expected.
"""


class EngineError(Exception):
    """Base of everything that dsparkd raises on purpose."""


class LocalError(EngineError):
    """Our own bug: an illegal transition, an effect with nothing to act on, a broken ledger invariant."""


class PeerError(EngineError):
    """A worker or client broke the protocol. Poison the peer, not ourselves."""


class Refused(EngineError):
    """A legitimate no. `code` is stable and machine-readable, the message is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refuse_all(what: str, problems: list[str], code: str = "BAD_CONFIG") -> None:
    """Raise one `Refused` that lists every problem found, or return when there is none."""
    if problems:
        raise Refused(code, f"{what}: {len(problems)} problem(s)\n" + "\n".join(f"  - {p}" for p in problems))
