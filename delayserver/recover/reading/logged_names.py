"""Names that a member's message_log has already, and its names.log not yet.

A member writes a name into message_log when it comes from the shared log, and into names.log when it replays it. A process
that was killed in between, and a snapshot of that moment, leave a directory that lacks no name: its next start replays it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from store.disk.filesystem import FileSystem
from store.errors import StoreError
from store.records.batches import KIND_NAMES, NameBatch
from store.records.file_header import FILE_HEADER_BYTES, FILE_MESSAGE_LOG
from store.records.segment import Segment


def logged_names(fs: FileSystem, path: str, server_id: int, start: int) -> Iterator[NameBatch]:
    """The records of names of the segment at `path` from `start` on, the offset of a record, up to the first
    damage. Placeholders of a repair are left out."""
    with suppress(StoreError, FileNotFoundError):
        segment = Segment.open(fs, path, FILE_MESSAGE_LOG, server_id, write=False)
        try:
            for header in segment.headers(max(start, FILE_HEADER_BYTES)):
                if header.kind == KIND_NAMES:
                    _, batch = segment.read(header.offset)
                    if isinstance(batch, NameBatch) and int(batch.code[0]):
                        yield batch
        finally:
            segment.close()
