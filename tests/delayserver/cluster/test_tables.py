"""Policies are the same on all members of a shard: a change comes out of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from delayserver.broker.files.policies_file import read_policies
from delayserver.protocol.errors import DelayServerError, InDoubt
from store.tables.stored_tokens import read_tokens
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Host, small_settings, texts

POLICY = {"subject": "s", "group": "g"}


def tokens_of(host: Host) -> list[str]:
    """The names of the tokens in the file of a member, or `none` without one."""
    path = host.settings.storage.data_dir
    found = read_tokens(host.disk, path, host.server.parts.opened.directory.server_id)
    return ["none"] if found is None else [token.name for token in found]


def attempts_of(host: Host) -> list[int | None]:
    """The attempts that policies allow, in the file of a member."""
    path = f"{host.settings.storage.data_dir}/broker"
    found = read_policies(host.disk, path, host.server.parts.opened.directory.server_id)
    assert found.damage is None
    return [row.policy.attempts for row in found.rows.values()]


def hang_replay(host: Host) -> trio.Event:
    """What the replay of a member places takes until this is set."""
    goes_on = trio.Event()

    async def hang(name: str, work: Callable[[], Any]) -> Any:
        if name == "_place":
            await goes_on.wait()
        return work()

    host.workers.around = hang
    return goes_on


async def test_a_change_is_in_force_on_all_members(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.request("policy", POLICY | {"set": {"attempts": 3}})
    await client.request("policy", POLICY | {"set": {"attempts": 4}})
    assert attempts_of(first) == [4], "the answer comes when it is in force"
    await first.sleep_ms(500)
    assert attempts_of(second) == [4]
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert (await other.request("policy", POLICY))["policy"]["attempts"] == 4
    await other.request("policy", POLICY | {"set": {"attempts": 5}})
    assert attempts_of(second) == [5]


async def test_a_standby_changes_no_table(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await first.start()
    second.begin()
    await second.sleep_ms(500)
    client = await second.client()
    for operation, asked in (
        ("policy", POLICY | {"set": {"attempts": 3}}),
        ("token", {"action": "create", "name": "one", "roles": ["admin"]}),
    ):
        with pytest.raises(DelayServerError):
            await client.request(operation, asked)
    assert (attempts_of(second), tokens_of(second)) == ([], ["none"])


async def test_a_change_that_did_not_come_back_is_in_doubt_and_nowhere_in_force(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.request("policy", POLICY | {"set": {"attempts": 3}})
    cluster.engine.logs[0].connect(False)
    asked = await client.ask("policy", POLICY | {"set": {"attempts": 4}})
    await first.sleep_ms(100)
    assert attempts_of(first) == [3]
    await second.wait_up()
    cluster.engine.logs[0].connect(True)
    with pytest.raises((InDoubt, ConnectionResetError)):
        await client.reply(asked)
    await first.wait_down()
    first.disk.kill()
    first.begin()
    await first.sleep_ms(1_000)
    assert attempts_of(first) == attempts_of(second) == [3]


async def test_a_filter_whose_puller_is_gone_is_in_force_with_its_policy(boot: Boot) -> None:
    cluster = Cluster(boot, "a", small_settings())
    first = cluster.hosts["a"]
    client = await first.start_connected()
    await client.request("publish", {"messages": [{"subject": "s", "body": "other", "tag": "other"}]})
    assert await client.pull(tags="before") == []
    goes_on = hang_replay(first)
    gone = await first.client()
    await gone.ask("pull", {"subject": "s", "group": "g", "max": 9, "tags": "wanted"})
    await first.sleep_ms(50)
    gone.transport.close()
    await first.sleep_ms(20)
    goes_on.set()
    await first.sleep_ms(20)
    for tag in ("before", "wanted"):
        await client.request("publish", {"messages": [{"subject": "s", "body": tag, "tag": tag}]})
    assert texts(await client.pull(tags="wanted")) == ["wanted"]


async def test_a_change_whose_caller_is_gone_stays_when_the_next_one_is_made(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    first = cluster.hosts["a"]
    client = await first.start_connected()
    goes_on = hang_replay(first)
    gone = await first.client()
    await gone.ask("policy", POLICY | {"set": {"attempts": 3}})
    await first.sleep_ms(50)
    gone.transport.close()
    await first.sleep_ms(20)
    asked = await client.ask("policy", {"subject": "t", "group": "g", "set": {"attempts": 7}})
    await first.sleep_ms(50)
    goes_on.set()
    await client.reply(asked)
    assert attempts_of(first) == [3, 7]


async def test_a_server_ends_while_a_change_waits_for_its_replay(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    first = cluster.hosts["a"]
    client = await first.start_connected()
    await client.request("policy", POLICY | {"set": {"attempts": 3}})
    first.disk.capacity_bytes = first.disk.used_bytes
    await client.ask("policy", POLICY | {"set": {"attempts": 4}})
    await first.sleep_ms(1_000)
    assert attempts_of(first) == [3]
    first.server.stop()
    await first.wait_down()


async def test_a_member_that_was_down_reads_the_tables_in_the_log(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.request("policy", POLICY | {"set": {"attempts": 3}})
    await first.sleep_ms(500)
    await second.lose_power(1)
    await client.request("policy", POLICY | {"set": {"attempts": 4}})
    await client.request("policy", {"subject": "t", "group": "g", "set": {"attempts": 7}})
    second.begin()
    await second.sleep_ms(1_000)
    assert attempts_of(second) == attempts_of(first) == [4, 7]
    policies = second.server.parts.broker.core.state.policies
    assert [row.policy.attempts for row in policies.rows.values()] == [4, 7]
