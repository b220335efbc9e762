"""From the release of a row to the consumer's ack: orders of events that the simulation does not draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.connection import Connection
from delayserver.front.front import BROKER
from delayserver.load.window_reader import WindowRows
from delayserver.net.transport import connect_socket
from delayserver.protocol.frames import RequestFrame
from delayserver.state.memory.group_rows import GroupRows
from store.tables.names import SUBJECT
from tests.delayserver.dispatch.test_broker_group import A_THEN_B, QUICK, TWO_GROUPS, put_many
from tests.delayserver.targets.test_remote_node import pair
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, faked_settings, small_settings
from tests.fakes.network import FakeNetwork
from wheel.due_rows import DueRows
from wheel.keys import Key


async def test_a_subject_that_a_node_has_no_room_for_does_not_hold_up_the_others(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = boot(small_settings(message={"subjects_max": 1}), name="node", role=BROKER, network=network, clock=clock)
    group, routes = GroupSettings("remote", (NodeSettings("node:1"),)), (RouteSettings("*", ("remote",)),)
    server = boot(small_settings(groups=(group,), routes=routes, dispatch=QUICK), network=network, clock=clock)
    await node.start()
    client = await server.start_connected()
    await client.put("known", server.now_ms, subject="a")
    await server.until(lambda: server.status()["delivered"] == 1)
    refused = (await client.put("refused", server.now_ms, subject="b"))["receipt"]
    await server.sleep_ms(500)
    fine = (await client.put("fine", server.now_ms, subject="a"))["receipt"]
    await server.sleep_ms(100)
    assert await client.lookup(refused, fine) == ["retrying", "delivered"]
    await server.sleep_ms(60_000)
    (remote,) = server.server.parts.dispatch.groups
    assert remote.rows.counters.attempts_failed < 400
    due_ms = server.now_ms + 100
    together = [(await client.put(subject, due_ms, subject=subject))["receipt"] for subject in "abab"]
    await server.sleep_ms(200)
    assert await client.lookup(*together) == ["delivered", "retrying"] * 2
    assert await client.cancel(refused, together[1]) == ["cancelled"] * 2
    await server.sleep_ms(1_000)
    server.check_balance(pending=1)


async def test_many_rows_that_a_node_does_not_take_leave_memory_and_are_tried_again(boot: Boot) -> None:
    host = boot(faked_settings(dispatch=QUICK, wheel={"rows_max": 400}))
    server = await host.start()
    client, fake = await host.client(), host.fake()
    fake.refuse = lambda batch: batch.sequence <= 200
    await put_many(client, 200, host.now_ms, "s")
    held = []
    for _ in range(300):
        await host.sleep_ms(10)
        held.append(server.parts.state.residency.rows_held)
    assert min(held) <= 50, held
    assert len(fake.attempts) < 100
    await put_many(client, 300, host.now_ms, "s")
    await host.sleep_ms(200)
    assert len(fake.stored) == 300
    fake.refuse = None
    await host.until(lambda: len(fake.stored) == 500, within_ms=5_000)
    await host.settled()
    assert len(set(fake.stored)) == 500
    host.check_balance(pending=0)


async def test_a_dead_group_with_many_rows_that_wait_does_not_take_the_event_loop(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were all looked through for a stand-in at every pause, subject by subject, in one step of tenths of a second."""
    host, client = await boot.connected(
        small_settings(
            groups=TWO_GROUPS, routes=A_THEN_B, dispatch=QUICK | {"deliver_timeout_ms": 2_000, "batch_messages_max": 50}
        )
    )
    server = host.server
    host.fake("fakeA").up = host.fake("fakeB").up = False
    due_ms = host.now_ms + 100
    await client.send(*[{"subject": f"a{number}", "body": "m", "due_ms": due_ms} for number in range(1_000)])
    await host.sleep_ms(3_000)
    dead = max(server.parts.dispatch.groups, key=lambda group: len(group.rows.queue))
    names = ("fakeA", "fakeB")
    down, other = sorted(map(host.fake, names), key=lambda fake: fake is not dead.nodes[0].target)
    assert dead.rows.failing and len(dead.rows.queue) > 900
    looked: list[int] = []
    take, match = dead.rows.queue.take, server.parts.state.routes.match

    def counting(rows_max: int, bytes_max: int, *, backlog: bool = True) -> DueRows | None:
        rows = take(rows_max, bytes_max, backlog=backlog)
        looked.append(0 if rows is None else len(rows))
        return rows

    def matching(subject: str) -> RouteSettings | None:
        looked.append(1)
        return match(subject)

    monkeypatch.setattr(dead.rows.queue, "take", counting)
    monkeypatch.setattr(server.parts.state.routes, "match", matching)
    down.gate = trio.Event()
    await host.sleep_ms(1_000)
    assert sum(looked) <= 20_000, sum(looked)
    other.up = True
    await host.until(lambda: len(other.stored) >= 900, within_ms=5_000)


