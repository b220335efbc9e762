"""The lag of a group has all messages that it has still to get, in every step. Some of them wait in the delay pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from store.tables import checkpoint
from tests.fakes.host import DATA_DIR, Boot, Client, Host, small_settings

MINUTE_MS = 60_000


class Watch(trio.abc.Instrument):
    """Looks at the lag of the group `g` of the subject `s` after every step of every task."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.unacked: int | None = None
        self.wrong: list[tuple[int, int]] = []
        self.looks = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.unacked is not None and (lag := lag_of(self._host)) != self.unacked:
            self.wrong.append((self._host.now_ms, lag))
        self.looks += 1


def lag_of(host: Host) -> int:
    """The lag as the broker and the counts have it in this step."""
    parts = host.server.parts
    [key] = parts.broker.core.group_rows.keys((0, 0), 0, 2)
    [backlog] = parts.broker.core.group_rows.backlogs([key])
    return backlog.lag + parts.state.balance.subjects.redeliveries.waiting(key)


@contextmanager
def watched(host: Host) -> Iterator[Watch]:
    watch = Watch(host)
    trio.lowlevel.add_instrument(watch)
    try:
        yield watch
    finally:
        trio.lowlevel.remove_instrument(watch)
    assert watch.looks > 100 and not watch.wrong[:5]


async def started(boot: Boot, **parts: Any) -> tuple[Host, Client]:
    host = await boot.started(small_settings(**parts))
    return host, await host.client()


async def arrived(host: Host, client: Client, count: int) -> int:
    due_ms = host.now_ms
    await client.send(*[{"subject": "s", "body": f"{number}", "due_ms": due_ms} for number in range(count)])
    await host.sleep_ms(200)
    return due_ms


async def nack(client: Client, messages: list[dict[str, Any]], delay_ms: int | None = None) -> None:
    for message in messages:
        arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"], "delay_ms": delay_ms}
        await client.request("nack", arguments)


async def ack(client: Client, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        await client.request("ack", {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]})


async def shown(client: Client) -> dict[str, Any]:
    """The group as all operations show it."""
    row: dict[str, Any] = (await client.request("groups"))["groups"][0]
    assert await client.request("group", {"subject": "s", "group": "g"}) == row
    metrics = await client.request("metrics")
    [figures] = metrics["consumer_groups"]
    assert figures == {name: row[name] for name in figures}
    assert metrics["broker"]["redeliveries_waiting"] == (await client.status())["broker"]["redeliveries_waiting"]
    return row


async def test_nothing_is_missing_in_any_step_of_a_nack_and_its_redelivery(boot: Boot) -> None:
    host, client = await started(boot)
    await arrived(host, client, 8)
    messages = await client.pull(max_messages=8)
    with watched(host) as watch:
        watch.unacked = 8
        await nack(client, messages, delay_ms=5_000)
        await host.sleep_ms(10_000)
        again = await client.pull(max_messages=8)
        assert len(again) == 8
        await nack(client, again, delay_ms=0)
        await host.sleep_ms(1_000)
        last = await client.pull(max_messages=8)
        assert len(last) == 8
        watch.unacked = None
    await ack(client, last)
    assert (await shown(client))["lag"] == 0


async def test_nothing_is_missing_in_any_step_of_the_end_of_leases(boot: Boot) -> None:
    host, client = await started(boot)
    await arrived(host, client, 6)
    with watched(host) as watch:
        assert len(await client.pull(max_messages=6, ack_timeout_ms=1_000)) == 6
        watch.unacked = 6
        await host.sleep_ms(1_700)
        assert (await shown(client))["retrying"] == 6, "between the end of the lease and the redelivery"
        await host.sleep_ms(20_000)
        watch.unacked = None


