"""One row of the progress log as a record, without columns: each hand-out writes one. It is the very record that the
columns would give.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from store.records.batches import ProgressBatch
from store.records.column_batch import CONSTANT
from store.records.record import ALIGN, HEADER_BYTES, EncodedRecord, encode_header
from store.records.versions import schema_at

# `anew` is a column since version 2, and these rows have none.
_SCHEMA = schema_at(ProgressBatch.schema, 1)
_DIRECTORY = bytes([CONSTANT] * len(_SCHEMA.fields)).ljust(ALIGN, b"\0")
_ONE_ROW = struct.Struct("<2q5Q")


class SingleProgressRow:
    """A row of `ProgressBatch` whose `anew` is 0."""

    __slots__ = ("_columns", "_start")

    def __init__(self, values: Sequence[int]) -> None:
        """`values`: start, stop, subject, consumer group, times, retry, change."""
        self._start = values[0]
        self._columns = _DIRECTORY + _ONE_ROW.pack(*values)

    def __len__(self) -> int:
        """Number of rows."""
        return 1

    def encode(self, synced_before: int, offset: int) -> EncodedRecord:
        """The record, to stand at `offset`."""
        columns = self._columns
        header = encode_header(_SCHEMA, 1, columns, 0, 0, synced_before, offset, self._start, self._start)
        return EncodedRecord([header + columns], HEADER_BYTES + len(columns), HEADER_BYTES + len(columns))
