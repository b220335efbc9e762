"""`EventLogger`: one line of the log is one event, with a stable name and fields.

It stands on the standard library's `logging`, so a program that embeds the server or uses the client configures the lines
as all others. A record has the sentence as its message, and the attributes `event` and `fields`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Final

Field = str | int | float | bool | None
_Raised = tuple[type[BaseException], BaseException, TracebackType | None]

# The keys of every line beside the fields of its event. No field may bear such a name.
KEYS: Final = ("time", "level", "event", "message", "logger", "left_out", "error", "traceback")

AUDIT_LOGGER: Final = "delayserver.audit"
ADMINISTRATIVE_ACT: Final = "administrative_act"
"""The event of the audit log that no bound leaves out: only an administrator can cause many."""


class EventLogger:
    """Logs events. One for each module, at its top.

    An event's name is stable: operators search for it and count it. The sentence may change. Its fields stand in it as
    ``{field}``. Bodies, properties, tokens and secrets are never fields.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str = "delayserver") -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, text: str, /, **fields: Field) -> None:
        """An event of a normal day: a start, a stop."""
        self._log(logging.INFO, event, text, fields, None)

    def warning(self, event: str, text: str, /, **fields: Field) -> None:
        """An event that an operator should know. It may mend itself."""
        self._log(logging.WARNING, event, text, fields, None)

    def error(self, event: str, text: str, /, failure: BaseException | None = None, **fields: Field) -> None:
        """An event that an operator must mend. A `failure` is written with its traceback."""
        self._log(logging.ERROR, event, text, fields, failure)

    def _log(
        self, level: int, event: str, text: str, fields: Mapping[str, Field], failure: BaseException | None
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"event": event, "fields": fields, "shown": text}
            self._logger.log(level, text.format_map(fields), extra=extra, exc_info=_raised(failure), stacklevel=3)


def _raised(failure: BaseException | None) -> _Raised | None:
    """An error for `logging`; None without one, and for one that cannot be written: it raises when it is asked for its truth
    or for its text, and a line of the log must not."""
    if failure is None:
        return None
    raised = (type(failure), failure, failure.__traceback__)
    try:
        traceback.format_exception(*raised)
    except BaseException:  # noqa: BLE001 - of the error's own methods
        return None
    return raised
