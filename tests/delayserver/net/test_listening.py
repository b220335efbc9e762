"""The addresses that a server binds: of both families, by names, several at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
import trio

from delayserver.net.listening import AddressError, listening_sockets, plain_host
from delayserver.net.transport import SocketListener


@contextmanager
def bound(*hosts: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        sockets = [each for group in listening_sockets(hosts, 0) for each in group]
        for each in sockets:
            opened.callback(each.close)
        yield sockets


def reached(port: int) -> list[str]:
    """The loopback addresses at which something listens on this port."""
    found = []
    for host in ("127.0.0.1", "::1"):
        try:
            socket.create_connection((host, port), 5).close()
        except OSError:
            continue
        found.append(host)
    return found


@pytest.mark.parametrize(
    ("hosts", "loopbacks"),
    [
        (["127.0.0.1"], ["127.0.0.1"]),
        (["[::1]"], ["::1"]),
        (["127.0.0.1", "::1"], ["127.0.0.1", "::1"]),
        (["::"], ["127.0.0.1", "::1"]),
        (["*"], ["127.0.0.1", "::1"]),
        (["0.0.0.0", "::"], ["127.0.0.1", "::1"]),
        (["0.0.0.0"], ["127.0.0.1"]),
        (["127.0.0.1", "127.0.0.1"], ["127.0.0.1"]),
    ],
)
def test_a_server_listens_on_all_its_hosts_with_one_port(hosts: Sequence[str], loopbacks: Sequence[str]) -> None:
    with bound(*hosts) as sockets:
        ports = {each.getsockname()[1] for each in sockets}
        assert len(ports) == 1
        assert reached(ports.pop()) == loopbacks


def test_a_host_that_cannot_be_bound_is_named_and_nothing_stays_open() -> None:
    with pytest.raises(AddressError) as raised:
        listening_sockets(["127.0.0.1", "203.0.113.7"], 0)
    assert (raised.value.host, raised.value.errno) == ("203.0.113.7", errno.EADDRNOTAVAIL)
    with pytest.raises(AddressError, match=r".") as unresolved:
        listening_sockets(["a..b"], 0)
    assert unresolved.value.host == "a..b"


def test_an_ipv4_client_of_a_socket_for_both_families_keeps_its_address() -> None:
    assert plain_host("::ffff:10.0.0.7") == "10.0.0.7"
    assert plain_host("::ffff:1") == "::ffff:1"
    assert plain_host("10.0.0.7") == "10.0.0.7"


@pytest.mark.parametrize(
    ("hosts", "announced", "told"),
    [
        (["127.0.0.1", "::1"], [], ["127.0.0.1:{port}", "[::1]:{port}"]),
        (["::"], [], ["127.0.0.1:{port}", "[::1]:{port}"]),
        (["127.0.0.1", "::1"], ["a:1", "b:2"], ["a:1", "b:2"]),
        (["127.0.0.1", "::1"], ["a:1"], ["a:1", "a:1"]),
    ],
)
async def test_a_connection_knows_its_peer_and_the_address_by_which_clients_reach_the_server(
    hosts: Sequence[str], announced: Sequence[str], told: Sequence[str]
) -> None:
    listener = SocketListener(hosts, 0, announced)
    port = listener.address[1]
    try:
        for host, expected in zip(("127.0.0.1", "::1"), told, strict=True):
            client = await trio.open_tcp_stream(host, port)
            transport = await listener.accept()
            assert transport.here == expected.format(port=port)
            assert transport.peer.rpartition(":")[0] == host
            transport.close()
            await client.aclose()
    finally:
        listener.close()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
