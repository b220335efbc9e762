"""Due times on the client: the server's clock as learned at hello, and the four ways to say when a message is due.

The client resolves a relative delay once, before the first attempt. So a retry carries the same ``due_ms``, and the
server recognises the duplicate. The server would resolve a raw ``delay_ms`` anew at every attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from delayserver.protocol.errors import InvalidArgument

Instant: TypeAlias = int | datetime
"""A moment, where the name ends in ``_ms``: milliseconds since 1970 UTC, or a datetime with a time zone."""

Span: TypeAlias = int | timedelta
"""A length of time, where the name ends in ``_ms``: milliseconds, or a timedelta."""

Seconds: TypeAlias = float | timedelta
"""A length of time, where the name ends in ``_s``: seconds, or a timedelta."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# The time since boot goes on while the machine is suspended. The plain monotonic clock of Linux does not.
_ELAPSED_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

CLOCK_AGE_US_MAX: Final = 60_000_000
"""The client asks for the server's clock again after this long: clocks drift by up to 0.1 ms a second, and an older server
does not tell of a step of its clock."""

ROUND_TRIP_US_LONG: Final = 100_000
"""Something delayed an exchange that took longer, most often the client itself. The client repeats it."""

LONG_EXCHANGES_MAX: Final = 3
"""After so many long exchanges in a row the network is simply slow. The client uses the shortest of them."""


def elapsed_us() -> int:
    """Microseconds since some fixed moment on this machine; never steps."""
    return time.clock_gettime_ns(_ELAPSED_CLOCK) // 1000


class ServerClock:
    """Estimates the server's time of day from one exchange and the time elapsed since. The estimate is never behind the
    server, so no delay comes out short. It is ahead by at most the round trip of that exchange. One thread at a time
    learns and forgets; any thread reads.
    """

    __slots__ = ("_elapsed_us", "_learned_us", "_long_exchanges", "_offset_us", "_round_trip_us")

    def __init__(self, elapsed: Callable[[], int] = elapsed_us) -> None:
        self._elapsed_us = elapsed
        self._learned_us: int | None = None
        self._offset_us = 0
        self._round_trip_us = 0
        self._long_exchanges = 0

    def elapsed(self) -> int:
        """Local elapsed microseconds, to note when a request leaves."""
        return self._elapsed_us()

    def learn(self, server_us: int, sent_us: int) -> None:
        """Take the server's time from a reply. ``sent_us`` is the local elapsed time when its request left. The shortest of
        several long exchanges in a row counts.
        """
        received_us = self._elapsed_us()
        round_trip_us = received_us - sent_us
        if self._expired:
            self._long_exchanges = 0
        if round_trip_us <= ROUND_TRIP_US_LONG:
            self._long_exchanges = 0
        else:
            self._long_exchanges += 1
            if self._long_exchanges > 1 and round_trip_us >= self._round_trip_us:
                return
        # The server read its clock at some moment of the exchange. An estimate from the middle is behind the server if
        # the request was quick and the reply was slow. An estimate from the moment the request left never is.
        self._offset_us = server_us - sent_us
        self._round_trip_us = round_trip_us
        self._learned_us = received_us

    def forget(self) -> None:
        """Forget the clock: the server's clock was stepped, or a new connection may reach another server."""
        self._learned_us = None

    @property
    def stale(self) -> bool:
        """Whether the client must learn the clock (again) before it resolves a delay."""
        return self._expired or 0 < self._long_exchanges < LONG_EXCHANGES_MAX

    @property
    def _expired(self) -> bool:
        learned_us = self._learned_us  # Read once: another thread may forget it meanwhile.
        return learned_us is None or self._elapsed_us() - learned_us > CLOCK_AGE_US_MAX

    def now_ms(self) -> int:
        """The server's time now, rounded up so that no delay comes out short."""
        return -(-(self._elapsed_us() + self._offset_us) // 1000)


def resolve_due_ms(
    clock: ServerClock, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
) -> int:
    """The absolute due time in ms. Raises `InvalidArgument` unless exactly one of the four is given and makes sense."""
    if delay_ms is None and at is None and delay is None:
        if isinstance(due_ms, datetime):
            return datetime_to_ms(due_ms)
        if type(due_ms) is not int:
            raise InvalidArgument("give one of due_ms, delay_ms, at and delay; due_ms and delay_ms are integers")
        return due_ms
    if sum(choice is not None for choice in (due_ms, delay_ms, at, delay)) != 1:
        raise InvalidArgument("give only one of due_ms, delay_ms, at and delay")
    if at is not None:
        return datetime_to_ms(at)
    if delay is not None:
        delay_ms = timedelta_to_ms(delay)
    if isinstance(delay_ms, timedelta):
        delay_ms = timedelta_to_ms(delay_ms)
    if type(delay_ms) is not int or delay_ms < 0:
        raise InvalidArgument(f"a delay is a number of milliseconds from 0 on, not {delay_ms!r}")
    return clock.now_ms() + delay_ms


def datetime_to_ms(at: datetime) -> int:
    """Milliseconds since 1970 UTC, rounded up. Raises `InvalidArgument` for another type, and for a datetime without a
    time zone, which could mean any hour.
    """
    if not isinstance(at, datetime):
        raise InvalidArgument(f"at is a datetime, not {at!r:.64}; due_ms takes milliseconds since 1970")
    if at.tzinfo is None:
        raise InvalidArgument("a datetime needs a time zone, for example datetime.now(UTC)")
    return -(-((at - _EPOCH) // _MICROSECOND) // 1000)


def timedelta_to_ms(delay: timedelta) -> int:
    """Milliseconds, rounded up. Raises `InvalidArgument` for another type: a plain 5 does not name its unit."""
    if not isinstance(delay, timedelta):
        raise InvalidArgument(f"a delay is a timedelta, as timedelta(seconds=5), not {delay!r:.64}")
    return -(-(delay // _MICROSECOND) // 1000)


def instant_ms(moment: Instant) -> int:
    """Milliseconds since 1970. A number is taken as it is, and checked where it is used."""
    return datetime_to_ms(moment) if isinstance(moment, datetime) else moment


def span_ms(length: Span) -> int:
    """Milliseconds. A number is taken as it is, and checked where it is used."""
    return timedelta_to_ms(length) if isinstance(length, timedelta) else length


def span_s(length: Seconds) -> float:
    """Seconds."""
    return length.total_seconds() if isinstance(length, timedelta) else length


def milliseconds_or_none(length: Seconds | None) -> int | None:
    """Milliseconds of a length in seconds, rounded; None of None."""
    return None if length is None else round(span_s(length) * 1000)
