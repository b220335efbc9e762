"""What is refused, and what came over a connection that died, is freed at once and not when the collector looks."""

from __future__ import annotations

import gc
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from delayserver.protocol.columns import pack_column
from delayserver.protocol.frames import decode_reply, encode_request
from tests.delayserver.cli.conftest import Server, serving
from tests.fakes.host import Boot, Client

MIB = 1 << 20
FAR_MS = 1 << 45
RECEIPT = "ffffffffffff-000000000000-000000000001"


def rows(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


def columns(**changed: Any) -> dict[str, Any]:
    return {"count": 2, "subject": "s", "delay_ms": 60_000, "bodies": b"ab", "body_length": 1} | changed


OWN = {"subject": "s", "message_id": "x", "message_due_ms": 1}
GOOD = {"subject": "s", "body": "b", "delay_ms": 60_000}
BULK = {"subject": "bulk", "body": b"x" * MIB, "delay_ms": 0}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "one row of two": ("send", rows(GOOD, GOOD | {"delay_ms": FAR_MS})),
    "a row that is none": ("send", rows(GOOD, 7)),
    "the subject of a row": ("send", rows(GOOD, GOOD | {"subject": "\n"})),
    "the properties of a row": ("send", rows(GOOD, GOOD | {"properties": {"a": 1}})),
    "all rows": ("send", rows(GOOD | {"message_id": ""})),
    "no rows": ("send", rows()),
    "a row of columns": ("send", columns(delay_ms=pack_column(np.array([60_000, FAR_MS])))),
    "a subject of columns": ("send", columns(subject=None, subjects=["s", "\n"], subject_index=b"\0\0\0\0\1\0\0\0")),
    "properties of columns": ("send", columns(properties=b"\1\1", properties_length=1)),
    "ids of columns": ("send", columns(message_ids=b"\xff\xff", message_id_length=1)),
    "columns that do not fit": ("send", columns(body_length=3)),
    "cancel of a receipt": ("cancel", {"receipts": [RECEIPT, "nonsense"]}),
    "cancel by name": ("cancel", {"messages": [{"subject": "s", "due_ms": 1}, {}]}),
    "lookup of a receipt": ("lookup", {"receipts": [RECEIPT, "nonsense"]}),
    "lookup by name": ("lookup", {"messages": [{"subject": "\n", "due_ms": 1, "message_id": "x"}]}),
    "reschedule": ("reschedule", {"items": [{"receipt": "nonsense", "delay_ms": 1}, 7]}),
    "reschedule by name": ("reschedule", {"items": [{"subject": "\n", "message_id": "x", "message_due_ms": 1}]}),
    "the changes of a reschedule": ("reschedule", {"items": [{"receipt": RECEIPT, "delay_ms": -1}] * 2}),
    "a change of a reschedule": ("reschedule", {"items": [OWN | {"delay_ms": -1}]}),
    "pull": ("pull", {"subject": "\n", "group": "g"}),
    "ack": ("ack", {"subject": "s", "group": "g", "count": 2, "deliveries": b"abc"}),
    "deliver": ("deliver", {"count": 1}),
    "redispatch": ("redispatch", {"from_ms": 1}),
    "an unknown operation": ("nonsense", {}),
}


def is_ours(frame: FrameType) -> bool:
    folders = Path(frame.f_code.co_filename).parts
    return "delayserver" in folders and "tests" not in folders


