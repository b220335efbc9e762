"""From the release of a row to the consumer's ack: orders of events, and days, that the simulation does not draw."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from delayserver.broker.actions.presence import READ_TRIES
from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.front import BROKER
from delayserver.load.window_reader import WindowRows
from delayserver.net.transport import SocketListener, SocketTransport, connect_socket
from store.disk.filesystem import RealFileSystem, read_refusal
from store.errors import CorruptionError, SyncFailedError, UnreadableError
from store.logs.schedule_log import ScheduleKey
from store.records.batches import I64, U32
from tests.delayserver.broker.brokers import HOUR_US, NOW_US, SERVER, drain, messages, open_broker
from tests.delayserver.dispatch.test_broker_group import A_THEN_B, QUICK, TWO_GROUPS, put_many
from tests.delayserver.net.sockets import socket_of
from tests.delayserver.targets.test_remote_node import pair
from tests.fakes.clock import SimulatedClock
from tests.fakes.disk import FakeDisk, FakeFile
from tests.fakes.host import Boot, fake_group, faked_settings, small_settings, texts
from tests.fakes.network import FakeNetwork
from wheel.keys import Key


async def test_a_batch_of_many_windows_is_not_tried_to_its_end_on_a_node_that_hangs(boot: Boot) -> None:
    groups, routes = (fake_group("g", "fakeA", "fakeB"),), (RouteSettings("*", ("g",)),)
    host, client = await boot.connected(
        small_settings(groups=groups, routes=routes, dispatch=QUICK | {"deliver_timeout_ms": 1_000})
    )
    host.fake("fakeA").gate = trio.Event()
    now_ms = host.now_ms
    await client.send(*[{"subject": "s", "body": "m", "due_ms": now_ms - 60_000 * age} for age in range(60)])
    await host.until(lambda: len(set(host.fake("fakeB").stored)) == 60, within_ms=5_000)
    await host.settled()
    assert len(host.fake("fakeA").attempts) < 10
    host.check_balance(pending=0)


async def test_rows_of_a_fallback_group_that_dies_return_to_their_own_group(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=A_THEN_B, dispatch=QUICK))
    home, stand_in = host.fake("fakeA"), host.fake("fakeB")
    home.up = stand_in.up = False
    for number in range(20):
        await client.put(str(number), host.now_ms, subject="a")
    await host.until(lambda: len(stand_in.attempts) > 3)
    home.up = True
    await host.until(lambda: len(home.stored) == 20, within_ms=5_000)
    await host.balanced(pending=0)


async def test_acks_that_find_no_room_do_not_hold_up_the_outcomes_of_deliveries(boot: Boot) -> None:
    """The store has its room from when its segment was made; the progress log grows with every ack."""
    host, client = await boot.connected(small_settings())
    await client.put("first", host.now_ms)
    (first,) = await client.pull(wait_ms=1_000)
    host.disk.refuse = lambda operation, path: errno.ENOSPC * (operation == "pwrite" and path.endswith("/progress.log"))
    acked = {"subject": "s", "group": "g", "count": 1, "deliveries": first["delivery"].to_bytes(8, "little")}
    assert await client.refused("ack", acked) == "disk_full"
    sent = [(await client.put(str(number), host.now_ms))["receipt"] for number in range(10)]
    await host.sleep_ms(100)
    await host.settled()
    assert await client.lookup(*sent) == ["delivered"] * 10
    assert await client.refused("ack", acked) == "disk_full"


def test_the_kernel_watches_over_connections_whose_peer_may_be_gone_without_a_word() -> None:
    async def options() -> list[int]:
        listener = SocketListener(["127.0.0.1"], 0)
        ours = await connect_socket(f"127.0.0.1:{listener.address[1]}")
        theirs = await listener.accept()
        assert isinstance(ours, SocketTransport) and isinstance(theirs, SocketTransport)
        sockets = [socket_of(end) for end in (ours, theirs)]
        found = [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in sockets]
        found += [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in sockets]
        for end in (ours, theirs, listener):
            end.close()
        return found

    assert trio.run(options) == [1, 1, 20_000, 0]


async def test_the_disk_is_looked_at_while_nodes_do_not_hear(boot: Boot) -> None:
    names = [f"fake{number}" for number in range(8)]
    groups, routes = (fake_group("g", *names),), (RouteSettings("*", ("g",)),)
    host, client = await boot.connected(
        small_settings(groups=groups, routes=routes, storage={"free_bytes_min": 1 << 20})
    )
    await client.put("m", host.now_ms)
    await host.settled()
    for name in names:
        host.fake(name).slow_to_hear = trio.Event()
    await host.until(lambda: any(host.fake(name).asked_to_hear for name in names), within_ms=150_000)
    host.disk.capacity_bytes = host.disk.used_bytes
    await host.sleep_ms(500)
    assert host.server.parts.upkeep.housekeeping.disk_low


async def test_messages_due_together_reach_a_node_in_frames_within_its_bound(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    small: dict[str, Any] = {"listen": {"frame_bytes_max": 1 << 16}, "message": {"body_bytes_max": 1 << 14}}
    node = boot(small_settings(**small), name="node", role=BROKER, network=network, clock=clock)
    group, routes = GroupSettings("remote", (NodeSettings("node:1"),)), (RouteSettings("*", ("remote",)),)
    server = boot(small_settings(groups=(group,), routes=routes, **small), name="server", network=network, clock=clock)
    await node.start()
    client = await server.start_connected()
    due_ms = server.now_ms + 1_000
    for first in range(0, 200, 40):
        await put_many(client, 40, due_ms, "s", first=first)
        for _ in range(4):
            await client.put("x" * 10_000, due_ms)
    await server.sleep_ms(4_000)
    assert (await server.balanced(pending=0))["delivered"] == 220


def test_messages_stored_while_the_clock_was_far_ahead_do_not_keep_segments_for_years() -> None:
    broker = open_broker(FakeDisk())
    for batch in range(40):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US + (10 * 365 * 24 * HOUR_US if batch < 20 else 0))
    broker.arrivals.window_complete(SERVER, [60_000])
    drain(broker)
    assert broker.retention.retire(NOW_US + HOUR_US) == []
    assert broker.retention.retire(NOW_US + 3 * HOUR_US) != []
    assert len(broker.state.files.store.log.segments()) == 1


async def test_messages_whose_bytes_could_not_be_read_once_are_delivered_without_a_restart(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    gather, unreadable = server.parts.files.schedule.gather, [True]

    def bad_sector(key: ScheduleKey, offsets: I64, lengths: U32) -> memoryview:
        if unreadable:
            raise CorruptionError(
                server.parts.files.schedule.path(key), 4096, "4096 bytes cannot be read: Input/output error"
            )
        return gather(key, offsets, lengths)

    server.parts.files.schedule.gather = bad_sector  # type: ignore[method-assign]
    await put_many(client, 100, host.now_ms + 100, "s")
    await host.sleep_ms(1_000)
    assert not host.fake().stored
    unreadable.clear()
    await host.until(lambda: len(host.fake().stored) == 100, within_ms=70_000)
    await host.settled()
    assert len(set(host.fake().stored)) == 100
    host.check_balance(pending=0)


async def test_rows_that_left_memory_and_could_not_be_read_back_once_are_delivered_without_a_restart(
    boot: Boot,
) -> None:
    host, client = await boot.connected(
        faked_settings(dispatch=QUICK | {"queue_rows_max": 50, "batch_messages_max": 10})
    )
    server = host.server
    host.fake().up = False
    await put_many(client, 300, host.now_ms + 100, "s")
    await host.sleep_ms(1_000)
    read = server.parts.load.window_reader.read
    failed: list[int] = []

    def bad_sector(
        window_ms: int, ends: Mapping[str, int], from_key: Key, to_key: Key, rows_max: int | None = None
    ) -> WindowRows:
        if not failed:
            failed.append(window_ms)
            raise CorruptionError("a file of the window", 4096, "4096 bytes cannot be read: Input/output error")
        return read(window_ms, ends, from_key, to_key, rows_max)

    server.parts.load.window_reader.read = bad_sector  # type: ignore[method-assign]
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) == 300, within_ms=90_000)
    assert failed
    await host.settled()
    assert len(set(host.fake().stored)) == 300
    host.check_balance(pending=0)


def test_a_sync_beside_one_that_fails_does_not_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports an error once a file. Checkpoint and commit of a broker sync the same one, each in a thread."""
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    began = threading.Event()
    told: list[str] = []

    def fdatasync(_fd: int) -> None:
        if not told:
            told.append("the error")
            began.set()
            time.sleep(0.2)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with ThreadPoolExecutor(1) as pool:
        checkpoint = pool.submit(file.datasync)
        began.wait()
        with pytest.raises(SyncFailedError):
            file.datasync()
        with pytest.raises(SyncFailedError):
            checkpoint.result()


