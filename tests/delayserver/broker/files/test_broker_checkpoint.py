"""A checkpoint of the broker is read as it was written, or is as good as none."""

from __future__ import annotations

from typing import Any

import google_crc32c
import msgpack
import pytest

from delayserver.broker.files.broker_checkpoint import BrokerCheckpoint, decode_checkpoint, encode_checkpoint
from delayserver.broker.queues.queue import ConsumeQueue, SpilledBlock
from delayserver.broker.queues.queue_columns import QueueColumns
from delayserver.broker.queues.window_table import Extent

SERVER = 5


def checkpoint() -> BrokerCheckpoint:
    queue = ConsumeQueue(0, 5)
    queue.blocks = [SpilledBlock(0, 64, 64, 64)]
    queue.append(300, 0, 2)
    columns = QueueColumns.of({(1, 0): queue})
    return BrokerCheckpoint(SERVER, 3, 500, 300, columns, {(SERVER, 60_000): [Extent(64, 500, 1, 9)]}, {0: 77})


def file_of(body: bytes) -> bytes:
    """These bytes behind the magic and their right checksum."""
    return b"DELAYBCP" + _crc(body) + body


def _crc(body: bytes) -> bytes:
    checksum: int = google_crc32c.value(body)
    return checksum.to_bytes(4, "little")


def with_field(name: str, value: Any) -> bytes:
    content = msgpack.unpackb(encode_checkpoint(checkpoint())[12:])
    return file_of(msgpack.packb(content | {name: value}))


def test_a_checkpoint_is_read_back() -> None:
    data = encode_checkpoint(checkpoint())
    found = decode_checkpoint(data, SERVER)
    assert found is not None and encode_checkpoint(found) == data
    assert decode_checkpoint(data, SERVER + 1) is None and decode_checkpoint(with_field("version", 3), SERVER) is None


QUEUE = [1, 0, 0, 7, [[0, 64, 64, 64]], bytes(8), bytes(8), bytes(4), bytes(4)]


def queue_with(place: int, value: Any) -> bytes:
    return version_1([[*QUEUE[:place], value, *QUEUE[place + 1 :]]])


def version_1(queues: Any) -> bytes:
    """A checkpoint as programs wrote it before the queues were columns."""
    content = msgpack.unpackb(encode_checkpoint(checkpoint())[12:])
    return file_of(msgpack.packb(content | {"version": 1, "queues": queues}))


def columns_with(name: str, value: Any) -> bytes:
    columns = msgpack.unpackb(encode_checkpoint(checkpoint())[12:])["queues"]
    return with_field("queues", columns | {name: value})


def test_the_queue_that_is_spoilt_below_is_a_good_one() -> None:
    found = decode_checkpoint(version_1([QUEUE]), SERVER)
    assert found is not None and list(found.queue_bounds()) == [((1, 0), 0, 7)]


@pytest.mark.parametrize(
    "data",
    [
        file_of(b""),
        file_of(b"\xc1"),
        file_of(msgpack.packb([1])),
        file_of(msgpack.packb({"version": 1, "server_id": SERVER})),
        encode_checkpoint(checkpoint())[:-1],
        with_field("epoch", "3"),
        with_field("store_offset", None),
        with_field("blocks_offset", (1 << 64) - 1),
        with_field("queues", 1),
        with_field("queues", [QUEUE]),
        version_1([QUEUE[:-1]]),
        columns_with("codes", bytes(7)),
        columns_with("codes", bytes(16)),
        columns_with("codes", (-1).to_bytes(8, "little", signed=True)),
        columns_with("first", None),
        columns_with("end", b""),
        columns_with("runs", (2).to_bytes(4, "little")),
        columns_with("blocks", (0).to_bytes(4, "little")),
        columns_with("counts", b""),
        columns_with("spilled", bytes(24)),
        queue_with(0, [1]),
        queue_with(3, "7"),
        queue_with(4, [[0, 64, 64]]),
        queue_with(4, [[0, 64, 64, "64"]]),
        queue_with(5, bytes(7)),
        queue_with(5, bytes(16)),
        queue_with(5, [1 << 63]),
        queue_with(6, "text"),
        with_field("windows", [[SERVER, 60_000]]),
        with_field("windows", [[SERVER, "60", []]]),
        with_field("windows", [[SERVER, 60_000, [[64, 500, 1]]]]),
        with_field("segments", [[0, "77"]]),
        with_field("segments", [[0]]),
    ],
)
def test_content_that_makes_no_sense_behind_a_right_checksum_is_as_good_as_none(data: bytes) -> None:
    assert decode_checkpoint(data, SERVER) is None
