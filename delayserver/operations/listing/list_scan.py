"""Reads parts of units from schedule files, and the rows of them that a list wants. For any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.filters.filter import Filter
from delayserver.operations.listing.list_place import SEQUENCE_MAX, Listed, ListPlace
from delayserver.operations.listing.list_units import ListUnit
from delayserver.runtime.damage import DamageReport
from store.errors import CorruptionError, FormatError
from store.indexes.schedule_index import ScheduleIndex
from store.logs.schedule_log import ScheduleKey, ScheduleLog, SchedulePart
from store.records.batches import FLAG_PREPARED, U32, U64
from store.records.column_batch import ragged_rows
from store.records.id_hash import hash_ids
from store.records.scan import Damage
from store.tables.names import Names

PART_ROWS: Final = 65_536
"""Rows of a part: some 10 ms of work in a thread. Each page of a part reads it again."""

PART_BYTES: Final = 8 << 20
"""Bytes that are read for a part, and a record more."""

_ROOM: Final = 4
# A part that a page has begun was cut at these bounds, perhaps by a member whose records end elsewhere.

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ListSelection:
    """The messages that a list wants. `subject` and `tag` are codes, 0 for any. `may` says whether a subject is wanted;
    None: all are. It must be fit for any thread."""

    from_ms: int
    to_ms: int
    latest: bool
    subject: int
    tag: int
    may: Callable[[str], object] | None
    where: Filter | None


@dataclass(frozen=True, slots=True)
class ListRows:
    """Wanted rows of files of a unit. `file` is the number of the file in the unit."""

    index: ScheduleIndex
    id_hash: U64
    file: NDArray[np.intp]

    @classmethod
    def concatenate(cls, parts: list[ListRows]) -> ListRows:
        """All rows."""
        return cls(
            ScheduleIndex.concatenate([part.index for part in parts]),
            np.concatenate([np.zeros(0, np.uint64), *[part.id_hash for part in parts]]),
            np.concatenate([np.zeros(0, np.intp), *[part.file for part in parts]]),
        )

    def in_order(self, upto: int, latest: bool) -> ListRows:
        """The rows up to a sequence, in the order of the list."""
        order = np.lexsort((self.index.sequence, self.index.due_ms))
        order = order[self.index.sequence[order] <= upto]
        if latest:
            order = order[::-1]
        return ListRows(self.index.take(order), self.id_hash[order], self.file[order])


@dataclass(frozen=True, slots=True)
class Scanned:
    """The wanted rows of a part of a unit, in the order of the list; they may have outcomes. `looked`: how many rows were
    looked at. `upto`: the last sequence of the part. `is_last`: no other part of the unit follows. `damages`: places
    that may hide messages."""

    unit: ListUnit
    rows: ListRows
    looked: int
    upto: int
    is_last: bool
    damages: int

    def place_behind(self, row: int) -> ListPlace:
        """The place where this row and all before it are listed."""
        index = self.rows.index
        due_ms, sequence = int(index.due_ms[row]), int(index.sequence[row])
        return self.unit.place.with_listed(Listed(self.unit.place.listed.behind, self.upto, due_ms, sequence))

    @property
    def listed(self) -> Listed:
        """What is listed of the unit with all rows of the part."""
        return Listed(self.upto, self.upto)


class _Properties:
    """The columns of a part, for a filter."""

    def __init__(self, part: SchedulePart) -> None:
        self.tag: U32 = part.index.tag
        self.properties = memoryview(part.properties)
        self.properties_length: U32 = part.index.properties_length


class ListScanner:
    """Reads units. Reports damage and reads around it."""

    def __init__(self, schedule: ScheduleLog, names: Names, damage: DamageReport) -> None:
        self._schedule = schedule
        self._names = names
        self._damage = damage

    def scan(self, units: Sequence[ListUnit], wanted: ListSelection) -> list[Scanned]:
        """A part of each unit, up to the first one that has more parts."""
        found: list[Scanned] = []
        for unit in units:
            found.append(self._scan(unit, wanted))
            if not found[-1].is_last:
                break
        return found

    def _scan(self, unit: ListUnit, wanted: ListSelection) -> Scanned:
        listed = unit.place.listed
        bound = listed.upto if listed.has_begun else SEQUENCE_MAX
        rows_max = PART_ROWS * (_ROOM if listed.has_begun else 1)
        last, is_last, looked, damages = listed.behind, not listed.has_begun, 0, 0
        found: list[ListRows] = []
        for place, file in enumerate(unit.files):
            part, met = self._part(file, (listed.behind, bound), rows_max - looked, wanted.where is not None)
            if part.last is not None:
                bound, is_last = part.last, False
            if len(part.index):
                last = max(last, int(part.index.sequence[-1]))
            looked, damages = looked + len(part.index), damages + met
            mine = np.flatnonzero(self._mask(part, unit, wanted))
            found.append(ListRows(part.index.take(mine), part.id_hash[mine], np.full(len(mine), place)))
        upto = bound if listed.has_begun else min(bound, last)
        rows = ListRows.concatenate(found).in_order(upto, wanted.latest)
        return Scanned(unit, rows, looked, upto, is_last, damages)

    def _part(
        self, file: ScheduleKey, between: tuple[int, int], rows_max: int, properties: bool
    ) -> tuple[SchedulePart, int]:
        """A part of a file, and how many places of it could not be read. A file that is gone has no rows."""
        damages: list[Damage] = []
        behind, upto = between
        hiding = self._schedule.hiding(file)
        lost = hiding is not None
        if hiding is not None:
            self._damage.report(hiding)
        try:
            part = self._schedule.part(file, behind, upto, rows_max, PART_BYTES, properties=properties, damages=damages)
        except KeyError:
            return SchedulePart.of([], "", None), 0
        except (CorruptionError, FormatError) as error:
            self._damage.report(error.as_damage() if isinstance(error, FormatError) else error)
            return SchedulePart.of([], "", None), 1
        for damage in damages:
            self._damage.report(damage.error(self._schedule.path(file)))
        return part, len(damages) + lost

    def _mask(self, part: SchedulePart, unit: ListUnit, wanted: ListSelection) -> Mask:
        """The rows of messages that are wanted and were not listed, bool[n]."""
        index = part.index
        mask: Mask = (index.due_ms >= wanted.from_ms) & (index.due_ms < wanted.to_ms)
        # Redeliveries, timers, copies and transactions are no pending messages.
        mask &= (index.origin_sequence == 0) & (index.duplicate_of == 0) & (index.flags & FLAG_PREPARED == 0)
        mask &= ~unit.place.listed.mask(index.due_ms, index.sequence, wanted.latest)
        mask &= ~unit.place.of_day.mask(index.due_ms, index.sequence, wanted.latest)
        if wanted.subject:
            mask &= index.subject == wanted.subject
        if wanted.tag:
            mask &= index.tag == wanted.tag
        if wanted.may is not None and mask.any():
            codes, inverse = np.unique(index.subject[mask], return_inverse=True)
            mine = [bool(wanted.may(self._names.name(code))) for code in codes.tolist()]
            mask[mask] = np.array(mine, np.bool_)[inverse]
        if wanted.where is not None and mask.any():
            rows = wanted.where.rows(_Properties(part), 0, len(index))
            if rows is not None:
                matching = np.zeros(len(index), np.bool_)
                matching[rows] = True
                mask &= matching
        return mask

    def ids(self, scanned: Scanned, rows: NDArray[np.intp]) -> list[str | None]:
        """The ids of some rows; an empty one where the client gave none, None where it cannot be read."""
        ids: list[str | None] = [None] * len(rows)
        found = scanned.rows
        for place in np.unique(found.file[rows]).tolist():
            mine = np.flatnonzero(found.file[rows] == place)
            index, file = found.index.take(rows[mine]), scanned.unit.files[place]
            try:
                path = self._schedule.path(file)
                blob = self._schedule.gather(file, index.ids_offset, index.ids_length)
            except (KeyError, CorruptionError):
                continue
            sound = hash_ids(blob, index.ids_length) == found.id_hash[rows[mine]]
            texts = zip(mine.tolist(), sound.tolist(), ragged_rows(blob, index.ids_length), strict=True)
            for row, is_sound, data in texts:
                ids[row] = data.decode() if is_sound else None
            for bad in np.flatnonzero(~sound).tolist():
                self._damage.report(CorruptionError(path, int(index.ids_offset[bad]), "an id has wrong bytes"))
        return ids