async def test_a_message_that_a_node_refuses_by_name_is_certainly_not_there(boot: Boot) -> None:
    """So it can be cancelled, it can expire, and where that is asked for it is dead-lettered and lets the others through."""
    network, clock = FakeNetwork(), SimulatedClock()
    node = boot(small_settings(message={"subjects_max": 1}), name="node", role=BROKER, network=network, clock=clock)
    group, routes = GroupSettings("remote", (NodeSettings("node:1"),)), (RouteSettings("*", ("remote",)),)
    settings = small_settings(groups=(group,), routes=routes, dispatch=QUICK | {"dead_letter_attempts": 3})
    server = boot(settings, name="server", network=network, clock=clock)
    await node.start()
    client = await server.start_connected()
    known = (await client.put("first", server.now_ms, subject="a"))["receipt"]
    await server.until(lambda: server.status()["delivered"] == 1)
    refused = (await client.put("refused", server.now_ms, subject="b"))["receipt"]
    await server.sleep_ms(3_000)
    await server.settled()
    assert await client.lookup(known, refused) == ["delivered", "dead_lettered"]
    server.check_balance(pending=0)


async def test_a_node_whose_store_takes_nothing_any_more_ends_so_that_a_restart_recovers_it(boot: Boot) -> None:
    server, node = await pair(boot)
    client = await server.client()
    node.disk.refuse = lambda operation, path: (
        errno.EIO
        * (  # neither written nor undone
            operation in ("pwrite", "write_through", "truncate") and "/broker/store/" in path
        )
    )
    await client.put("m", server.now_ms)
    await server.sleep_ms(2_000)
    assert node.died_of is not None
    node.disk.refuse = None
    node.disk.kill()
    await node.start()
    assert texts(await (await node.client()).pull(wait_ms=5_000)) == ["m"]


