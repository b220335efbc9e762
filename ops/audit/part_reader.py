"""Reads the rows of one part of a file, as numpy columns of many records at once. Without Spark and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.audit.capture import Part
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.records.column_batch import ColumnBatch, MalformedColumnsError
from store.records.fast_reader import Blobs, FastReader
from store.records.record import BATCHES
from store.records.records import Records
from store.records.segment import Damage


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one kind of record. `columns`: arrays of one length, by the names of the batch.

    `blobs`: the selected ragged bytes by name; their lengths are columns `<name>_length`. `offsets` i64[n]: the start
    of each row's record in the file. `end`: the end of the last record of any kind that was read so far."""

    batch_type: type[ColumnBatch]
    columns: dict[str, NDArray[Any]]
    blobs: dict[str, bytes]
    offsets: NDArray[np.int64]
    end: int

    def __len__(self) -> int:
        return len(self.offsets)


class PartReader:
    """Iterates over the chunks of a part. Each has rows of one kind of record, in the order of the file.

    `names` gives the wanted columns of each kind, `blobs` the wanted blobs. A torn tail is the end. Corruption goes to
    `damages` and is skipped; without that list it raises CorruptionError. A record of an unknown kind or version raises
    FormatError.
    """

    def __init__(
        self,
        fs: FileSystem,
        part: Part,
        names: Callable[[type[ColumnBatch]], Sequence[str]],
        blobs: Sequence[str] = (),
        damages: list[Damage] | None = None,
    ) -> None:
        self._fs = fs
        self._part = part
        self._names = names
        self._blobs = tuple(blobs)
        self._damages = damages

    def __iter__(self) -> Iterator[Chunk]:
        """Yields the chunks. Raises FileNotFoundError if the file is gone."""
        part = self._part
        file = self._fs.open(part.path, write=False)
        try:
            stop = min(part.stop, file.size())
            mode = Blobs.KEEP if self._blobs else Blobs.SKIP
            reader = FastReader(file, part.start, stop, min(part.synced, stop), mode)
            for records in reader:
                self._refuse_damage(reader)
                for kind in filter(part.has_rows_in, np.unique(records.kinds).tolist()):
                    batch_type = BATCHES[kind]
                    mine, end = records.of_kind(kind), reader.report.end
                    yield chunk_of(mine, batch_type, self._names(batch_type), self._blobs, part.path, end)
            self._refuse_damage(reader)
            if reader.newer:
                raise FormatError(part.path, reader.newer)
        finally:
            file.close()
        if self._damages is not None:
            self._damages += reader.report.damages

    def _refuse_damage(self, reader: FastReader) -> None:
        if self._damages is None:
            for damage in reader.report.damages:
                raise damage.error(self._part.path)


def chunk_of(
    records: Records, batch_type: type[ColumnBatch], names: Sequence[str], blobs: Sequence[str], path: str, end: int
) -> Chunk:
    """The rows of records of one kind. Raises CorruptionError where their columns contradict each other."""
    try:
        columns = records.columns(batch_type, names)
        found = {name: records.blob(batch_type, columns, name) for name in batch_type.schema.blobs if name in blobs}
    except MalformedColumnsError as error:
        raise CorruptionError(path, int(records.offsets[0]), str(error)) from error
    return Chunk(batch_type, columns, found, records.row_offsets(), end)
