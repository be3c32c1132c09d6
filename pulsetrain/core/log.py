"""Logging of every Pulsetrain process: one structlog event a line on standard error."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Literal, TextIO, cast

import structlog

Level = Literal["debug", "info", "warning", "error"]


def configure(*, level: Level = "info", as_json: bool | None = None) -> None:
    """Set up logging for this process. Called once at its start.

    Lines are JSON where standard error is not a terminal, unless `as_json` says otherwise.
    """
    if as_json is None:
        as_json = sys.stderr is None or not sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if as_json else _unchanged,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _StandardError())),
        cache_logger_on_first_use=True,
    )


class _StandardError:
    """Standard error as it is when a line is written: while a bar is drawn, lines must appear above it.

    A line that cannot be written is lost. Who reads it may be gone, or its disk full, and nothing may end for
    that.
    """

    def write(self, text: str) -> None:
        """Write `text`."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Let nothing wait."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _unchanged(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """ConsoleRenderer formats exceptions itself."""
    return event
