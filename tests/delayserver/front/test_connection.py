"""Rule 13 and bad days of connections: what a client does wrong costs that client only, and no memory."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    FrameTimeout,
    FrameTooLarge,
    MalformedFrame,
    MalformedRequest,
    QueueFull,
    StorageFailed,
    TooManyConnections,
)
from delayserver.protocol.frames import encode_reply, encode_request, frame_of
from tests.fakes.host import Boot, Client, Host, small_settings


async def check_served(host: Host) -> None:
    """Others are served as ever."""
    client = await host.client()
    await client.put("m", host.now_ms + 60_000)


async def connection_ends(client: Client) -> None:
    """The server closes this connection."""
    with pytest.raises(OSError):
        with trio.fail_after(1):
            while await client.transport.receive():
                pass
            raise ConnectionResetError


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x01\x00\x00\x00\xc1",
        b"\x03\x00\x00\x00abc",
        b"\x02\x00\x00\x00\x91\x01",
        b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64,
    ],
)
async def test_a_malformed_frame_is_answered_by_name_then_the_connection_closes(boot: Boot, garbage: bytes) -> None:
    host, client = await boot.connected()
    await client.send_bytes(garbage)
    with pytest.raises((MalformedFrame, FrameTooLarge)):
        await client.reply(0)
    await connection_ends(client)
    await check_served(host)
    assert sum(host.status()["errors"].values()) == 1
    assert host.connections <= 1


async def test_a_request_that_is_wrong_inside_is_refused_and_its_connection_goes_on(boot: Boot) -> None:
    _, client = await boot.connected(small_settings(listen={"frame_items_max": 100}))
    await client.send_bytes(frame_of(b"\x93\x05\xa4ping\xc0"))
    with pytest.raises(MalformedRequest):
        await client.reply(5)
    await client.send_bytes(encode_request(6, "lookup", {"receipts": ["r"] * 200}))
    with pytest.raises(BatchTooLarge):
        await client.reply(6)
    assert await client.request("ping")
    assert (await client.request("hello", {"versions": [1]}))["limits"]["frame_items_max"] == 100


async def test_an_oversized_frame_is_refused_before_it_is_read(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(listen={"frame_bytes_max": 10_000}))
    await client.send_bytes((10_001).to_bytes(4, "little") + b"x" * 100)
    with pytest.raises(FrameTooLarge):
        await client.reply(0)
    await connection_ends(client)
    await check_served(host)


async def test_half_a_frame_and_gone_or_silent_costs_nothing(boot: Boot) -> None:
    host = await boot.started(small_settings(listen={"idle_frame_timeout_ms": 5_000}))
    frame = encode_request(1, "ping", {})
    gone, silent = await host.client(), await host.client()
    await gone.send_bytes(frame[:-2])
    await silent.send_bytes(frame[:-2])
    gone.transport.close()
    await host.sleep_ms(100)
    assert host.connections == 1
    await host.sleep_ms(6_000)
    assert host.connections == 0
    with pytest.raises(FrameTimeout):
        await silent.reply(0)
    await check_served(host)


async def test_an_idle_connection_between_frames_stays(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(listen={"idle_frame_timeout_ms": 1_000}))
    await client.request("ping")
    await host.sleep_ms(10_000)
    assert "server_us" in await client.request("ping")


async def test_frames_in_pieces_and_many_in_one_piece_are_the_same(boot: Boot) -> None:
    _, client = await boot.connected()
    frames = b"".join(encode_request(100 + i, "ping", {}) for i in range(20))
    for start in range(0, len(frames), 7):
        await client.send_bytes(frames[start : start + 7])
        await trio.lowlevel.checkpoint()
    for i in reversed(range(20)):
        assert "server_us" in await client.reply(100 + i)


async def test_a_client_that_does_not_read_is_served_no_further_and_cut_off_after_the_time(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(listen={"unsent_bytes_max": 20_000, "unsent_timeout_ms": 5_000}))
    frames = b"".join(encode_request(number + 1, "status", {}) for number in range(1_000))
    await client.send_bytes(frames)
    await host.sleep_ms(100)
    largest = len(encode_reply(1_000, host.status()))
    begun = (client.transport.unread_here + host.server.connections.memory.used_bytes) // largest
    assert 0 < begun <= (host.network.window_bytes + 20_000) // largest + 1
    await host.sleep_ms(4_000)
    assert host.connections == 1
    await host.sleep_ms(2_000)
    assert host.connections == 0
    assert host.status()["errors"] == {"client_stopped_reading": 1}
    assert host.server.connections.memory.used_bytes == 0
    await check_served(host)


async def test_a_client_that_reads_a_little_now_and_then_is_not_cut_off(boot: Boot) -> None:
    host = boot(small_settings(listen={"unsent_bytes_max": 20_000, "unsent_timeout_ms": 5_000}))
    host.network.window_bytes = 2_000
    client = await host.start_connected()
    numbers = [await client.ask("status") for _ in range(60)]
    for _ in range(20):
        await host.sleep_ms(4_000)
        await client.take()
    assert host.connections == 1
    for number in numbers:
        assert (await client.reply(number))["ready"]


async def test_a_client_that_reads_slowly_gets_everything(boot: Boot) -> None:
    host = boot()
    host.network.window_bytes = 500
    client = await host.start_connected()
    for number in range(50):
        await client.send_bytes(encode_request(number + 1, "status", {}))
        await host.sleep_ms(1)
    for number in range(50):
        assert (await client.reply(number + 1))["ready"]


async def test_past_the_bound_of_connections_a_new_one_gets_an_error_and_others_are_served(boot: Boot) -> None:
    host = await boot.started(small_settings(listen={"connections_max": 3}))
    clients = [await host.client() for _ in range(3)]
    for client in clients:
        await client.request("ping")
    refused = await host.client()
    with pytest.raises(TooManyConnections) as error:
        await refused.reply(0)
    assert error.value.retry_after_ms
    clients[0].transport.close()
    await host.sleep_ms(10)
    await (await host.client()).request("ping")


async def test_one_connection_too_many_that_is_gone_already_does_not_end_the_server(boot: Boot) -> None:
    host, first = await boot.connected(small_settings(listen={"connections_max": 1}))
    await first.request("ping")
    gone = await host.network.connect("host:1")
    gone.reset()
    await host.sleep_ms(10)
    assert host.died_of is None
    await first.request("ping")


async def test_waiting_requests_of_one_connection_are_bounded(boot: Boot) -> None:
    host, client = await boot.connected()
    pull = {"subject": "s", "group": "g", "max_messages": 1, "wait_ms": 30_000}
    frames = b"".join(encode_request(number + 1, "pull", pull) for number in range(1_030))
    await client.send_bytes(frames)
    await host.sleep_ms(10)
    with trio.move_on_after(1):
        while True:
            await client.take()
    refused = [reply.error.name for reply in client.replies.values() if reply.error is not None]
    assert refused == ["queue_full"] * 6
    client.transport.close()
    await host.sleep_ms(10)
    assert host.connections == 0
    assert host.server.parts.broker.pulls.waiting == 0
    with pytest.raises(QueueFull):
        raise QueueFull("the same name on the wire")


async def test_a_request_of_unknown_operation_or_version_is_refused_and_the_connection_goes_on(boot: Boot) -> None:
    host, client = await boot.connected()
    assert await client.refused("sendd", {}) == "unknown_operation"
    assert await client.refused("hello", {"versions": [99], "client": "x"}) == "unsupported_version"
    assert await client.refused("hello", {"versions": "1", "client": "x"}) == "unsupported_version"
    hello = await client.request("hello", {"versions": [1, 99], "client": "x"})
    assert (hello["version"], hello["role"]) == (1, "server")
    assert hello["limits"]["frame_bytes_max"] == 16 << 20
    errors = host.status()["errors"]
    assert (errors["unknown_operation"], errors["unsupported_version"]) == (1, 2)


async def test_a_bug_in_one_handler_is_that_requests_error_only(boot: Boot) -> None:
    host = await boot.started()

    def broken(_connection: object, _request: object) -> None:
        raise ZeroDivisionError

    host.server.handlers.quick["ping"] = broken
    client = await host.client()
    with pytest.raises(DelayServerError) as error:
        await client.request("ping")
    assert error.value.name == "internal_error"
    await client.status()


async def test_requests_behind_the_close_of_files_are_refused_and_those_begun_before_raise_no_bug(boot: Boot) -> None:
    host = await boot.started()
    began, closed = trio.Event(), trio.Event()

    async def slow(_connection: object, _request: object) -> dict[str, Any]:
        began.set()
        await closed.wait()
        raise OSError("closed")

    handlers = host.server.handlers
    handlers.slow["lookup"] = slow
    client, other = await host.client(), await host.client()
    number = await client.ask("lookup", {})
    await began.wait()
    handlers.close()
    closed.set()
    with pytest.raises(StorageFailed):
        await client.reply(number)
    for operation in ("send", "pull", "ack", "nack", "status"):
        assert await other.refused(operation, {}) == "shutting_down", operation
    assert "internal_error" not in host.status()["errors"]