async def test_a_redelivery_is_as_old_as_its_message(boot: Boot) -> None:
    host, client = await started(boot)
    due_ms = await arrived(host, client, 1)
    for pause_ms in (10_000, 20_000, 40_000):
        await nack(client, await client.pull(), delay_ms=pause_ms)
        waiting = await shown(client)
        assert (waiting["lag"], waiting["retrying"], waiting["leased"]) == (1, 1, 0)
        assert due_ms - 1_000 <= waiting["oldest_ms"] <= due_ms + 100
        await host.sleep_ms(pause_ms + 500)
        again = await shown(client)
        assert (again["lag"], again["retrying"]) == (1, 0)
        assert due_ms - 1_000 <= again["oldest_ms"] <= due_ms + 100


async def test_an_old_redelivery_behind_a_younger_one_is_the_oldest(boot: Boot) -> None:
    host, client = await started(boot)
    old_ms = await arrived(host, client, 1)
    await nack(client, await client.pull(), delay_ms=30_000)
    await host.sleep_ms(20_000)
    await arrived(host, client, 1)
    await nack(client, await client.pull(), delay_ms=5_000)
    await host.sleep_ms(15_000)
    both = await client.pull(max_messages=2)
    assert [message["body"] for message in both] == [b"0", b"0"] and len(both) == 2
    row = await shown(client)
    assert (row["lag"], row["leased"], row["retrying"]) == (2, 2, 0)
    assert old_ms <= row["oldest_ms"] <= old_ms + 100
    await ack(client, both[1:])  # the old one came back last
    row = await shown(client)
    assert row["lag"] == 1 and row["oldest_ms"] > old_ms + 10_000


@pytest.mark.parametrize("end", ["stop", "kill", "lose_power"])
async def test_a_restart_knows_what_waits(boot: Boot, end: str) -> None:
    host, client = await started(boot, storage={"checkpoint_interval_ms": 500})
    due_ms = await arrived(host, client, 12)
    for life in range(1, 5):
        far, soon = await client.pull(max_messages=2)
        await nack(client, [far], delay_ms=5 * MINUTE_MS)
        await host.sleep_ms(1_000 if life % 2 else 150)
        await nack(client, [soon], delay_ms=100)  # it comes back, and its outcome lies behind the checkpoint
        await host.sleep_ms(300)
        await ack(client, await client.pull(max_messages=1))
        await host.settled()
        await getattr(host, end)()
        await host.start()
        redeliveries = host.server.parts.state.balance.subjects.redeliveries
        assert redeliveries.total() == life, "before anything is delivered"
        client = await host.client()
        await host.sleep_ms(500)
        await host.settled()
        row = await shown(client)
        assert (row["lag"], row["retrying"]) == (12 - life, life), "all but those that were acked"
        assert due_ms - 1_000 <= row["oldest_ms"] <= due_ms + 100


async def test_a_checkpoint_without_these_counts_has_them_counted_in_the_files(boot: Boot) -> None:
    host, client = await started(boot)
    await arrived(host, client, 5)
    messages = await client.pull(max_messages=5)
    await nack(client, messages[:3], delay_ms=MINUTE_MS)
    await ack(client, messages[3:])
    await host.stop()
    path = f"{DATA_DIR}/checkpoint"
    found = checkpoint.read(host.disk, path)
    assert found is not None and found.redeliveries is not None
    checkpoint.write(host.disk, path, replace(found, redeliveries=None))
    client = await host.start_connected()
    await host.until(lambda: host.server.parts.state.balance.subjects.is_counted)
    row = await shown(client)
    assert (row["lag"], row["retrying"]) == (3, 3)
    await host.sleep_ms(MINUTE_MS + 1_000)
    row = await shown(client)
    assert (row["lag"], row["retrying"]) == (3, 0)


async def test_dead_letters_that_are_sent_again_wait_as_well(boot: Boot) -> None:
    host, client = await started(boot)
    names = {"subject": "s", "group": "g"}
    await client.request("policy", names | {"set": {"attempts": 1}})
    await arrived(host, client, 2)
    await nack(client, await client.pull(max_messages=2))
    await client.request("dead_letters", names | {"action": "resend", "rate": 0.01})
    assert (await client.request("group", names))["lag"] == 2
    await host.sleep_ms(101_000)
    await ack(client, await client.pull(max_messages=2))
    assert (await client.request("group", names))["lag"] == 0
