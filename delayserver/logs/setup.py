"""Sets up the log of a process: `serve`, `broker` and `http`. Lines go to stderr; stdout has the ready line."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from types import TracebackType
from typing import Final, TextIO

from delayserver.logs.events import ADMINISTRATIVE_ACT, AUDIT_LOGGER
from delayserver.logs.limit import LineLimit
from delayserver.logs.log_lines import JsonLines, TextLines, event_of

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


class BoundedLines(logging.Handler):
    """Gives lines to another handler, at most `LINES_MAX` of one event a minute. Then a line says how many it has left out.
    Administrative acts have no bound."""

    def __init__(self, lines: logging.Handler, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines = lines
        self._monotonic_s = monotonic_s
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        now_s = self._monotonic_s()
        self._tell_left_out(now_s)
        event = event_of(record)
        if event == ADMINISTRATIVE_ACT or self._limit.admits(event, now_s):
            self._lines.handle(record)

    def flush(self) -> None:
        """See `logging.Handler`."""
        self._lines.flush()

    def close(self) -> None:
        """Says what was left out in the last minute."""
        self._tell_left_out(math.inf)
        self._lines.close()
        super().close()

    def _tell_left_out(self, now_s: float) -> None:
        for event, count in self._limit.take_ended(now_s).items():
            self._lines.handle(_left_out(event, count))


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


def set_up(
    log_format: str = "auto", log_level: str = "warning", stream: TextIO | None = None, *, audit_file: str = ""
) -> None:
    """Send all log lines of this process to a stream, stderr by default; handlers from before are removed.

    `auto` writes text to a terminal and JSON lines to anything else. An error that nothing catches is a line too. The
    audit log also goes to `audit_file`, unless that is empty. Raises OSError if the file cannot be written.
    """
    _keep_audit_log(audit_file)
    if stream is None:
        stream = sys.stderr
    if stream is None:  # the parent process may have closed it
        return
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    lines = logging.StreamHandler(stream)
    lines.setFormatter(TextLines(colours=stream.isatty() and "NO_COLOR" not in os.environ) if as_text else JsonLines())
    handler = BoundedLines(lines)
    # The audit log has a level of its own.
    handler.setLevel(log_level.upper())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    logging.captureWarnings(True)
    if not as_text:
        sys.excepthook = _log_crash


def _keep_audit_log(path: str) -> None:
    logger = logging.getLogger(AUDIT_LOGGER)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    if not path:
        logger.setLevel(logging.NOTSET)
        return
    os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    # It opens the file anew when that was moved away.
    lines = WatchedFileHandler(path, encoding="ascii")
    lines.setFormatter(JsonLines())
    logger.addHandler(BoundedLines(lines))
    logger.setLevel(logging.INFO)


def _log_crash(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    extra = {"event": "crashed", "fields": {}, "shown": ""}
    logging.getLogger("delayserver").critical("the process ends: %s", error, exc_info=error, extra=extra)


def silence(library: str) -> None:
    """Log nothing of a library but what ends the process."""
    logging.getLogger(library).setLevel(logging.CRITICAL)
