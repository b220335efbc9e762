"""A step of the server's clock, as a client that is connected meets it."""

from __future__ import annotations

import pytest

from delayserver.client import Client
from delayserver.client.calls.core import ClientCore, ReplyStream
from delayserver.protocol.errors import ConnectionLost
from delayserver.protocol.frames import CLOCK_STEPPED, encode_notice, encode_reply
from tests.delayserver.client.both import Connect
from tests.delayserver.client.fake_server import Drop, FakeServer

HOUR_US = 3_600_000_000


@pytest.mark.parametrize("step_us", [HOUR_US, -HOUR_US])
def test_a_delay_behind_a_step_counts_from_the_new_time(server: FakeServer, client: Client, step_us: int) -> None:
    client.send("a", b"learns the clock", delay_ms=0)
    server.step_clock(step_us)
    client.cancel(client.send("a", b"", due_ms=1).receipt)  # its reply comes behind the notice
    before_ms = server.now_us() // 1000
    due_ms = client.send("a", b"in half an hour", delay_ms=1_800_000).due_ms
    assert before_ms + 1_800_000 <= due_ms <= server.now_us() // 1000 + 1_801_000


@pytest.mark.parametrize("step_us", [HOUR_US, -HOUR_US])
def test_a_delay_behind_a_lost_connection_counts_from_the_new_time(
    server: FakeServer, connect: Connect, step_us: int
) -> None:
    with connect(server.address, retries=0) as client:
        receipt = client.send("a", b"learns the clock", delay_ms=0).receipt
        server.misbehave("cancel", Drop())
        with pytest.raises(ConnectionLost):
            client.cancel(receipt)
        server.clock_ahead_us += step_us  # nobody is connected who could be told
        before_ms = server.now_us() // 1000
        due_ms = client.send("a", b"in half an hour", delay_ms=1_800_000).due_ms
        assert before_ms + 1_800_000 <= due_ms <= server.now_us() // 1000 + 1_801_000


def test_a_client_asks_for_notices_and_an_unknown_one_changes_nothing(server: FakeServer) -> None:
    with Client(server.address):
        assert server.requests[0].arguments["notices"] is True
    core = ClientCore("test")
    core.clock.learn(1, core.clock.elapsed())
    stream = ReplyStream(core.take_notice)
    stream.feed(encode_notice({"news_of_the_future": 1}) + encode_reply(1, {}))
    assert not core.clock.stale
    stream.feed(encode_notice({CLOCK_STEPPED: 1}) + encode_reply(2, {}))
    assert core.clock.stale
