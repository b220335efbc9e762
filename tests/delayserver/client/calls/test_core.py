"""The sans-IO core: what needs no connection."""

from __future__ import annotations

import pytest

from delayserver.client.calls.core import reachable


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
    assert reachable(announced, dialled) == address
