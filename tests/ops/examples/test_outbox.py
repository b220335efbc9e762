"""The outbox example with a real database: wherever the shop dies, an order and its message are both there, or neither."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import serving
from tests.delayserver.client.listening.listeners import until
from tests.ops.examples import postgres
from tests.ops.examples.shop import run_shop

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: it is in the extra `test`")


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    reason = postgres.why_not()
    if reason:
        pytest.skip(reason)
    with postgres.cluster() as where:
        yield where


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("outbox") / "data") as server:
        yield server.address


def shop(dsn: str, address: str, *arguments: str) -> int:
    """Runs the example; its return code."""
    return run_shop(*arguments, "--dsn", dsn, "--server", address)


def announced(address: str, number: int, wait_s: float) -> list[int]:
    """The numbers of the orders that a consumer hears of within some time."""
    end_s, found = time.monotonic() + wait_s, []
    with Client(address) as client:
        while time.monotonic() < end_s and number not in found:
            deliveries = client.pull("orders.placed", "warehouse", wait_s=max(end_s - time.monotonic(), 0.1))
            client.ack("orders.placed", "warehouse", deliveries)
            found += [json.loads(delivery.body)["number"] for delivery in deliveries]
    return found


def answered(dsn: str, address: str, number: int) -> list[int]:
    """What a consumer hears of when the shop has answered. A check-back may come late on a busy machine."""
    for _ in range(6):
        assert shop(dsn, address, "answer", "--seconds", "5") == 0
        if found := announced(address, number, 2):
            return found
    return []


def stored(dsn: str, number: int) -> bool:
    with psycopg.connect(dsn) as database:
        return database.execute("SELECT 1 FROM orders WHERE number = %s", [number]).fetchone() is not None


def test_an_order_is_stored_and_announced(dsn: str, address: str) -> None:
    assert shop(dsn, address, "place", "1") == 0
    assert stored(dsn, 1)
    assert announced(address, 1, 60) == [1]


def test_an_order_that_the_database_refuses_is_not_announced(dsn: str, address: str) -> None:
    assert shop(dsn, address, "place", "2") == 0
    assert announced(address, 2, 60) == [2]
    assert shop(dsn, address, "place", "2") != 0, "the number is taken"
    assert announced(address, 2, 1) == []


@pytest.mark.parametrize(
    ("step", "number", "is_there"), [("prepared", 11, False), ("inserted", 12, False), ("stored", 13, True)]
)
def test_wherever_the_shop_dies_the_table_decides(
    dsn: str, address: str, step: str, number: int, is_there: bool
) -> None:
    assert shop(dsn, address, "place", str(number), "--die-at", step) == -signal.SIGKILL
    assert stored(dsn, number) is is_there
    assert announced(address, number, 0.5) == [], "no consumer gets it before the answer"
    found = answered(dsn, address, number) if is_there else []
    if not is_there:
        assert shop(dsn, address, "answer", "--seconds", "5") == 0
        found = announced(address, number, 1)
    assert found == ([number] if is_there else [])


def test_a_shop_that_dies_behind_its_commit_is_asked_nothing(dsn: str, address: str) -> None:
    assert shop(dsn, address, "place", "20", "--die-at", "committed") == -signal.SIGKILL
    assert announced(address, 20, 60) == [20]
    with Client(address) as client:
        assert client.check_backs("shop", wait_s=4) == []


def test_a_server_that_dies_in_between_asks_as_well(dsn: str, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert shop(dsn, server.address, "place", "30", "--die-at", "stored") == -signal.SIGKILL
        server.process.kill()
        server.process.wait()
    with serving(tmp_path / "data") as server:
        assert answered(dsn, server.address, 30) == [30]
        with Client(server.address) as client:
            until(lambda: client.status()["pending"] == 0)
