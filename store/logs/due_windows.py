"""Windows of due time and their names in UTC. Arithmetic only: no files, no clock.

A window is `window_ms` long, starts at a multiple of it since 1970 and never crosses a day, because `window_ms` divides
the day. (UTC as POSIX counts it: every day has 86 400 seconds.)
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from store.records.batches import I64

DAY_MS = 86_400_000
_SECOND_MS = 1_000
_MINUTE_MS = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Names carry four digits for the year, so 9999-12-31 is the last day that has one.
TIME_MS_MAX = 253_402_300_800_000 - 1


def check_window_ms(window_ms: int) -> None:
    """Raises ValueError unless windows are whole seconds and tile the day (so that none crosses midnight)."""
    if window_ms < _SECOND_MS or window_ms % _SECOND_MS or DAY_MS % window_ms:
        raise ValueError(f"window_ms {window_ms}: must be whole seconds that divide a day, such as 1000 or 60000")


def window_starts(due_ms: I64, window_ms: int) -> I64:
    """Start of each row's window: i64[n] from due times i64[n]."""
    starts: I64 = due_ms - due_ms % window_ms
    return starts


def window_of(due_ms: int, window_ms: int) -> int:
    """Start of the window of one due time."""
    return due_ms - due_ms % window_ms


def day_of(due_ms: int) -> int:
    """Start of the UTC day of one time."""
    return due_ms - due_ms % DAY_MS


def day_starts(due_ms: I64) -> I64:
    """Start of each row's UTC day: i64[n]."""
    return window_starts(due_ms, DAY_MS)


def _check_start(start_ms: int, span_ms: int) -> None:
    if not 0 <= start_ms <= TIME_MS_MAX or start_ms % span_ms:
        raise ValueError(f"{start_ms} is not the start of a window of {span_ms} ms between 1970 and 9999")


# A start names thousands of files in some hundred days.
@lru_cache(maxsize=1024)
def day_name(start_ms: int) -> str:
    """Folder of a day: `2026-11-21`. Raises ValueError unless `start_ms` is a start of a day."""
    _check_start(start_ms, DAY_MS)
    return (_EPOCH + timedelta(milliseconds=start_ms)).strftime("%Y-%m-%d")


@lru_cache(maxsize=1024)
def parse_day_name(name: str) -> int:
    """Start of the day with this folder name. Raises ValueError for anything but `YYYY-MM-DD`."""
    if len(name) != 10:
        raise ValueError(f"{name!r} is not the name of a day (YYYY-MM-DD)")
    day = datetime.strptime(name, "%Y-%m-%d").replace(tzinfo=UTC)
    start_ms = (day - _EPOCH) // timedelta(milliseconds=1)
    if start_ms < 0:
        raise ValueError(f"{name!r} lies before 1970")
    return start_ms


def time_name(start_ms: int, window_ms: int) -> str:
    """`0915`, or `091530` where windows are not whole minutes. Raises ValueError if it is no start of a window."""
    check_window_ms(window_ms)
    _check_start(start_ms, window_ms)
    minutes, second = divmod(start_ms % DAY_MS // _SECOND_MS, 60)
    text = f"{minutes // 60:02d}{minutes % 60:02d}"
    return text if window_ms % _MINUTE_MS == 0 else f"{text}{second:02d}"


def parse_time_name(text: str, window_ms: int) -> int:
    """Milliseconds since midnight. Raises ValueError for nonsense, and for a time where no window starts."""
    digits = 4 if window_ms % _MINUTE_MS == 0 else 6
    if len(text) != digits or not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not the time of a window ({digits} digits)")
    hour, minute, second = int(text[:2]), int(text[2:4]), int(text[4:] or 0)
    offset_ms = ((hour * 60 + minute) * 60 + second) * _SECOND_MS
    if hour > 23 or minute > 59 or second > 59 or offset_ms % window_ms:
        raise ValueError(f"{text!r}: no window of {window_ms} ms starts there")
    return offset_ms
