"""The server's clock as a client learns it: never behind, also where an exchange took long."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from delayserver.client import AsyncClient, Client
from delayserver.client.values.timing import CLOCK_AGE_US_MAX, LONG_EXCHANGES_MAX, ServerClock, resolve_due_ms
from tests.delayserver.client.both import clock_of, on_each_loop
from tests.delayserver.client.fake_server import FakeServer, Late


@dataclass
class Exchanges:
    """A client and a server on one simulated time."""

    now_us: int = 5_000_000
    server_ahead_us: int = 1_700_000_000_000_000

    def __post_init__(self) -> None:
        self.clock = ServerClock(lambda: self.now_us)

    def exchange(self, request_us: int, reply_us: int) -> None:
        """The server reads its clock after ``request_us``, the client reads the reply ``reply_us`` later."""
        sent_us = self.clock.elapsed()
        self.now_us += request_us
        server_us = self.now_us + self.server_ahead_us
        self.now_us += reply_us
        self.clock.learn(server_us, sent_us)

    def wanted(self) -> bool:
        """Whether another exchange is wanted before a delay is resolved."""
        return self.clock.stale

    def ahead_us(self) -> int:
        """By how much a delay of a second comes out too long."""
        due_ms = resolve_due_ms(self.clock, None, 1000, None, None)
        return due_ms * 1000 - (self.now_us + self.server_ahead_us + 1_000_000)


@pytest.mark.parametrize(("request_us", "reply_us"), [(0, 4_000_000), (4_000_000, 0), (150, 150), (0, 0), (70_001, 9)])
def test_a_delay_is_never_short_and_at_most_a_round_trip_long(request_us: int, reply_us: int) -> None:
    exchanges = Exchanges()
    exchanges.exchange(request_us, reply_us)
    exchanges.now_us += 30_000_000
    assert 0 <= exchanges.ahead_us() < request_us + reply_us + 1000


def test_a_long_exchange_is_repeated_and_a_short_one_counts() -> None:
    exchanges = Exchanges()
    exchanges.exchange(4_000_000, 0)
    assert exchanges.wanted()
    exchanges.exchange(100, 100)
    assert not exchanges.wanted()
    assert exchanges.ahead_us() < 2000


def test_on_a_long_way_the_shortest_of_a_few_exchanges_counts() -> None:
    exchanges = Exchanges()
    for request_us in (900_000, 300_000, 500_000):
        assert exchanges.wanted()
        exchanges.exchange(request_us, 0)
    assert LONG_EXCHANGES_MAX == 3
    assert not exchanges.wanted()
    assert 300_000 <= exchanges.ahead_us() < 301_000


def test_an_old_exchange_gives_way_to_a_longer_one() -> None:
    exchanges = Exchanges()
    exchanges.exchange(200_000, 0)
    exchanges.now_us += CLOCK_AGE_US_MAX + 1
    exchanges.server_ahead_us += 7_000_000
    assert exchanges.wanted()
    exchanges.exchange(500_000, 0)
    assert 500_000 <= exchanges.ahead_us() < 501_000


def test_a_ping_that_took_long_is_repeated_before_a_delay_is_resolved(server: FakeServer) -> None:
    with Client(server.address) as client:
        clock_of(client).forget()
        server.misbehave("ping", Late(0.15))
        pings = server.count("ping")
        before_ms = server.now_us() // 1000
        assert client.send("a", b"", delay_ms=2000).due_ms >= before_ms + 2000
        assert server.count("ping") >= pings + 2


@on_each_loop
async def test_a_ping_of_the_async_client_that_took_long_is_repeated(server: FakeServer) -> None:
    async with AsyncClient(server.address) as client:
        clock_of(client).forget()
        server.misbehave("ping", Late(0.15))
        pings = server.count("ping")
        before_ms = server.now_us() // 1000
        assert (await client.send("a", b"", delay_ms=2000)).due_ms >= before_ms + 2000
        assert server.count("ping") >= pings + 2


def test_a_hello_sets_the_clock_anew(server: FakeServer) -> None:
    with Client(server.address) as client:
        server.misbehave("ping", Late(0.15))
        client.ping()
        server.clock_ahead_us = -3_600_000_000
        server.misbehave("hello", Late(0.3))
        client.hello()
        assert clock_of(client).now_ms() < server.now_us() // 1000 + 600_000


def test_a_clock_that_another_thread_forgets_while_it_is_read_is_learned_again() -> None:
    def elapsed_us() -> int:
        clock.forget()
        return 1_000

    clock = ServerClock(elapsed_us)
    clock.learn(server_us=5_000, sent_us=0)
    assert [clock.stale, clock.stale] == [False, True]


def test_a_ping_that_waited_for_another_thread_does_not_put_the_clock_wrong(server: FakeServer) -> None:
    with Client(server.address) as client:
        server.misbehave("pull", Late(1.0))
        puller = threading.Thread(target=client.pull, args=("a", "g"))
        puller.start()
        time.sleep(0.1)
        client.ping()
        puller.join()
        assert abs(clock_of(client).now_ms() - server.now_us() / 1000) < 500
