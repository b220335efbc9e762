"""The sans-IO core: what needs no connection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from delayserver.client.calls.send_calls import resolve_due_column
from delayserver.client.values.timing import ServerClock
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.node_routes import Node, Route


@pytest.mark.parametrize(
    ("announced", "dialled", "address"),
    [
        ("10.0.0.7:20801", "example.org", "10.0.0.7:20801"),
        ("0.0.0.0:20801", "example.org", "example.org:20801"),
        ("[::]:20801", "example.org", "example.org:20801"),
        (":::20801", "fe80::1", "[fe80::1]:20801"),
    ],
)
def test_a_node_that_listens_on_all_interfaces_is_reached_where_it_was_dialled(
    announced: str, dialled: str, address: str
) -> None:
    route = Route("g", [Node(announced, 1)], key_node=announced).from_server_at(dialled, 1)
    assert [node.address for node in route.nodes] == [address] == [route.key_node]


def test_the_node_of_the_server_that_was_asked_is_reached_where_it_was_dialled() -> None:
    """It may be known to itself by another host and port: behind a mapped port."""
    asked, other = Node("10.0.0.7:20801", 1, here=True), Node("10.0.0.8:20801", 1)
    route = Route("g", [asked, other], key_node="10.0.0.7:20801").from_server_at("::1", 30801)
    assert [node.address for node in route.nodes] == ["[::1]:30801", "10.0.0.8:20801"]
    assert route.key_node == "[::1]:30801"


@pytest.mark.parametrize("delay_ms", [np.array([5, 2**64 - 1], np.uint64), np.array([2**63 - 1])])
def test_a_delay_in_a_column_that_no_due_time_can_hold_is_refused(delay_ms: NDArray[Any]) -> None:
    with pytest.raises(InvalidArgument):
        resolve_due_column(ServerClock(), None, delay_ms)
