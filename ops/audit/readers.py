"""The reader and the names of a part: of a file, or of a piece of a shard's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ops.audit.arrow_rows import open_names
from ops.audit.capture import Part
from ops.audit.part_reader import Chunk, PartReader
from ops.audit.topic_reader import TopicPart, TopicReader
from store.disk.filesystem import RealFileSystem
from store.records.column_batch import ColumnBatch
from store.records.segment import Damage
from store.tables.names import Names


def read_part(
    part: Part,
    columns: Callable[[type[ColumnBatch]], Sequence[str]],
    blobs: Sequence[str] = (),
    damages: list[Damage] | None = None,
) -> Iterable[Chunk]:
    """The chunks of a part, as `PartReader` gives them. The damage of a topic is in its survey."""
    if isinstance(part, TopicPart):
        return TopicReader(part, columns, blobs)
    return PartReader(RealFileSystem(), part, columns, blobs, damages)


def names_of(part: Part) -> Names:
    """The names by which the rows of a part go."""
    return part.names() if isinstance(part, TopicPart) else open_names(part.directory, part.server_id)
