"""Log records as lines: text for people, JSON for programs. No I/O here."""

from __future__ import annotations

import json
import logging
import string
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

# One line may not fill a disk or a pipe. The sentences of this program have some hundred characters.
TEXT_MAX: Final = 8192
TRACEBACK_MAX: Final = 32_768
_COLOURS: Final = {"WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class TextLines(logging.Formatter):
    """A line for people: time, level, the sentence, and the event with the fields that the sentence does not show."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`. A traceback follows on lines that are indented, so that none looks like an event."""
        left_out = getattr(record, "left_out", 0)
        untold = {**_untold(record), **({"left_out": left_out} if left_out else {})}
        tail = " ".join([event_of(record), *[f"{name}={value}" for name, value in untold.items()]])
        time = f"{_time_of(record):%Y-%m-%d %H:%M:%S.%f}"[:-3]
        level = self._painted(f"{record.levelname:<7}", _COLOURS.get(record.levelname, ""))
        sentence = _one_line(_cut(record.getMessage(), TEXT_MAX))
        line = f"{time} {level} {sentence} {self._painted(f'[{_one_line(tail)}]', '2')}"
        return line + "".join(["\n    " + _one_line(text) for text in _traceback_of(record).splitlines()])

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour else text


class JsonLines(logging.Formatter):
    """One JSON object: `time` (UTC), `level`, `event`, `message`, `logger`, and the fields of the event. A failure adds
    `error` and `traceback`; `left_out` counts lines of this event that the bound kept out since the last one."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`. ASCII only, so that no encoding of the stream can refuse it."""
        line: dict[str, Any] = {
            "time": _time_of(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "message": _cut(record.getMessage(), TEXT_MAX),
            "logger": record.name,
        }
        if getattr(record, "left_out", 0):
            line["left_out"] = getattr(record, "left_out", 0)
        for name, value in fields_of(record).items():
            line[name] = _cut(value, TEXT_MAX) if isinstance(value, str) else value
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = type(record.exc_info[1]).__qualname__
            line["traceback"] = _traceback_of(record)
        return json.dumps(line, default=str)


def event_of(record: logging.LogRecord) -> str:
    """The name of the event. Lines of libraries have their logger's name."""
    return str(getattr(record, "event", record.name))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields of the event."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _untold(record: logging.LogRecord) -> dict[str, Any]:
    told = {name for _, name, _, _ in string.Formatter().parse(getattr(record, "shown", "")) if name}
    return {name: value for name, value in fields_of(record).items() if name not in told}


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _traceback_of(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return _cut("".join(traceback.format_exception(record.exc_info[1])).rstrip(), TRACEBACK_MAX)


def _cut(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else f"{text[:length_max]}… ({len(text) - length_max} more characters)"


def _one_line(text: str) -> str:
    """Control characters escaped: what a client sent must neither begin a line nor speak to a terminal."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else repr(each)[1:-1] for each in text])
