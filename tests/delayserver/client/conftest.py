"""The fake server, and a client of each kind, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import Server, serving
from tests.delayserver.client.both import KINDS, Connect, connected
from tests.delayserver.client.fake_server import FakeServer


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server for the tests of a module, each of which uses subjects of its own."""
    with serving(tmp_path_factory.mktemp("node") / "data") as running:
        yield running


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connects a client of each kind to an address, with settings."""
    return partial(connected, request.param)


@pytest.fixture
def client(server: FakeServer, connect: Connect) -> Iterator[Client]:
    """A client of each kind, connected to the fake server."""
    with connect(server.address) as connected:
        yield connected
