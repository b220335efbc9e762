"""The three places as a fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import serving
from tests.delayserver.embedded.places import EVERYWHERE, Place, place_of


@pytest.fixture(scope="session")
def process_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One `delayserver serve` for all tests of the places."""
    with serving(tmp_path_factory.mktemp("places") / "data") as server:
        yield server.address


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def place(request: pytest.FixtureRequest, process_address: str, tmp_path: Path) -> Place:
    """Each place with each client."""
    name, kind = request.param
    return place_of(name, kind, process_address, tmp_path)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    """A client of each kind of a server in each place."""
    with place.open() as opened:
        yield opened
