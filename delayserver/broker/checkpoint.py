"""The broker's checkpoint: all queues as of a store offset, so that a start scans only what was stored after it.

Bytes only: arrays in a msgpack map behind a magic and a checksum. It is replaced whole; one that does not verify is as
good as none, because the store alone can rebuild everything in it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import msgpack

from delayserver.broker.queue import ConsumeQueue, QueueKey, SpilledBlock
from delayserver.broker.windows import Extent, Window

_MAGIC = b"DELAYBCP"
_VERSION = 1


@dataclass(slots=True)
class BrokerCheckpoint:
    """`epoch` counts starts; `store_offset` and `blocks_offset` say up to where the other fields speak."""

    server_id: int
    epoch: int = 0
    store_offset: int = 0
    blocks_offset: int = 0
    queues: dict[QueueKey, ConsumeQueue] = field(default_factory=dict)
    windows: dict[Window, list[Extent]] = field(default_factory=dict)
    segment_newest_us: dict[int, int] = field(default_factory=dict)


def encode_checkpoint(checkpoint: BrokerCheckpoint) -> bytes:
    """The bytes of the file."""
    content = {
        "version": _VERSION,
        "server_id": checkpoint.server_id,
        "epoch": checkpoint.epoch,
        "store_offset": checkpoint.store_offset,
        "blocks_offset": checkpoint.blocks_offset,
        "queues": [_pack_queue(key, queue) for key, queue in checkpoint.queues.items()],
        "windows": [
            (*window, [(e.start, e.stop, e.sequence_min, e.sequence_max) for e in extents])
            for window, extents in checkpoint.windows.items()
        ],
        "segments": list(checkpoint.segment_newest_us.items()),
    }
    body: bytes = msgpack.packb(content)
    return b"".join((_MAGIC, google_crc32c.value(body).to_bytes(4, "little"), body))


def decode_checkpoint(data: bytes, server_id: int) -> BrokerCheckpoint | None:
    """None where the bytes do not verify or belong to another server or version."""
    body = data[12:]
    if data[:8] != _MAGIC or google_crc32c.value(body) != int.from_bytes(data[8:12], "little"):
        return None
    content: dict[str, Any] = msgpack.unpackb(body)
    if content["version"] != _VERSION or content["server_id"] != server_id:
        return None
    return BrokerCheckpoint(
        server_id,
        content["epoch"],
        content["store_offset"],
        content["blocks_offset"],
        dict([_unpack_queue(packed) for packed in content["queues"]]),
        {(server, window): [Extent(*extent) for extent in extents] for server, window, extents in content["windows"]},
        dict(content["segments"]),
    )


def _pack_queue(key: QueueKey, queue: ConsumeQueue) -> tuple[Any, ...]:
    blocks = [(b.position, b.store_offset_first, b.store_offset_last, b.block_offset) for b in queue.blocks]
    return (*key, queue.first, queue.end, blocks, *[column.tobytes() for column in queue.memory_runs()])


def _unpack_queue(packed: list[Any]) -> tuple[QueueKey, ConsumeQueue]:
    subject, target_group, first, end, blocks, *columns = packed
    queue = ConsumeQueue(first, end)
    queue.blocks = [SpilledBlock(*block) for block in blocks]
    queue.restore_runs(*[array(code, data) for code, data in zip("qqII", columns, strict=True)])
    return (subject, target_group), queue
