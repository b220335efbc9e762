"""Clients that are not known, or greedy, take nothing from the others: places, memory, event-loop time.

On real sockets, but for the time: its turns are counted in simulated time."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from delayserver.config.settings import BrokerSettings, ListenSettings, MessageSettings
from delayserver.front.connection import FIRST_FRAME_BYTES_MAX
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import encode_request
from delayserver.server.delay_server import DelayServer
from delayserver.server.process import fewer_connections
from tests.delayserver.front.real import HELLO, NORMAL, Door, OneContext, Real, at_the_door
from tests.fakes.host import Boot, Client, Host, small_settings
from tests.fakes.network import FakeTransport

KIB = 1024
NOT_SHARED: dict[str, Any] = {"shared_networks": ()}
# A pool for some frames of 256 KiB.
SMALL_POOL: dict[str, Any] = {
    "frame_bytes_max": 256 * KIB,
    "memory_bytes_max": 1024 * KIB,
    "memory_bytes_each": 8 * KIB,
    "memory_bytes_of_client_max": 512 * KIB,
}


def message(size: int) -> dict[str, Any]:
    return {"messages": [{"subject": "s", "body": b"b" * size, "delay_ms": 3_600_000}]}


def frame(size: int) -> bytes:
    return encode_request(1, "send", message(size))


# -- places


async def test_one_address_cannot_take_all_places(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, connections_max=40, connections_of_client_max=20, **NOT_SHARED) as door:
        crowd = await door.crowd(60, encode_request(1, "ping", {}))
        assert "server_us" in await (await door.connect(NORMAL)).request("ping")
        assert await crowd[-1].ended() == "too_many_connections"
        assert "server_us" in await crowd[0].reply()


async def test_connections_without_a_request_give_way_to_new_ones(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, connections_max=40, connections_new_max=10) as door:
        first = await door.connect()
        await first.request("ping")
        crowd = await door.crowd(100)
        assert "server_us" in await (await door.connect()).request("ping")
        assert "server_us" in await first.request("ping")
        assert await crowd[0].ended() == "too_many_connections"
        assert door.server.connections.open <= 15


async def test_clients_with_a_token_have_places_beside_any_number_without(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, connections_max=40, connections_new_max=10) as door:
        token = await door.token()
        client = await door.connect()
        await client.request("hello", HELLO | {"token": token})
        crowd = await door.crowd(100, encode_request(1, "hello", HELLO))
        fresh = await door.connect()
        for each in (client, fresh):
            assert (await each.request("hello", HELLO | {"token": token}))["roles"] == ["admin"]
        assert door.server.connections.open <= 15
        for each in crowd:
            await each.stream.aclose()


async def test_one_token_cannot_take_all_places(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, connections_of_client_max=10) as door:
        token = await door.token()
        admin = await door.connect()
        await admin.request("hello", HELLO | {"token": token})
        other = (await admin.request("token", {"action": "create", "roles": ["send"]}))["token"]
        greedy = [await door.connect() for _ in range(9)]
        for each in greedy:
            await each.request("hello", HELLO | {"token": token})
        late = await door.connect()
        assert await late.refused("hello", HELLO | {"token": token}) == "too_many_connections"
        assert (await late.request("hello", HELLO | {"token": other}))["roles"] == ["send"]
        await greedy[0].stream.aclose()
        await door.until(lambda: door.server.connections.open == 10)
        again = await door.connect()
        assert (await again.request("hello", HELLO | {"token": token}))["roles"] == ["admin"]


def test_with_fewer_descriptors_one_client_still_leaves_places_to_others() -> None:
    listen = fewer_connections(ListenSettings(), 100)
    assert (listen.connections_max, listen.connections_of_client_max, listen.connections_new_max) == (100, 25, 12)


async def spoke_in_time(client: Real) -> bool:
    """Whether the server has a request of the client before the client's time is over. A stall of the machine takes it."""
    try:
        await client.request("ping")
    except (DelayServerError, OSError, trio.BrokenResourceError):
        return False
    return True


