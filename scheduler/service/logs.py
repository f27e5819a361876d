"""Logs of every dsparkd process: structlog events on stderr, one JSON object a line when nobody watches a terminal.

Owns the configuration, done once by each process; libraries and tests never configure. A worker hears the form and the
level by environment variables, those of the settings `logs` and `log_level`.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# Without local variables: they hold prompts and tokens, and make one line of a megabyte.
TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def _for_people() -> structlog.dev.ConsoleRenderer:
    """Tracebacks without local variables here too."""
    plain = structlog.dev.plain_traceback
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)


def configure_logs(form: str = "auto", level: str = "info") -> None:
    """Send structlog to stderr. `form` and `level` are values of the settings `logs` and `log_level`."""
    console = sys.stderr.isatty() if form == "auto" else form == "console"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            _for_people() if console else TRACEBACKS,
            *([] if console else [structlog.processors.JSONRenderer()]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
