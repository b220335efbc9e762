"""Which requests the keeper sends for the leases of its sources, on a server that knows them."""

from __future__ import annotations

import anyio
import anyio.abc
import pytest

from delayserver.client import AsyncClient, Client
from delayserver.client.consuming.held_leases import Held, HeldLeases
from delayserver.client.consuming.lease_keeper import LeaseKeeper
from delayserver.protocol.errors import NotRouted, UnknownOperation
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import Fail, FakeServer


class Kept:
    """A keeper of one pulled lease, which it looks at when the test says so."""

    def __init__(self, node: AsyncClient, outlive_s: float | None = None) -> None:
        self.node = node
        self.leases = HeldLeases("a", 30, 3600)
        self.extended: list[int] = []
        self.keeper = LeaseKeeper(
            "the test", "g", 30, outlive_s, lambda: {self.leases: self.node}, self.extended.append
        )

    async def pull(self) -> None:
        (delivery,) = await self.node.pull("a", "g", 1, 0, ack_timeout_s=30)
        now_s = anyio.current_time()
        self.held = Held(delivery.delivery, now_s + 15)
        self.held.begin(now_s)
        self.leases.add([self.held], self.node.connection_number, now_s)

    async def look(self, times: int = 1) -> None:
        """So many looks, in one step, and then the answers to their requests."""
        async with anyio.create_task_group() as requests:
            for _ in range(times):
                self.keeper.look(requests)


@pytest.fixture
def leasing(server: FakeServer) -> FakeServer:
    server.leases = True
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""])
    return server


@on_each_loop
async def test_one_request_of_a_source_is_under_way_and_one_that_failed_is_tried_again(leasing: FakeServer) -> None:
    leasing.misbehave("extend", Fail(NotRouted("the route has changed")))
    async with AsyncClient(leasing.address) as node:
        kept = Kept(node)
        await kept.pull()
        await kept.look(times=3)
        assert leasing.count("extend") == 1 and kept.extended == []
        await kept.look(times=3)
        assert leasing.count("extend") == 2 and kept.extended == [1]
        assert kept.held.ends_s > anyio.current_time() + 15
        await kept.look()
        assert leasing.count("extend") == 2, "the lease is long enough"


@on_each_loop
async def test_a_node_that_does_not_know_the_request_is_asked_once(
    leasing: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    leasing.misbehave("extend", Fail(UnknownOperation("'extend'")))
    async with AsyncClient(leasing.address) as node:
        kept = Kept(node, outlive_s=5)
        await kept.pull()
        await kept.look()
        await kept.look()
        leasing.drop_connections()
        await kept.look()
    assert leasing.count("extend") == 1 and kept.extended == []
    (line,) = [record.getMessage() for record in caplog.records if "extend" in record.getMessage()]
    assert line.startswith("the test could not extend leases of HeldLeases('a')")


@on_each_loop
async def test_another_connection_takes_leases_over_once_also_those_that_are_not_due(leasing: FakeServer) -> None:
    async with AsyncClient(leasing.address) as node:
        kept = Kept(node, outlive_s=5)
        await kept.pull()
        kept.held.extend(anyio.current_time() + 30)
        before = kept.leases.connection
        await kept.look()
        assert not leasing.count("extend"), "the connection is the same"
        leasing.drop_connections()
        while node.connection_number == before:
            await anyio.sleep(0.01)
        await kept.look()
        await kept.look()
        assert leasing.count("extend") == 1 and kept.extended == []
        assert kept.leases.connection == node.connection_number != before
        kept.held.settle()
        kept.leases.belong(0)
        await kept.look()
        assert leasing.count("extend") == 1 and kept.leases.connection == node.connection_number, "nothing is leased"
