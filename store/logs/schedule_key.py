"""Names of schedule files: the start of a window and the source of its records. No files are touched here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from store.logs.due_windows import DAY_MS, check_window_ms, day_name, day_of, parse_day_name, parse_time_name, time_name
from store.records.column_batch import ColumnBatch
from store.records.segment import FILE_SCHEDULE


class ScheduleSource(IntEnum):
    """Where the records of a schedule file come from."""

    DIRECT = 0
    FROM_DAY = 1
    DAY = 2


@dataclass(frozen=True, slots=True, order=True)
class ScheduleKey:
    """A schedule file: the start of its window (of its day for `ScheduleSource.DAY`) and its source."""

    start_ms: int
    source: ScheduleSource


_SUFFIXES = {ScheduleSource.DIRECT: ".direct.log", ScheduleSource.FROM_DAY: ".day.log"}
_DAY_FILE = "day.log"


class ScheduleLayout:
    """Names of the files."""

    kind = FILE_SCHEDULE
    counters = 0

    def __init__(self, window_ms: int) -> None:
        check_window_ms(window_ms)
        self._window_ms = window_ms

    def name(self, key: ScheduleKey) -> str:
        day = day_name(day_of(key.start_ms))
        if key.source == ScheduleSource.DAY:
            assert key.start_ms % DAY_MS == 0, "a day starts at midnight"
            return f"{day}/{_DAY_FILE}"
        return f"{day}/{time_name(key.start_ms, self._window_ms)}{_SUFFIXES[key.source]}"

    def parse(self, day: str, name: str) -> ScheduleKey | None:
        try:
            start_ms = parse_day_name(day)
            if name == _DAY_FILE:
                return ScheduleKey(start_ms, ScheduleSource.DAY)
            time, _, suffix = name.partition(".")
            for source, known in _SUFFIXES.items():
                if "." + suffix == known:
                    return ScheduleKey(start_ms + parse_time_name(time, self._window_ms), source)
        except ValueError:
            pass
        return None

    def header_base(self, key: ScheduleKey) -> tuple[int, int]:
        return key.start_ms, DAY_MS if key.source == ScheduleSource.DAY else self._window_ms

    def count(self, batch: ColumnBatch) -> Sequence[int]:
        return ()