async def test_a_queue_from_which_some_rows_went_to_a_fallback_is_not_looked_through_again_at_once(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a trickle of rows that have one, those that have none were gone through again and again without a rest."""
    host = boot(faked_settings(dispatch=QUICK))
    server = await host.start()
    looks: list[int] = []

    def some_went(_group: GroupRows) -> Iterator[int]:
        looks.append(host.now_ms)
        yield 1

    monkeypatch.setattr(server.parts.state.queueing, "fail_over", some_went)
    host.fake().up = False
    await put_many(await host.client(), 20, host.now_ms, "s")
    await host.until(lambda: bool(looks))
    await host.sleep_ms(1_000)
    assert 5 <= len(looks) <= 12


def test_an_impossible_host_name_is_a_failed_connection() -> None:
    """Anything else than an OSError ended the server with the first message for that node."""
    with pytest.raises(OSError, match="no name of a host"):
        trio.run(connect_socket, "a..b:20801")


async def test_an_answer_of_a_node_that_is_no_outcome_does_not_count_as_delivered(boot: Boot) -> None:
    server, node = await pair(boot)
    client = await server.client()
    deliver, bad = node.server.handlers.slow["deliver"], [True]

    async def answering(connection: Connection, request: RequestFrame) -> dict[str, Any] | None:
        answer = await deliver(connection, request)
        return {"outcome": 0} if bad else answer

    node.server.handlers.slow["deliver"] = answering
    receipt = (await client.put("m", server.now_ms))["receipt"]
    await server.sleep_ms(1_000)
    assert await client.lookup(receipt) == ["retrying"]
    bad.clear()
    await server.sleep_ms(2_000)
    assert await client.lookup(receipt) == ["delivered"]


async def test_rows_for_which_a_fallback_group_has_no_room_are_not_read_again_and_again(boot: Boot) -> None:
    """With short memory each group keeps its share; what a stand-in lost of it came back to the first group, and so on."""
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=A_THEN_B, dispatch=QUICK | {"workers": 1}, wheel={"rows_max": 24})
    )
    server = host.server
    host.fake("fakeA").up = False
    host.fake("fakeB").gate = trio.Event()
    await client.send(*[{"subject": "a", "body": "m", "due_ms": host.now_ms + 100} for _ in range(200)])
    reads: list[int] = []
    read = server.parts.load.window_reader.read

    def counting(
        window_ms: int, ends: Mapping[str, int], from_key: Key, to_key: Key, rows_max: int | None = None
    ) -> WindowRows:
        reads.append(window_ms)
        assert len(reads) < 300, "the same window again and again"
        return read(window_ms, ends, from_key, to_key, rows_max)

    server.parts.load.window_reader.read = counting  # type: ignore[method-assign]
    await host.sleep_ms(3_000)
    gate, host.fake("fakeB").gate = host.fake("fakeB").gate, None
    assert gate is not None
    gate.set()
    await host.until(lambda: len(set(host.fake("fakeB").stored)) == 200, within_ms=60_000)
    host.check_balance()


@pytest.mark.parametrize("columns", [False, True])
async def test_new_subjects_of_a_send_share_one_sync_and_one_that_is_refused_stands_alone(
    boot: Boot, columns: bool
) -> None:
    host, client = await boot.connected(faked_settings(message={"subjects_max": 60}))
    await client.put("m", host.now_ms + 60_000)
    room = 60 - host.server.parts.files.names.count(SUBJECT)
    subjects = [f"new-{number}" for number in range(room + 5)]
    subjects[3] = "control\n"
    syncs = host.disk.counts["datasync"]
    if columns:
        sent = await client.request(
            "send",
            {
                "count": len(subjects),
                "due_ms": host.now_ms + 60_000,
                "subjects": subjects,
                "subject_index": np.arange(len(subjects), dtype=np.uint32).tobytes(),
                "bodies": b"x" * len(subjects),
                "body_length": 1,
            },
        )
        refused = {index: name for index, name, _, _ in sent["rejected"]}
    else:
        results = await client.send(
            *[{"subject": subject, "body": "x", "due_ms": host.now_ms + 60_000} for subject in subjects]
        )
        refused = {index: result["error"] for index, result in enumerate(results) if "error" in result}
    assert refused == {3: "subject_invalid"} | dict.fromkeys(range(room + 1, room + 5), "subjects_full")
    assert host.disk.counts["datasync"] - syncs <= 4
