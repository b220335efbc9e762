"""The broker's checkpoint: all queues as of a store offset, so that a start scans only the records behind it.

The file is a magic, a checksum and a msgpack map of arrays, and is replaced whole. A checkpoint that does not verify is
ignored, because the store alone can rebuild everything in it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import msgpack

from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, SpilledBlock
from delayserver.broker.queues.windows import Extent, Window

_MAGIC = b"DELAYBCP"
_VERSION = 1


@dataclass(slots=True)
class BrokerCheckpoint:
    """`epoch` counts starts. The other fields cover the store up to `store_offset`, blocks up to `blocks_offset`."""

    server_id: int
    epoch: int = 0
    store_offset: int = 0
    blocks_offset: int = 0
    queues: dict[QueueKey, ConsumeQueue] = field(default_factory=dict)
    windows: dict[Window, list[Extent]] = field(default_factory=dict)
    segment_newest_us: dict[int, int] = field(default_factory=dict)


def encode_checkpoint(checkpoint: BrokerCheckpoint) -> bytes:
    """The bytes of the checkpoint file."""
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
    """The checkpoint; None if the bytes do not verify, make no sense, or belong to another server or version."""
    body = data[12:]
    if data[:8] != _MAGIC or google_crc32c.value(body) != int.from_bytes(data[8:12], "little"):
        return None
    try:
        return _decode_content(msgpack.unpackb(body), server_id)
    except (ValueError, KeyError, TypeError, OverflowError, msgpack.UnpackException):
        return None


def _decode_content(content: dict[str, Any], server_id: int) -> BrokerCheckpoint | None:
    if content["version"] != _VERSION or content["server_id"] != server_id:
        return None
    epoch, store_offset, blocks_offset = _numbers(
        [content[name] for name in ("epoch", "store_offset", "blocks_offset")]
    )
    return BrokerCheckpoint(
        server_id,
        epoch,
        store_offset,
        blocks_offset,
        dict([_unpack_queue(packed) for packed in content["queues"]]),
        {
            (server, window): [Extent(*_numbers(extent)) for extent in extents]
            for (server, window), extents in [(_numbers(window), extents) for *window, extents in content["windows"]]
        },
        dict([_pair(pair) for pair in content["segments"]]),
    )


def _numbers(values: list[Any]) -> list[int]:
    """The same values. Raises ValueError unless all of them are integers of 64 bits."""
    for value in values:
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value!r} where a number of 64 bits belongs")
    return values


def _pair(values: list[Any]) -> tuple[int, int]:
    first, second = _numbers(values)
    return first, second


def _pack_queue(key: QueueKey, queue: ConsumeQueue) -> tuple[Any, ...]:
    blocks = [(b.position, b.store_offset_first, b.store_offset_last, b.block_offset) for b in queue.blocks]
    return (*key, queue.first, queue.end, blocks, *[column.tobytes() for column in queue.memory_runs()])


def _unpack_queue(packed: list[Any]) -> tuple[QueueKey, ConsumeQueue]:
    *numbers, blocks, positions, offsets, rows, counts = packed
    subject, target_group, first, end = _numbers(numbers)
    columns = [array(code, _raw(data)) for code, data in zip("qqII", (positions, offsets, rows, counts), strict=True)]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("columns of different lengths")
    queue = ConsumeQueue(first, end)
    queue.blocks = [SpilledBlock(*_numbers(block)) for block in blocks]
    queue.restore_runs(*columns)
    return (subject, target_group), queue


def _raw(data: Any) -> bytes:
    if type(data) is not bytes:
        raise TypeError(f"{type(data).__name__} where the bytes of a column belong")
    return data
