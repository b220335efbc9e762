"""One server with HTTP for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.delayserver.web.web_server import Web, serve, stop


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    """One server in memory for the tests of a module; each uses subjects of its own."""
    running = serve("--memory")
    try:
        yield running
        assert stop(running) == ""
    finally:
        running.process.kill()
        running.process.communicate()
