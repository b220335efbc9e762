"""The fake server as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.delayserver.client.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running
