"""The broker's files of one process."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.broker.files.progress_log import ProgressLog
from delayserver.broker.files.store import BrokerStore
from delayserver.broker.queues.delivery_id import Epoch
from delayserver.broker.queues.run_blocks import RunBlocks
from delayserver.broker.reads import Reads
from store.disk.filesystem import FileSystem
from store.logs.message_log import MessageLog


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """The files as a start opened them, and the reads of them that are under way.

    `segment_newest_us`: when the newest record of each segment of the store was stored, by the
    base of the segment."""

    fs: FileSystem
    directory: str
    server_id: int
    epoch: Epoch
    store: BrokerStore
    blocks: RunBlocks
    progress: ProgressLog
    reads: Reads
    segment_newest_us: dict[int, int]

    @property
    def logs(self) -> tuple[MessageLog, MessageLog]:
        """The rolling logs of the store and of the index, whose next segments are made beside."""
        return self.store.log, self.blocks.log


def close_files(files: BrokerFiles) -> None:
    """Close the files without making anything durable."""
    for file in (files.store, files.blocks, files.progress):
        file.close()
