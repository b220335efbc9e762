"""Reads the rows of the key index from schedule_log, to make it again. Reads files; for a worker thread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from delayserver.runtime.damage import DamageReport
from store.errors import CorruptionError, DiskError, FormatError
from store.keys.key_rows import KeyRows, key_rows, name_keys
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.scan import Damage

_COLUMNS = ("sequence", "due_ms", "origin_sequence", "id_hash", "subject")


class StoredKeys:
    """All messages with an id in schedule_log. `met_damage`: some could not be read."""

    def __init__(self, schedule: ScheduleLog, damage: DamageReport) -> None:
        self._schedule = schedule
        self._damage = damage
        self.met_damage = False

    def parts(self) -> Iterator[KeyRows]:
        """Their rows, a bounded number at a time. Days come first: a day that is drained meanwhile is in its minutes, which
        are looked for behind it. A message may come twice."""
        for key in self._schedule.keys():
            if key.source == ScheduleSource.DAY:
                yield from self._of(key)
        for key in self._schedule.keys():
            if key.source != ScheduleSource.DAY:
                yield from self._of(key)

    def _of(self, key: ScheduleKey) -> Iterator[KeyRows]:
        damages: list[Damage] = []
        try:
            for columns in self._schedule.column_parts(key, _COLUMNS, self._schedule.end(key), damages=damages):
                some = np.flatnonzero((columns["id_hash"] != 0) & (columns["origin_sequence"] == 0))
                names = name_keys(columns["id_hash"][some], columns["subject"][some])
                yield key_rows(names, columns["sequence"][some], columns["due_ms"][some])
        except KeyError:  # retention, or the end of its day, has removed it
            return
        except (CorruptionError, DiskError) as error:
            self._met(error)
        except FormatError as error:
            self._met(error.as_damage())
        for each in damages:
            self._met(each.error(self._schedule.path(key)))

    def _met(self, error: CorruptionError | DiskError) -> None:
        self.met_damage = True
        self._damage.report(error)
