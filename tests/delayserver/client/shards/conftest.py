"""A cluster of several shards, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayserver.client import Client
from tests.delayserver.client.both import Connect
from tests.delayserver.client.fake_cluster import FakeCluster, fake_cluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as running:
        yield running


@pytest.fixture
def client(cluster: FakeCluster, connect: Connect) -> Iterator[Client]:
    """A client of each kind that knows one member of one shard."""
    with connect(cluster.members[0].address) as connected:
        yield connected
