"""Tokens are those of all shards of a cluster: they come with the map."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from delayserver.follow.shard_table_writer import ShardTableWriter
from delayserver.protocol.errors import InDoubt, InvalidArgument, Unauthenticated
from delayserver.state.shard.shared_tables import TableNumber
from store.shared.envelope import ShardIdentity
from store.tables.stored_tokens import StoredSecret, StoredToken, encode_tokens
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.cluster.test_tables import tokens_of
from tests.delayserver.follow.members import IDENTITY
from tests.delayserver.server.test_map_reading import FOUNDED, MapEngine
from tests.fakes.host import Boot, Host

ADMIN = {"action": "create", "name": "one", "roles": ["admin"]}


async def hello(host: Host, text: str) -> Any:
    """A client that has shown a token."""
    client = await host.client()
    await client.request("hello", {"versions": [1], "token": text})
    return client


async def refused(host: Host, text: str) -> bool:
    try:
        await hello(host, text)
    except Unauthenticated:
        return True
    return False


async def tokens_reach(names: list[str], *hosts: Host) -> None:
    """Return when the files of these members have these tokens."""
    with trio.fail_after(60):
        while any(not host.server.is_open or tokens_of(host) != names for host in hosts):
            await hosts[0].sleep_ms(20)


async def test_a_token_is_valid_at_all_shards_and_its_end_counts_at_all(boot: Boot) -> None:
    engine = MapEngine(FOUNDED)
    # The third member of a cluster draws other numbers than the first one.
    one, two = Cluster(boot, "ab"), Cluster(boot, "dec", identity=ShardIdentity(77, 6), shard=1)
    a, b, c = one.hosts["a"], one.hosts["b"], two.hosts["c"]
    async with one.reading(engine), two.reading(engine):
        client = await a.start_connected()
        b.begin()
        await c.start()
        made = await client.request("token", ADMIN)
        await tokens_reach(["one"], a, b, c)
        admin = await hello(c, made["token"])
        assert await refused(c, made["token"][:-1] + "x")
        other = await admin.request("token", ADMIN | {"name": "two"})
        await tokens_reach(["one", "two"], a, b, c)
        bound = await hello(a, other["token"])
        new = await admin.request("token", {"action": "rotate", "id": other["id"], "overlap_ms": 0})
        await tokens_reach(["one", "two"], a, b, c)
        with pytest.raises((ConnectionResetError, Unauthenticated)):
            await bound.request("status", {})
        assert await refused(a, other["token"])
        assert not await refused(a, new["token"])
        await admin.request("token", {"action": "revoke", "id": other["id"]})
        await tokens_reach(["one"], a, b, c)
        assert await refused(a, new["token"])
        with pytest.raises(InvalidArgument):
            await admin.request("token", {"action": "rotate", "id": other["id"]})
        # The end of the last one opens no shard.
        await admin.request("token", {"action": "revoke", "id": made["id"]})
        await tokens_reach([], a, b, c)
        assert await refused(a, made["token"]) and await refused(c, made["token"])


async def test_a_member_begins_with_the_tokens_of_the_map(boot: Boot) -> None:
    engine = MapEngine(FOUNDED)
    cluster = Cluster(boot, "ab")
    a, b = cluster.hosts["a"], cluster.hosts["b"]
    async with cluster.reading(engine):
        client = await a.start_connected()
        made = await client.request("token", ADMIN)
        await tokens_reach(["one"], a)
        # The file of a member that was away is older than the map.
        await a.kill()
        cluster.maps["a"].tokens.take((), 1 << 40)
        a.begin()
        await a.wait_up()
        assert await refused(a, made["token"])
        b.begin()
        await tokens_reach(["one"], b)


async def test_tokens_of_a_shard_from_before_become_those_of_all(boot: Boot) -> None:
    engine = MapEngine(FOUNDED)
    cluster = Cluster(boot, "ab")
    a, b = cluster.hosts["a"], cluster.hosts["b"]
    await a.start()
    b.begin()

    async def write_as_before(name: str) -> None:
        parts = a.server.parts
        assert parts.cluster is not None
        token = StoredToken(f"{1:012x}", name, ("admin",), ("*",), (StoredSecret(bytes(32)),), 1)
        table = ShardTableWriter(TableNumber.TOKENS, parts.cluster.proposing, parts.state.positions)
        await table.write(encode_tokens(IDENTITY.server_id, [token]))

    await write_as_before("old")
    await tokens_reach(["old"], a, b)
    async with cluster.reading(engine):
        await a.kill()
        await b.wait_up()
        with trio.fail_after(60):
            while cluster.maps["a"].tokens.table is None:
                await b.sleep_ms(20)
        a.begin()
        await tokens_reach(["old"], a, b)
        await b.kill()
        await a.wait_up()
        # The table of the map is the only one from now on.
        await write_as_before("later")
        await a.sleep_ms(500)
        assert tokens_of(a) == ["old"]


async def test_a_change_that_the_map_does_not_show_is_in_doubt(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    client = await cluster.hosts["a"].start_connected()
    with pytest.raises(InDoubt, match="the map of the cluster"):
        await client.request("token", ADMIN)
    assert tokens_of(cluster.hosts["a"]) == ["none"]
