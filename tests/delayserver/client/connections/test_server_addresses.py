"""The addresses that a client is given, and the one that it dials."""

from __future__ import annotations

import socket
import traceback

import pytest

from delayserver.client import AsyncClient, Client
from delayserver.client.calls.core import ClientCore
from delayserver.client.calls.retry_policy import RetryPolicy
from delayserver.client.connections.server_addresses import VARIABLE, Addresses, addresses_of, cannot_connect
from delayserver.protocol.errors import ConnectionLost, ShuttingDown
from tests.delayserver.client.both import Connect
from tests.delayserver.client.fake_server import Drop, Fail, FakeServer
from tests.ports import free_port


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1, [::1]:2,", ("a:1", "[::1]:2")),
        (["a:1", "b"], ("a:1", "b")),
        (None, ("127.0.0.1:20801",)),
    ],
)
def test_an_address_is_a_text_a_list_or_texts_with_commas(
    given: str | list[str] | None, addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert addresses_of(given) == addresses


@pytest.mark.parametrize("given", ["", ",", [], "a:70000", "a:1,b:0"])
def test_no_address_or_one_with_a_wrong_port_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port"):
        Client(given)


def test_a_client_without_an_address_takes_the_one_of_the_environment(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, server.address)
    with Client() as client:
        assert client.ping() > 0
    assert AsyncClient().closed


def test_any_address_of_several_is_enough(server: FakeServer, connect: Connect) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for given in (f"{nobody},{server.address}", [server.address, nobody]):
        with connect(given) as client:
            assert client.send("a", b"", due_ms=1).subject == "a"
            server.drop_connections()
            assert client.send("a", b"", due_ms=1).subject == "a"


@pytest.mark.parametrize("answer", [Fail(ShuttingDown("bye")), Drop(after_effect=False)])
def test_a_server_that_does_not_greet_gives_way_to_the_next(
    server: FakeServer, connect: Connect, answer: Fail | Drop
) -> None:
    with FakeServer() as other:
        server.misbehave("hello", *[answer] * 3)
        with connect([server.address, other.address]) as client:
            client.send("a", b"", due_ms=1)
        assert other.messages and not server.messages


def test_it_stays_with_the_address_that_worked() -> None:
    addresses = Addresses("a:1,b:2,c:3")
    addresses.begin_at(("b", 2))
    assert addresses.current_text == "b:2"
    assert addresses.in_turn() == (("b", 2), ("c", 3), ("a", 1))
    addresses.useless(("c", 3))
    assert addresses.current_text == "a:1"


def test_a_refused_connection_is_one_error_with_advice_and_no_error_of_the_system(connect: Connect) -> None:
    first, second = free_port(), free_port()
    with pytest.raises(ConnectionLost) as raised, connect(f"127.0.0.1:{first},127.0.0.1:{second}", retries=0):
        pass
    said = str(raised.value)
    assert f"127.0.0.1:{first}" in said and f"127.0.0.1:{second}" in said
    assert "delayserver serve" in said and VARIABLE in said
    assert "ConnectionRefusedError" not in "".join(traceback.format_exception(raised.value))


def test_a_name_that_cannot_be_resolved_is_tried_again_for_longer_than_a_second() -> None:
    unresolved = cannot_connect(("a", 1), socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
    attempts = RetryPolicy(3).attempts(ClientCore("test").ping())
    pauses = [attempts.pause_s(unresolved, sent=False) for _ in range(4)]
    assert pauses.pop() is None
    assert sum(pause for pause in pauses if pause is not None) >= 1.5
    refused = cannot_connect(("a", 1), ConnectionRefusedError(111, "Connection refused"))
    assert refused.retry_after_ms is None
