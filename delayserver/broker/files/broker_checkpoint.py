"""The broker's checkpoint: all queues as of a store offset, so that a start scans only the records behind it.

The file is a magic, a checksum and a msgpack map of arrays, and is replaced whole. A checkpoint that does not verify is
ignored, because the store alone can rebuild everything in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c
import msgpack
import numpy as np

from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, SpilledBlock
from delayserver.broker.queues.queue_columns import QueueColumns, key_of
from delayserver.broker.queues.window_table import Extent, Window

_MAGIC = b"DELAYBCP"
# Version 1 had a list for each queue.
_VERSION = 2
_QUEUE_COLUMNS = (
    ("codes", "<i8"), ("first", "<i8"), ("end", "<i8"), ("runs", "<u4"), ("blocks", "<u4"),
    ("positions", "<i8"), ("offsets", "<i8"), ("rows", "<u4"), ("counts", "<u4"), ("spilled", "<i8"),
)  # fmt: skip


@dataclass(slots=True)
class BrokerCheckpoint:
    """`epoch` counts starts. The other fields cover the store up to `store_offset`, blocks up to `blocks_offset`.

    `letters_offset`: acks of the messages of dead letters from here on may be missing in the progress log; None: of those
    from `store_offset` on. `moves` counts seeks and removals of consumer groups."""

    server_id: int
    epoch: int = 0
    store_offset: int = 0
    blocks_offset: int = 0
    queues: QueueColumns = field(default_factory=QueueColumns.of_none)
    windows: dict[Window, list[Extent]] = field(default_factory=dict)
    segment_newest_us: dict[int, int] = field(default_factory=dict)
    letters_offset: int | None = None
    moves: int = 0

    def queue_bounds(self) -> Iterator[tuple[QueueKey, int, int]]:
        """Key, first position and end of each queue."""
        queues = self.queues
        for code, first, end in zip(queues.codes.tolist(), queues.first.tolist(), queues.end.tolist(), strict=True):
            yield key_of(code), first, end


def encode_checkpoint(checkpoint: BrokerCheckpoint) -> bytes:
    """The bytes of the checkpoint file."""
    content = {
        "version": _VERSION,
        "server_id": checkpoint.server_id,
        "epoch": checkpoint.epoch,
        "store_offset": checkpoint.store_offset,
        "blocks_offset": checkpoint.blocks_offset,
        "queues": {name: getattr(checkpoint.queues, name).tobytes() for name, _ in _QUEUE_COLUMNS},
        "windows": [
            (*window, [(e.start, e.stop, e.sequence_min, e.sequence_max) for e in extents])
            for window, extents in checkpoint.windows.items()
        ],
        "segments": list(checkpoint.segment_newest_us.items()),
    }
    if checkpoint.letters_offset is not None:
        content["letters_offset"] = checkpoint.letters_offset
    if checkpoint.moves:
        content["moves"] = checkpoint.moves
    body: bytes = msgpack.packb(content)
    return b"".join((_MAGIC, google_crc32c.value(body).to_bytes(4, "little"), body))


def in_later_epoch(data: bytes, server_id: int, epoch: int) -> bytes | None:
    """The bytes of the same checkpoint in a later epoch; None if `decode_checkpoint` finds none in them."""
    found = decode_checkpoint(data, server_id)
    return None if found is None else encode_checkpoint(replace(found, epoch=max(found.epoch + 1, epoch)))


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
    version = content["version"]
    if version not in (1, _VERSION) or content["server_id"] != server_id:
        return None
    epoch, store_offset, blocks_offset = _numbers(
        [content[name] for name in ("epoch", "store_offset", "blocks_offset")]
    )
    letters_offset = content.get("letters_offset")
    return BrokerCheckpoint(
        server_id,
        epoch,
        store_offset,
        blocks_offset,
        _queues_of_version_1(content["queues"]) if version == 1 else _queues(content["queues"]),
        {
            (server, window): [Extent(*_numbers(extent)) for extent in extents]
            for (server, window), extents in [(_numbers(window), extents) for *window, extents in content["windows"]]
        },
        dict([_pair(pair) for pair in content["segments"]]),
        None if letters_offset is None else _numbers([letters_offset])[0],
        _numbers([content.get("moves", 0)])[0],
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


def _queues(columns: dict[str, Any]) -> QueueColumns:
    arrays = {name: np.frombuffer(_raw(columns[name]), dtype) for name, dtype in _QUEUE_COLUMNS}
    return QueueColumns(**arrays | {"spilled": arrays["spilled"].reshape(-1, 4)})


def _queues_of_version_1(packed: list[Any]) -> QueueColumns:
    return QueueColumns.of(dict([_unpack_queue(queue) for queue in packed]))


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
