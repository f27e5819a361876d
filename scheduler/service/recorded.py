"""The core with a trace beside it: what goes in and what comes out, kept for the file until a turn is over.

Owns the trace's life: a disk that fails ends the trace, not the engine. `loop.py` calls `handle` for each input and
`write` when everybody has been told.
"""

from collections.abc import Callable
from contextlib import suppress

import structlog

from ...statemachine.errors import Refused
from ..core import events, results
from ..core.handle import Core
from .trace_writer import TraceWriter

log = structlog.get_logger()


class Recorded:
    """`writer` comes later, when there is one; `name_of` knows a request's id as its client says it."""

    def __init__(self, core: Core, name_of: Callable[[int], str]) -> None:
        self.writer: TraceWriter | None = None
        self.lost = ""  # why there is no trace any more
        self._core, self._name_of = core, name_of
        self._taken: list[tuple[events.Input, list[results.Output], str | None]] = []  # in this turn

    def handle(self, event: events.Input) -> list[results.Output]:
        """What the core says to an input. An input that breaks the core is the last one that the trace holds."""
        if self.writer is None:
            return self._core.handle(event)
        try:
            outputs = self._core.handle(event)
        except Exception as error:
            self.write(failed=(event, error))
            raise
        self._taken.append((event, outputs, self._name_of(event.request) if type(event) is events.Submit else None))
        return outputs

    def write(self, *, failed: tuple[events.Input, Exception] | None = None) -> None:
        """Write what this turn took; the log and health say so when that fails."""
        if self.writer is None:
            return
        try:
            for event, outputs, name in self._taken:
                self.writer.took(event, outputs, name=name)
            if failed is None:
                self.writer.end_turn()
            else:  # no other file may begin: there is no snapshot of a core that broke
                self.writer.failed(*failed)
                self.close()
        except (OSError, Refused) as error:
            self.lost = f"the trace ended: {error}"
            log.error("trace_ended", error=str(error))
            with suppress(OSError):  # what it still held cannot be written either
                self.close()
        self._taken.clear()

    def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
