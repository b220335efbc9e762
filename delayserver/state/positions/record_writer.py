"""The port through which groups of records become durable. What they are made durable in is the writer's own matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from delayserver.protocol.errors import DelayServerError
from delayserver.state.positions.gathering import CommitGroup
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows


class RecordWriter(Protocol):
    """Makes groups durable in the order in which they come. In the step in which a group is, it calls `AcceptedLog.accept`.

    A writer may hand its records to a log that other processes read too. Then a group is accepted when they came back."""

    def takes_now(self, size_bytes: int) -> bool:
        """Whether the event loop may wait for a group of this size: `write_now` instead of `write`."""

    def write_now(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """Accepts the group, whose records these are, in this step. Raises as `write`."""

    async def write(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """Returns when the next group may follow: this one is accepted by then, or it will be, or `AcceptedLog.refuse` gets
        it. Raises DiskFullError if nothing was written, and another StoreError for good. Then nobody of the group was
        answered."""

    def unknown(self) -> DelayServerError:
        """The error of a group that is on its way when the server ends."""