@pytest.mark.parametrize("bad", [200, 900])
def test_a_repeated_hand_off_looks_around_a_sector_that_cannot_be_read(
    bad: int, monkeypatch: pytest.MonkeyPatch, disk: FakeDisk
) -> None:
    """Raised from there it would end the server, and every next start, which asks again for what it may have delivered."""
    broker = open_broker(disk)
    for first in (1, 11, 21):
        broker.deliver(messages(first, 10), False, NOW_US)
    broker.durability.sync()
    path, pread = disk.files("/data/broker/store")[0], FakeFile.pread

    def bad_sector(file: FakeFile, offset: int, length: int) -> bytes:
        if file.path == path and offset <= bad < offset + length:
            raise read_refusal(OSError(errno.EIO, "Input/output error"), path, offset, length)
        return pread(file, offset, length)

    monkeypatch.setattr(FakeFile, "pread", bad_sector)
    for _ in range(READ_TRIES - 1):
        with pytest.raises(UnreadableError):  # nothing is stored: the disk may read it soon
            broker.deliver(messages(1, 10), True, NOW_US)
    outcomes = [broker.deliver(messages(first, 10), True, NOW_US).outcome.tolist() for first in (1, 11, 21)]
    hit = 0 if bad == 200 else 1
    assert outcomes == [[1 if place == hit else 2] * 10 for place in range(3)]
    assert any(path in text for text in broker.state.damages.texts)
