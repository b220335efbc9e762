"""The small tables that all members of a shard have alike: policies of consumer groups, tokens of clients.

A change is a record of the shared log, with the whole table. Each member writes the file at that place of the log, and
reads its memory again. A single server has none here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from store.errors import CorruptionError, FormatError, UpgradeNeededError
from store.records.batches import TableBatch
from store.records.column_batch import ragged_rows


class TableNumber(IntEnum):
    """Which table a record has."""

    POLICIES = 1
    TOKENS = 2


Keep = Callable[[bytes], None]
"""Writes the file of a table, durably; in any thread. Raises DiskFullError, SyncFailedError. If this program cannot read the
table, it writes nothing, and raises ValueError, FormatError or CorruptionError."""
Adopt = Callable[[bytes], None]
"""The file has this content: use it from this step on."""


class SharedTables:
    """The tables of this member by their numbers. Writer: the builder of a server."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[Keep, Adopt]] = {}

    def add(self, number: TableNumber, keep: Keep, adopt: Adopt) -> None:
        """What is done with a table."""
        self._tables[number] = keep, adopt

    def keep(self, batch: TableBatch) -> None:
        """Write the files of a record. Raises UpgradeNeededError for a table that only a newer program can read."""
        for number, content in _rows(batch):
            try:
                self._tables[number][0](content)
            except (KeyError, ValueError, FormatError, CorruptionError) as error:
                raise UpgradeNeededError(0, f"table {number}: {error}") from error

    def adopt(self, batch: TableBatch) -> None:
        """Use the tables of a record, whose files are written."""
        for number, content in _rows(batch):
            self._tables[number][1](content)


def _rows(batch: TableBatch) -> list[tuple[int, bytes]]:
    return [*zip(batch.table.tolist(), ragged_rows(batch.contents, batch.contents_length), strict=True)]
