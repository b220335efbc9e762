"""What may be removed from a log is what its own members have: another server at an address of theirs says nothing."""

from __future__ import annotations

import click
import pytest

from delayserver.cli.cluster.trim import _positions, trim
from delayserver.members.member_map import Announced
from tests.delayserver.cli.cluster.members_there import at, standing

B = Announced("b", 1, "b:1", "", "1.2.3", "1")


def test_a_member_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {"b:1": standing("b", 1)})
    assert _positions([B]) == {"b": 70}


@pytest.mark.parametrize(("name", "shard"), [("c", 1), ("b", 0)])
def test_another_server_at_the_address_is_not_believed(monkeypatch: pytest.MonkeyPatch, name: str, shard: int) -> None:
    at(monkeypatch, {"b:1": standing(name, shard)})
    with pytest.raises(click.ClickException, match="at b:1 is not the member b of shard 1 any more"):
        _positions([B])


def test_a_member_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {})
    with pytest.raises(click.ClickException, match="member b at b:1 does not say how far it is"):
        _positions([B])


def test_the_members_get_the_token_and_the_authorities_of_the_options() -> None:
    assert {"token_file", "tls_ca"} <= {each.name for each in trim.params}
