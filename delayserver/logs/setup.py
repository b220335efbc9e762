"""Sets up the log of a process: `serve`, `broker` and `http`. Lines go to stderr; stdout has the ready line."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, TextIO

from delayserver.logs.limit import LineLimit
from delayserver.logs.lines import JsonLines, TextLines, event_of

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


class BoundedLines(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, at most `LINES_MAX` of one event a minute. Then it tells how many it has left out."""

    def __init__(self, stream: TextIO, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._monotonic_s = monotonic_s
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        now_s = self._monotonic_s()
        self._tell_left_out(now_s)
        if self._limit.admits(event_of(record), now_s):
            super().emit(record)

    def close(self) -> None:
        """Tells what was left out in the last minute."""
        self._tell_left_out(math.inf)
        super().close()

    def _tell_left_out(self, now_s: float) -> None:
        for event, count in self._limit.ended(now_s).items():
            super().emit(_left_out(event, count))


def _left_out(event: str, count: int) -> logging.LogRecord:
    text = f"{count} more lines of {event} were left out within a minute"
    return logging.makeLogRecord(
        {
            "name": "delayserver",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": text,
            "event": "lines_left_out",
            "fields": {"of": event, "count": count},
            "shown": "{of} {count}",
        }
    )


def set_up(log_format: str = "auto", log_level: str = "warning", stream: TextIO | None = None) -> None:
    """Send all log lines of this process to a stream, stderr by default; handlers from before are removed.

    `auto` writes text to a terminal and JSON lines to anything else. An error that nothing catches is a line too.
    """
    if stream is None:
        stream = sys.stderr
    if stream is None:  # the parent process may have closed it
        return
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = BoundedLines(stream)
    handler.setFormatter(
        TextLines(colours=stream.isatty() and "NO_COLOR" not in os.environ) if as_text else JsonLines()
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    logging.captureWarnings(True)
    if not as_text:
        sys.excepthook = _log_crash


def _log_crash(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    extra = {"event": "crashed", "fields": {}, "shown": ""}
    logging.getLogger("delayserver").critical("the process ends: %s", error, exc_info=error, extra=extra)


def silence(library: str) -> None:
    """Log nothing of a library but what ends the process."""
    logging.getLogger(library).setLevel(logging.CRITICAL)
