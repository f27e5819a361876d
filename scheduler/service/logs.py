"""Logs of every dsparkd process: structlog events on stderr, one JSON object a line when nobody watches a terminal.

Owns the configuration, done once by `__main__`; libraries and tests never configure.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# Without local variables: they hold prompts and tokens, and make one line of a megabyte.
TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def configure_logs(level: int = logging.INFO) -> None:
    """Send structlog to stderr."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer() if terminal else TRACEBACKS,
            *([] if terminal else [structlog.processors.JSONRenderer()]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
