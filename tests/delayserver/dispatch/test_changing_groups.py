"""A reload of a running server: every message goes once, to the groups, nodes and routes of the configuration of now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.front import BROKER
from delayserver.protocol.errors import ConfigInvalid, DiskFull
from store.errors import CorruptionError
from store.logs.schedule_log import ScheduleKey
from store.records.batches import I64, U32
from tests.delayserver.dispatch.test_broker_group import A_THEN_B, EACH_ITS_OWN, QUICK, TWO_GROUPS, put_many
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Host, fake_group, faked_settings, small_settings
from tests.fakes.network import FakeNetwork

A, B = TWO_GROUPS
ALL_TO_A, ALL_TO_B = (RouteSettings("*", ("fakeA",)),), (RouteSettings("*", ("fakeB",)),)


def numbers(host: Host, node: str) -> list[int]:
    """What a node has stored."""
    return sorted(int(text) for text in host.fake(node).texts)


async def test_messages_that_are_not_due_yet_follow_new_routes(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=(A,), routes=ALL_TO_A, dispatch=QUICK))
    due_ms = host.now_ms + 10_000
    await put_many(client, 100, due_ms, "b")
    await put_many(client, 100, due_ms, "a", first=100)
    await host.sleep_ms(500)
    assert await host.reload(groups=(A, B), routes=EACH_ITS_OWN) == [
        "group fakeB is new: fakeB:1 with the weight 1",
        "the routes are a* to fakeA, * to fakeB, were * to fakeA",
    ]
    await put_many(client, 100, due_ms, "b", first=200)
    await host.sleep_ms(11_000)
    await host.settled()
    assert numbers(host, "fakeA") == [*range(100, 200)]
    assert numbers(host, "fakeB") == [*range(100), *range(200, 300)]
    assert all(host.fake("fakeB").at_us[each] < due_ms * 1000 + 10_000 for each in host.fake("fakeB").stored)
    assert host.check_balance(pending=0)["delivered"] == 300


@pytest.mark.parametrize("refuses", [False, True])
async def test_messages_of_a_removed_group_go_to_the_group_in_its_place(boot: Boot, refuses: bool) -> None:
    dispatch = QUICK | {"queue_rows_max": 50, "batch_messages_max": 10}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=dispatch))
    server = host.server
    if refuses:
        host.fake("fakeA").refuse = lambda batch: np.ones(len(batch), dtype=bool)
    else:
        host.fake("fakeA").up = False
    await put_many(client, 300, host.now_ms, "a")
    await host.sleep_ms(2_000)
    rows = server.parts.dispatch.groups.first.rows
    assert rows.counters.dropped_from_memory and rows.rows_held
    assert (await host.reload(groups=(B,), routes=ALL_TO_B))[0] == "group fakeA is removed"
    await host.until(lambda: len(host.fake("fakeB").stored) == 300, within_ms=5_000)
    await host.settled()
    assert numbers(host, "fakeB") == [*range(300)] and not host.fake("fakeA").stored
    assert list((await client.status())["groups"]) == ["fakeB"]
    assert len(server.parts.state.residency.groups) == 3, "the others are those of timers and schedules"
    host.check_balance(pending=0)


async def test_a_batch_that_a_node_has_is_settled_there_and_the_reload_waits_for_it(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK))
    gate = host.fake("fakeA").gate = trio.Event()
    await put_many(client, 20, host.now_ms, "a")
    await host.until(lambda: bool(host.fake("fakeA").attempts))
    done: list[str] = []

    async def reload() -> None:
        done.extend(await host.reload(groups=(B,), routes=ALL_TO_B))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reload)
        await host.sleep_ms(1_000)
        await put_many(client, 20, host.now_ms, "a", first=20)
        await host.until(lambda: len(host.fake("fakeB").stored) == 20)
        assert not done and not host.fake("fakeA").stored
        gate.set()
    assert done
    await host.settled()
    assert numbers(host, "fakeA") == [*range(20)] and numbers(host, "fakeB") == [*range(20, 40)]
    host.check_balance(pending=0)


async def test_rows_that_were_left_alone_before_go_the_new_way(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK))
    server = host.server
    gather, bad = server.parts.files.schedule.gather, [True]

    def bad_sector(key: ScheduleKey, offsets: I64, lengths: U32) -> memoryview:
        if bad:
            raise CorruptionError("a file of the window", 4096, "4096 bytes cannot be read: Input/output error")
        return gather(key, offsets, lengths)

    server.parts.files.schedule.gather = bad_sector  # type: ignore[method-assign]
    await put_many(client, 20, host.now_ms, "a")
    await host.sleep_ms(500)
    bad.clear()
    await host.reload(groups=(B,), routes=ALL_TO_B)
    await host.until(lambda: numbers(host, "fakeB") == [*range(20)], within_ms=1_000)
    await host.sleep_ms(90_000)  # long enough for those that left them alone to look again
    assert host.died_of is None and numbers(host, "fakeB") == [*range(20)]
    host.check_balance(pending=0)


async def test_batches_that_come_back_to_a_group_without_room_are_delivered_when_there_is_some(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 5, "batch_messages_max": 5, "workers": 2}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=dispatch))
    server = host.server
    gate = host.fake("fakeA").gate = trio.Event()
    host.fake("fakeA").up = host.fake("fakeB").up = False
    for attempts in (1, 2):
        await put_many(client, 5, host.now_ms, "a", first=5 * attempts)
        await host.until(lambda: len(host.fake("fakeA").attempts) == attempts)  # noqa: B023
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: host.reload(groups=(B,), routes=ALL_TO_B))
        await host.sleep_ms(500)
        gate.set()
    await host.until(lambda: bool(server.parts.dispatch.groups.first.rows.counters.dropped_from_memory))
    host.fake("fakeB").up = True
    await host.until(lambda: numbers(host, "fakeB") == [*range(5, 15)])
    await host.balanced(pending=0)


@pytest.mark.parametrize("known", [True, False])
async def test_a_batch_that_fails_after_its_group_was_removed_goes_to_the_new_one(boot: Boot, known: bool) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK))
    server = host.server
    gate = host.fake("fakeA").gate = trio.Event()
    host.fake("fakeA").known_failures = known
    host.fake("fakeA").stores_before_failing = not known
    await put_many(client, 20, host.now_ms, "a")
    await host.until(lambda: bool(host.fake("fakeA").attempts))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: host.reload(groups=(B,), routes=ALL_TO_B))
        await host.sleep_ms(500)
        host.fake("fakeA").up = False
        gate.set()
    await host.until(lambda: len(host.fake("fakeB").stored) == 20)
    await host.settled()
    assert numbers(host, "fakeB") == [*range(20)]
    # Each has one node, and yet a message may be at both.
    assert server.parts.dispatch.groups.first.rows.counters.maybe_delivered_twice == (0 if known else 20)
    host.check_balance(pending=0)


async def test_rows_that_another_group_stood_in_for_go_the_new_way(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 50, "batch_messages_max": 10, "workers": 2}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=A_THEN_B, dispatch=dispatch))
    host.fake("fakeA").up = False
    gate = host.fake("fakeB").gate = trio.Event()
    await put_many(client, 200, host.now_ms, "a")
    await host.until(lambda: bool(host.fake("fakeB").attempts))
    groups, routes = (fake_group("fakeC"), B), (RouteSettings("a*", ("fakeC",)), RouteSettings("*", ("fakeB",)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: host.reload(groups=groups, routes=routes))
        await host.sleep_ms(500)
        host.fake("fakeB").up = False
        gate.set()
    await host.until(lambda: len(host.fake("fakeC").stored) == 200, within_ms=5_000)
    await host.settled()
    assert numbers(host, "fakeC") == [*range(200)] and not host.fake("fakeB").stored
    host.check_balance(pending=0)


async def test_a_window_that_is_read_while_the_routes_change_is_read_for_the_new_ones(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 20, "batch_messages_max": 5, "workers": 1}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=dispatch))
    server = host.server
    group = server.parts.dispatch.groups.first
    host.fake("fakeA").up = False
    await put_many(client, 30, host.now_ms, "a")
    await host.until(lambda: group.rows.failing and bool(group.rows.spilled))
    reading, go_on = trio.Event(), trio.Event()

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        done = work()
        if name == "_read_from":
            reading.set()
            await go_on.wait()
        return done

    host.workers.around = slow
    host.fake("fakeA").up = True  # so that the rest is read back
    with trio.fail_after(60):
        await reading.wait()
    host.fake("fakeA").up = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: host.reload(groups=(B,), routes=ALL_TO_B))
        await host.sleep_ms(500)
        go_on.set()
    await host.until(lambda: len([*numbers(host, "fakeA"), *numbers(host, "fakeB")]) == 30)
    await host.settled()
    assert sorted([*numbers(host, "fakeA"), *numbers(host, "fakeB")]) == [*range(30)]
    host.check_balance(pending=0)


async def test_rows_that_cannot_be_read_after_their_route_changed_are_tried_again_for_the_new_group(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK))
    reading, go_on = trio.Event(), trio.Event()

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        if name == "read_batch" and not go_on.is_set():
            reading.set()
            await go_on.wait()
            raise CorruptionError("a file of the window", 4096, "4096 bytes cannot be read: Input/output error")
        return work()

    host.workers.around = slow
    for number in range(100):  # so much that it is read in a thread
        await client.put(str(number).zfill(4_000), host.now_ms + 100, subject="a")
    with trio.fail_after(60):
        await reading.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: host.reload(groups=(B,), routes=ALL_TO_B))
        await host.sleep_ms(200)
        go_on.set()
    assert not host.fake("fakeB").stored
    await host.until(lambda: len(host.fake("fakeB").stored) == 100, within_ms=70_000)
    await host.settled()
    assert numbers(host, "fakeB") == [*range(100)]
    host.check_balance(pending=0)


async def test_nodes_come_and_go_and_a_node_that_left_gets_nothing(boot: Boot) -> None:
    groups = (fake_group("g", "fakeA", "fakeB"),)
    host, client = await boot.connected(
        small_settings(groups=groups, routes=(RouteSettings("*", ("g",)),), dispatch=QUICK)
    )

    async def send(count: int, first: int) -> None:
        for number in range(first, first + count):
            await client.put(str(number), host.now_ms)
            await host.sleep_ms(20)
        await host.settled()

    await send(20, 0)
    assert len(host.fake("fakeA").stored) == len(host.fake("fakeB").stored) == 10
    changes = await host.reload(groups=(fake_group("g", "fakeC", "fakeB"),))
    assert changes == ["group g: fakeA:1 is removed", "group g: fakeC:1 is new, with the weight 1"]
    await send(20, 20)
    assert len(host.fake("fakeA").stored) == 10
    assert len(host.fake("fakeB").stored) == len(host.fake("fakeC").stored) + 10 == 20
    nodes = (await client.request("route", {"group": "g"}))["nodes"]
    assert [node["address"] for node in nodes] == ["fakeC:1", "fakeB:1"]
    host.check_balance(pending=0)


async def test_the_connection_to_a_node_that_left_is_closed_and_another_one_made_when_it_is_back(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = boot(small_settings(), name="node", role=BROKER, network=network, clock=clock)
    remote = GroupSettings("g", (NodeSettings("node:1"), NodeSettings()))
    here = replace(remote, nodes=(NodeSettings(),))
    routes = (RouteSettings("*", ("g",)),)
    host = boot(small_settings(groups=(remote,), routes=routes, dispatch=QUICK), network=network, clock=clock)
    await node.start()
    client = await host.start_connected()
    for number in range(4):
        await client.put(str(number), host.now_ms)
        await host.sleep_ms(50)
    assert node.connections == 1
    await host.reload(groups=(here,))
    await host.until(lambda: node.connections == 0)
    await host.reload(groups=(remote,))
    for number in range(4, 8):
        await client.put(str(number), host.now_ms)
        await host.sleep_ms(50)
    at_node = await (await node.client()).pull()
    assert len(at_node) + len(await client.pull()) == 8 and len(at_node) == 4
    await host.balanced(pending=0)


async def test_a_group_that_was_removed_may_come_back(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK))
    for round_ in range(3):
        await put_many(client, 10, host.now_ms + 2_000, "a", first=10 * round_)
        await host.reload(groups=(B,), routes=ALL_TO_B)
        await host.reload(groups=TWO_GROUPS, routes=EACH_ITS_OWN)
    await host.sleep_ms(3_000)
    await host.settled()
    assert numbers(host, "fakeA") == [*range(30)]
    host.check_balance(pending=0)


async def test_a_refused_reload_changes_nothing(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=(A,), routes=ALL_TO_A, dispatch=QUICK))
    with pytest.raises(ConfigInvalid, match=r"storage\.window_ms: cannot change"):
        await host.reload(groups=(B,), routes=ALL_TO_B, storage=replace(host.settings.storage, window_ms=30_000))
    host.disk.capacity_bytes = host.disk.used_bytes
    with pytest.raises(DiskFull):
        await host.reload(groups=(A, fake_group("n" * 5_000, "fakeN")), routes=ALL_TO_A)
    host.disk.capacity_bytes = None
    assert list((await client.status())["groups"]) == ["fakeA"]
    assert await host.reload() == []
    await client.put("1", host.now_ms)
    await host.until(lambda: numbers(host, "fakeA") == [1])


async def test_a_reload_ends_although_its_caller_has_gone(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK))
    gate = host.fake("fakeA").gate = trio.Event()
    await put_many(client, 20, host.now_ms, "a")
    await host.until(lambda: bool(host.fake("fakeA").attempts))
    with trio.move_on_after(0.2):
        await host.reload(groups=(B,), routes=ALL_TO_B)
    gate.set()
    await host.until(lambda: len(host.server.parts.state.residency.groups) == 3)
    assert await host.reload() == []


async def test_a_restart_knows_the_messages_of_a_group_that_is_gone(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    await put_many(client, 20, host.now_ms + 5_000, "a")
    await host.reload(groups=(B,), routes=ALL_TO_B)
    await host.restart_killed()
    await host.sleep_ms(6_000)
    await host.settled()
    assert numbers(host, "fakeB") == [*range(20)]
    host.check_balance(pending=0)