@pytest.mark.parametrize("secured", [False, True])
async def test_a_connection_without_a_request_ends(tmp_path: Path, secured: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async with at_the_door(tmp_path, OneContext(context) if secured else None, hello_timeout_ms=200) as door:
        crowd = [await door.connect() for _ in range(3)]
        # A stall of the machine takes their time, too.
        await crowd[0].pour(encode_request(1, "ping", {})[:-1])
        if secured:
            await crowd[1].pour(bytes.fromhex("1603010200010001"))  # the begin of a handshake
        else:
            speaks = await door.connect()
            while not await spoke_in_time(speaks):
                speaks = await door.connect()
        assert await crowd[2].ended() == ("" if secured else "frame_timeout")
        if not secured:
            assert await crowd[0].ended() == await crowd[1].ended() == "frame_timeout"
            assert "server_us" in await speaks.request("ping")
        await door.until(lambda: door.server.connections.open == (0 if secured else 1))


# -- memory


@pytest.mark.parametrize("short_by", [216, 256 * KIB - 20])
async def test_frames_that_one_client_does_not_finish_leave_room_to_others(tmp_path: Path, short_by: int) -> None:
    async with at_the_door(tmp_path, **SMALL_POOL, **NOT_SHARED) as door:
        data = frame(255 * KIB)
        crowd = await door.crowd(20, data[: len(data) - short_by])
        await door.until(lambda: door.server.connections.memory.frames_waiting >= 10)
        client = await door.connect()
        for _ in range(3):
            assert "results" in await client.request("send", message(70 * KIB))
        assert door.server.connections.memory.frames_waiting >= 10, "the others are still there"
        for each in crowd:
            await each.stream.aclose()


async def test_frames_that_come_slowly_give_way_where_an_address_has_many_clients(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, **SMALL_POOL) as door:
        crowd = await door.crowd(9, frame(255 * KIB)[:9_000])
        memory = door.server.connections.memory

        async def drip() -> None:
            while True:
                await trio.sleep(0.01)
                for each in crowd:
                    await each.pour(b"b")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            await door.until(lambda: memory.used_bytes > 700 * KIB)
            client = await door.connect()
            for _ in range(3):
                assert "results" in await client.request("send", message(100 * KIB))
            assert door.server.connections.open >= 10, "the others are still there"
            nursery.cancel_scope.cancel()


async def test_whole_frames_but_for_some_bytes_are_ended_when_others_wait(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, **SMALL_POOL, idle_frame_timeout_ms=3_000) as door:
        data = frame(255 * KIB)
        await door.crowd(20, data[:-216])
        await door.until(lambda: door.server.connections.memory.frames_waiting > 0)
        client = await door.connect()
        assert "results" in await client.request("send", message(250 * KIB))


async def test_without_a_token_a_frame_has_no_part_of_the_pool(tmp_path: Path) -> None:
    async with at_the_door(tmp_path, **SMALL_POOL) as door:
        token = await door.token()
        client = await door.connect()
        await client.request("hello", HELLO | {"token": token})
        data = frame(255 * KIB)
        crowd = await door.crowd(20, data[:-216])
        for each in crowd:
            assert await each.ended() in ("unauthenticated", "")
        assert door.server.connections.memory.used_bytes == 0
        assert "results" in await client.request("send", message(70 * KIB))


# -- what is read before a token


async def test_before_a_token_a_large_frame_is_refused_at_its_first_bytes(tmp_path: Path) -> None:
    async with at_the_door(tmp_path) as door:
        await door.token()
        stranger = await door.connect()
        await stranger.request("hello", HELLO)
        await stranger.stream.send_all(frame(FIRST_FRAME_BYTES_MAX)[:8])
        assert await stranger.ended() == "unauthenticated"


async def test_a_large_request_may_follow_hello_at_once(tmp_path: Path) -> None:
    async with at_the_door(tmp_path) as door:
        token = await door.token()
        client = await door.connect()
        hello = encode_request(1, "hello", HELLO | {"token": token})
        await client.stream.send_all(hello + frame(300 * KIB) + encode_request(2, "ping", {}))
        assert (await client.reply())["roles"] == ["admin"]
        assert {"results", "server_us"} == {*(await client.reply()), *(await client.reply())} & {"results", "server_us"}


async def test_a_client_of_a_server_that_gets_its_first_token_needs_one(tmp_path: Path) -> None:
    async with at_the_door(tmp_path) as door:
        before, half = await door.connect(), await door.connect()
        await before.request("send", message(70 * KIB))
        await half.stream.send_all(frame(70 * KIB)[:5_000])
        await door.until(lambda: door.server.connections.memory.used_bytes > 0)
        token = await door.token()
        assert await half.ended() == "unauthenticated"
        assert await before.refused("send", message(1)) == "unauthenticated"
        await before.request("hello", HELLO | {"token": token})
        assert "results" in await before.request("send", message(70 * KIB))


# -- event-loop time


RECEIPTS = {"receipts": ["r"] * 2_000}
"""A request of many turns. Simulated time stands still meanwhile, so items alone decide what a turn costs."""
TURNS_MAX = 300
"""Beside one other client the request ends after some 120 turns. Beside thirty clients it would be more than 1,500."""


async def with_token(host: Host, token: str) -> Client:
    client = await host.client()
    await client.request("hello", HELLO | {"token": token})
    return client


async def until_taken(server: DelayServer, turns: int) -> int:
    """Waits until the server has given so many turns; how many it has given then."""
    for _ in range(10_000):
        if server.fair_turns.taken >= turns:
            return server.fair_turns.taken
        await trio.lowlevel.checkpoint()
    raise AssertionError("nobody takes turns")


async def drain(transport: FakeTransport) -> None:
    with suppress(ConnectionResetError):
        while await transport.receive():
            pass


async def pour_and_drain(transport: FakeTransport, data: bytes) -> None:
    """Send these bytes, and read all that is answered, up to the end of the connection."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, transport)
        await Client(transport).send_bytes(data)


async def test_requests_without_a_token_share_the_time_of_one_client(boot: Boot, nursery: trio.Nursery) -> None:
    host = boot(small_settings())
    server = await host.start()
    made = await (await host.client()).request("token", {"action": "create", "roles": ["admin"]})
    normal = await with_token(host, made["token"])
    noise = encode_request(1, "send", {"messages": [{}]}) * 5_000
    for stranger in [await host.client() for _ in range(30)]:
        nursery.start_soon(pour_and_drain, stranger.transport, noise)
    before = await until_taken(server, 10)
    await normal.request("lookup", RECEIPTS)
    assert server.fair_turns.taken - before < TURNS_MAX
    assert len(server.fair_turns.shares) >= 20, "the others still ask"


async def test_a_token_with_many_connections_gets_the_turns_of_one_client(boot: Boot) -> None:
    host, operator = await boot.connected(small_settings())
    server = host.server
    admin = (await operator.request("token", {"action": "create", "roles": ["admin"]}))["token"]
    normal = await with_token(host, admin)
    look = (await normal.request("token", {"action": "create", "roles": ["look"]}))["token"]
    greedy = [await with_token(host, look) for _ in range(30)]
    asked = [await client.ask("lookup", RECEIPTS) for client in greedy]
    before = await until_taken(server, 10)
    await normal.request("lookup", RECEIPTS)
    assert server.fair_turns.taken - before < TURNS_MAX
    for client, number in zip(greedy, asked, strict=True):
        await client.reply(number)
    server.fair_turns.shares.check_invariants()


# -- names


async def test_one_token_cannot_take_the_names_of_all(tmp_path: Path) -> None:
    parts = {"message": MessageSettings(subjects_max=40, tags_max=40), "broker": BrokerSettings(groups_max=40)}
    async with at_the_door(tmp_path, parts=parts) as door:
        token = await door.token()
        admin = await door.connect()
        await admin.request("hello", HELLO | {"token": token})
        greedy, other = await door.connect(), await door.connect()
        for client, roles in ((greedy, ["send", "consume"]), (other, ["send", "consume"])):
            made = await admin.request("token", {"action": "create", "roles": roles})
            await client.request("hello", HELLO | {"token": made["token"]})

        def row(name: str) -> dict[str, Any]:
            return {"subject": name, "tag": name, "body": "b", "delay_ms": 0}

        async def sent(client: Real, names: list[str], **same: str) -> list[str]:
            rows = [row(name) | same for name in names]
            results = (await client.request("send", {"messages": rows}))["results"]
            return [each.get("error", "") for each in results]

        async def joined(client: Real, group: str) -> str:
            try:
                await client.request("pull", {"subject": "first", "group": group, "wait_ms": 0})
            except DelayServerError as error:
                return error.name
            return ""

        assert await sent(greedy, ["first"]) == [""]
        names = [f"n{number}" for number in range(20)]
        assert await sent(greedy, names, tag="first") == [""] * 9 + ["subjects_full"] * 11
        assert await sent(greedy, ["n30"], tag="first") == ["subjects_full"]
        assert await sent(greedy, ["first"] * 20, subject="first") == [""] * 20
        results = [await sent(greedy, ["first"], tag=name) for name in names]
        assert results == [[""]] * 9 + [["tags_full"]] * 11
        assert [await joined(greedy, name) for name in names] == [""] * 10 + ["groups_full"] * 10
        assert await sent(greedy, ["n3"], tag="n3") == [""], "known names go on"
        assert await sent(other, ["other"]) == [""]
        assert await joined(other, "other") == ""


async def test_a_restart_does_not_give_a_token_its_names_again(tmp_path: Path) -> None:
    parts = {"message": MessageSettings(subjects_max=400)}

    async def sent(door: Door, names: list[str]) -> list[str]:
        client = await door.connect()
        await client.request("hello", HELLO | {"token": token})
        rows = [{"subject": name, "body": "b", "delay_ms": 0} for name in names]
        return [each.get("error", "") for each in (await client.request("send", {"messages": rows}))["results"]]

    async with at_the_door(tmp_path, parts=parts) as door:
        token = await door.token()
        assert await sent(door, [f"n{number}" for number in range(70)]) == [""] * 70
    async with at_the_door(tmp_path, parts=parts) as door:
        assert await sent(door, [f"m{number}" for number in range(50)]) == [""] * 30 + ["subjects_full"] * 20
        assert await sent(door, ["n3", "m3"]) == ["", ""], "known names go on"


# -- the end of connections


async def test_connections_with_many_waiting_pulls_end_while_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pulls = b"".join(
        encode_request(number, "pull", {"subject": "s", "group": "g", "wait_ms": 600_000}) for number in range(1, 1_001)
    )

    async with at_the_door(tmp_path, parts={"broker": BrokerSettings(wait_ms_max=600_000)}) as door:
        client = await door.connect()
        due = {"messages": [{"subject": "s", "body": b"b", "delay_ms": 0}]}
        await client.request("send", due)
        service = door.server.parts.broker.pulls
        crowd = await door.crowd(4, pulls)
        await door.until(lambda: service.waiting == 3_999)
        for each in crowd:
            await each.stream.aclose()
        seen = []
        while service.waiting:
            await client.request("ping")
            seen.append(service.waiting)
        assert len([waiting for waiting in seen if waiting]) >= 10, "a client is answered in between"
        service.check_invariants()
        # All that was pipelined, and the end right behind it.
        for each in await door.crowd(4, pulls):
            await each.stream.aclose()
        await door.until(lambda: door.server.connections.open == 1)
        assert "internal_error" not in door.server.connections.errors
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
