"""`Retry`: what a handler raises to get its message again."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from delayserver.client.values.timing import Span, timedelta_to_ms
from delayserver.protocol.errors import InvalidArgument

DELAY_MS_MAX: Final = 2_592_000_000
"""The longest delay of a nack that a server takes: 30 days."""


class Retry(Exception):
    """A handler raises it to get the message again: after ``delay_ms``, ``delay`` or a delay ``level`` of the server, or
    without them after the growing pauses of the group. It is no failure: it counts as no attempt, nothing is logged, and the
    hook ``failed`` is not called. With ``counts`` it counts as a failed attempt; after the last one the message is given up.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        delay_ms: Span | None = None,
        delay: timedelta | None = None,
        level: int | None = None,
        counts: bool = False,
    ) -> None:
        super().__init__(reason)
        if sum(each is not None for each in (delay_ms, delay, level)) > 1:
            raise InvalidArgument("give one of delay_ms, delay and level")
        if delay is not None:
            delay_ms = timedelta_to_ms(delay)
        if isinstance(delay_ms, timedelta):
            delay_ms = timedelta_to_ms(delay_ms)
        if delay_ms is not None and (type(delay_ms) is not int or not 0 <= delay_ms <= DELAY_MS_MAX):
            raise InvalidArgument(f"a delay is a number of milliseconds from 0 to {DELAY_MS_MAX}, not {delay_ms!r}")
        self.delay_ms = delay_ms
        self.level = level
        self.counts = counts
