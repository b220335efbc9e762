"""Which log lines were said lately, so that the log names a lasting failure now and then instead of each time. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SAY_AGAIN_S: Final = 60.0
"""The log says the same again after this long."""

KINDS_MAX: Final = 256
"""Kinds of lines that are remembered. Of more kinds the oldest is forgotten, and said again."""


class SaidLately:
    """Remembers kinds of lines with the time when each was said, and how often it was held back since."""

    def __init__(self, interval_s: float = SAY_AGAIN_S) -> None:
        self._interval_s = interval_s
        self._said: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def say(self, kind: str, now_s: float) -> int | None:
        """None: it was said lately. Otherwise say it now, and add how often it was held back since the last time."""
        said_s, held_back = self._said.get(kind, (None, 0))
        if said_s is not None and now_s < said_s + self._interval_s:
            self._said[kind] = said_s, held_back + 1
            return None
        self._said.pop(kind, None)
        self._said[kind] = now_s, 0
        if len(self._said) > KINDS_MAX:
            self._said.popitem(last=False)
        return held_back


def held_back_words(held_back: int) -> str:
    """The end of a line that was held back so often."""
    return f" ({held_back} more since it was said last)" if held_back else ""
