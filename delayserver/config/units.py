"""Durations, sizes and instants as people write them: parsing and formatting. Uses no clock."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

_MS_OF_UNIT: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES_OF_UNIT: Final = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])", re.ASCII)
_MONTHS: Final = re.compile(r"\dM(?![A-Za-z])")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)", re.ASCII)
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_ONE_MS: Final = timedelta(milliseconds=1)
_BEYOND: Final = float(1 << 63)
LEVELS_MAX: Final = 100
# As long as a nack may ask for.
LEVEL_MS_MAX: Final = 30 * 86_400_000


def parse_duration_ms(text: str) -> int:
    """``250ms``, ``10s``, ``5m``, ``2h``, ``3d`` or several together (``1h30m``) in milliseconds. Raises ValueError.

    A fraction of a millisecond is rounded up, so that a delay is never shortened.
    """
    compact = text.strip().lower()
    if _MONTHS.search(text):
        raise ValueError(
            f"{_cut(text)} is no duration: M could be minutes or months; write 5m for minutes, 30d for a month"
        )
    if not _DURATION.fullmatch(compact):
        raise ValueError(f"{_cut(text)} is no duration: write a number and a unit, such as 250ms, 10s, 5m, 2h or 3d")
    total_ms = sum(float(number) * _MS_OF_UNIT[unit] for number, unit in _DURATION_PART.findall(compact))
    if total_ms >= _BEYOND:
        raise ValueError(f"{_cut(text)} is too long: 292 million years are the most")
    return int(-(-total_ms // 1))


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """``1s 5s 10s`` as milliseconds: one to 100 durations, none shorter than the one before. Raises ValueError."""
    levels = tuple([parse_duration_ms(word) for word in text.split()])
    in_order = list(levels) == sorted(levels)
    if not 1 <= len(levels) <= LEVELS_MAX or not in_order or not 1 <= levels[0] <= levels[-1] <= LEVEL_MS_MAX:
        raise ValueError(
            f"{_cut(text)} is no list of delay levels: write 1 to {LEVELS_MAX} durations from 1ms to 30d, each at least as "
            "long as the one before, such as '1s 5s 10s'"
        )
    return levels


def parse_size_bytes(text: str) -> int:
    """``64MiB``, ``16KiB``, ``1.5GB`` or ``512B`` in bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _BYTES_OF_UNIT:
        raise ValueError(f"{_cut(text)} is no size: write a number and a unit, such as 512B, 16KiB, 64MiB or 1GiB")
    size = float(match[1]) * _BYTES_OF_UNIT[match[2]]
    if size >= _BEYOND:
        raise ValueError(f"{_cut(text)} is too large: 8 EiB are beyond every file")
    return int(size)


def _cut(text: str) -> str:
    return repr(text)[:64]


def parse_instant_ms(text: str) -> int:
    """ISO 8601 with a zone in milliseconds since 1970 UTC, rounded up. Raises ValueError with an example to write."""
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{_cut(text)} is no ISO 8601 time: write for example 2027-03-03T09:00:00+01:00") from None
    if instant.tzinfo is None:
        plain = instant.isoformat()
        raise ValueError(f"{_cut(text)} has no zone: write {plain}Z for UTC, or {plain}+01:00 for an offset")
    return -((_EPOCH - instant) // _ONE_MS)


def format_duration(duration_ms: float) -> str:
    """A duration for people, in at most two units: ``1.5 s``, ``2 h 5 m``, ``3 d``."""
    if abs(duration_ms) < 1_000:
        return f"{duration_ms:g} ms"
    if abs(duration_ms) < 60_000:
        return f"{round(duration_ms / 1000, 1):g} s"
    rest, words = round(duration_ms / 1000), []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, seconds)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:2])


def format_size(size_bytes: int) -> str:
    """A size for people and for TOML: the largest unit that divides it, ``64MiB``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size}{unit}"
    return f"{size_bytes}B"


def format_utc(instant_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, with milliseconds. A time beyond the calendar is given in words."""
    try:
        instant = _EPOCH + timedelta(milliseconds=instant_ms)
    except OverflowError:
        return "a time beyond the calendar"
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_instant(instant_ms: float) -> str:
    """Milliseconds since 1970 UTC as ISO 8601 in the local zone, with milliseconds. A time beyond the calendar is given
    in words."""
    try:
        return (_EPOCH + timedelta(milliseconds=instant_ms)).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return "a time beyond the calendar"