@contextmanager
def frames_left_to_the_collector() -> Iterator[list[str]]:
    """The places of this project's calls that ended in the block and were not freed then."""
    left: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        frames = [each for each in gc.garbage if isinstance(each, FrameType)]
        left += [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames if is_ours(frame)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def answered(client: Client, operation: str, arguments: dict[str, Any]) -> None:
    """Any answer will do."""
    number = await client.ask(operation, arguments)
    while number not in client.replies:
        await client.take()
    client.replies.clear()


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_leaves_nothing_to_the_collector(boot: Boot, name: str) -> None:
    host, client = await boot.connected()
    operation, arguments = REFUSED[name]
    await answered(client, operation, arguments)
    await host.settled()
    with frames_left_to_the_collector() as left:
        await answered(client, operation, arguments)
        await host.settled()
    assert left == []


# -- a real server, measured from outside


def resident_bytes(server: Server) -> int:
    """The anonymous memory of its process: what files and libraries map is not counted."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in the status of a process")


def connect(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    connected = socket.create_connection((host, int(port)), 30)
    connected.sendall(encode_request(1, "ping", {}))
    read_frame(connected)
    return connected


def read_frame(connected: socket.socket) -> bytes:
    (length,) = struct.unpack("<I", read_bytes(connected, 4))
    return read_bytes(connected, length)


def read_bytes(connected: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connected.recv(min(count - len(data), MIB))
        if not piece:
            raise ConnectionResetError("closed by the server")
        data += piece
    return bytes(data)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("freed") / "data") as running:
        yield running


@pytest.mark.parametrize("closing", [False, True])
def test_hundreds_of_refused_requests_do_not_grow_the_server(server: Server, closing: bool) -> None:
    refused = GOOD | {"body": b"x" * (15 * MIB)}
    frame = encode_request(1, "send", rows(GOOD, refused))
    connected = connect(server)
    before = resident_bytes(server)
    for _ in range(200):
        connected.sendall(frame)
        assert b"message_too_large" in read_frame(connected)
        if closing:
            connected.close()
            connected = connect(server)
    grown = resident_bytes(server) - before
    connected.close()
    assert grown < 200 * MIB, f"{grown >> 20} MiB"


def test_hundreds_of_connections_that_die_in_the_middle_of_a_frame_do_not_grow_the_server(server: Server) -> None:
    frame = encode_request(1, "send", rows(GOOD | {"body": b"x" * (15 * MIB)}))
    before = resident_bytes(server)
    for number in range(200):
        connected = connect(server)
        connected.sendall(frame[:-1])
        if number % 2:  # a reset instead of an end
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.close()
    with connect(server) as last:
        last.sendall(encode_request(2, "ping", {}))
        read_frame(last)
        grown = resident_bytes(server) - before
    assert grown < 200 * MIB, f"{grown >> 20} MiB"


def test_unfinished_frames_of_many_connections_together_keep_to_the_bound(server: Server) -> None:
    frame = encode_request(1, "send", rows(GOOD | {"body": b"x" * (15 * MIB)}))
    before = resident_bytes(server)
    senders = [threading.Thread(target=send_what_goes, args=(server, frame[:-1])) for _ in range(40)]
    for sender in senders:
        sender.start()
    time.sleep(3)
    with connect(server) as small:
        small.sendall(encode_request(2, "send", rows(GOOD)))
        assert b"receipt" in read_frame(small)
    grown = resident_bytes(server) - before
    for sender in senders:
        sender.join()
    assert grown < 250 * MIB, f"{grown >> 20} MiB"


def send_what_goes(server: Server, data: bytes) -> None:
    """Send until nothing more is taken for a while, then close."""
    with connect(server) as connected:
        connected.settimeout(4)
        with suppress(OSError):
            connected.sendall(data)
        time.sleep(4)


def test_unread_replies_of_many_connections_together_keep_to_the_bound(server: Server) -> None:
    count = 40
    with connect(server) as sender:
        sender.sendall(b"".join(encode_request(1, "send", rows(BULK)) for _ in range(10)))
        for _ in range(10):
            assert b"receipt" in read_frame(sender)
    time.sleep(1)
    before = resident_bytes(server)
    greedy = []
    for number in range(count):
        client = connect(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        pull = {"subject": "bulk", "group": f"g{number}", "max_messages": 100, "columns": True}
        client.sendall(b"".join(encode_request(n + 1, "pull", pull) for n in range(6)))
        greedy.append(client)
    time.sleep(2)
    with connect(server) as small:
        small.sendall(encode_request(2, "send", rows(GOOD)))
        assert b"receipt" in read_frame(small)
    grown = resident_bytes(server) - before
    for client in greedy:
        client.close()
    assert grown < 250 * MIB, f"{grown >> 20} MiB"


def count_of(client: socket.socket) -> int:
    """The number of messages in the next reply."""
    result = decode_reply(read_frame(client)).result
    assert result is not None
    return int(result["count"])


def test_six_pipelined_pulls_of_seven_megabytes_all_come_to_a_client_that_reads(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b"".join(encode_request(1, "send", rows(BULK | {"subject": "seven"})) for _ in range(42)))
        for _ in range(42):
            assert b"receipt" in read_frame(client)
        pull = {"subject": "seven", "group": "g", "max_messages": 7, "columns": True, "wait_ms": 20_000}
        client.sendall(b"".join(encode_request(n + 1, "pull", pull) for n in range(6)))
        counts = [count_of(client) for _ in range(6)]
        assert all(1 <= count <= 7 for count in counts)
        # A pull that must read a message from the disk first gets only what is in memory. The next pulls bring the rest.
        for number in range(7, 43):
            if sum(counts) == 42:
                break
            client.sendall(encode_request(number, "pull", pull))
            counts.append(count_of(client))
    assert sum(counts) == 42
