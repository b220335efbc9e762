"""The codes of names that the files of a directory use: a lost table of names needs stand-ins for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Reader
from store.errors import StoreError
from store.records.batches import FLAG_PUBLISHED, StoredBatch

# Columns of any kind of record that hold codes; all kinds of names are numbered together.
_COLUMNS = ("subject", "target_group", "broker_group", "consumer_group", "tag")


def highest_code(taken: Capture) -> int:
    """The highest code in anything that can be read; 0 if there is none. Reads every file."""
    highest = 0
    for path in _log_files(taken):
        with suppress(StoreError, FileNotFoundError):
            highest = max(highest, _highest_in(taken, path))
    return highest


def _log_files(taken: Capture) -> Iterator[str]:
    yield from [part.path for part in taken.files.message_log]
    yield from map(taken.schedule_path, taken.files.schedule)
    yield from map(taken.dispatch_path, taken.files.dispatch)
    yield f"{taken.path}/ledger.log"
    yield f"{taken.path}/broker/progress.log"
    yield from _store_files(taken)


def _store_files(taken: Capture) -> list[str]:
    store = f"{taken.path}/broker/store"
    return [f"{store}/{name}" for name in taken.fs.listdir(store) if re.fullmatch(r"\d{20}\.log", name)]


def highest_published(taken: Capture) -> int:
    """The highest sequence of a message that clients published to this node; 0 if there is none. No other log has it."""
    highest = 0
    for path in _store_files(taken):
        with suppress(StoreError, FileNotFoundError):
            for _, batch in Reader(taken).batches(path, taken.fs.size(path)):
                if isinstance(batch, StoredBatch):
                    published = (batch.flags & FLAG_PUBLISHED) != 0
                    highest = max(highest, int(batch.sequence[published].max(initial=0)))
    return highest


def _highest_in(taken: Capture, path: str) -> int:
    highest = 0
    for _, batch in Reader(taken).batches(path, taken.fs.size(path)):
        for name in _COLUMNS:
            column = getattr(batch, name, None)
            if column is not None:
                highest = max(highest, int(column.max(initial=0)))
    return highest
