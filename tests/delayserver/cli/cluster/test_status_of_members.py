"""What `cluster status` says of members that answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from delayserver.cli.cluster.status import status
from tests.delayserver.cli.cluster.members_there import at, standing

SERVERS = ("--server", "a:1,b:1,c:1")


def test_a_member_with_damage_is_named_and_does_not_go_on_for_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = replace(standing("b"), damaged=True)
    behind = replace(standing("c"), unreplayed_bytes=12_345)
    at(monkeypatch, {"a:1": standing("a", role="primary"), "b:1": damaged, "c:1": behind})
    told = CliRunner().invoke(status, SERVERS).output
    assert "b:1, epoch 3, 0 records (0 ms) behind; IT IS DAMAGED, and does not lead again" in told
    assert "c:1, epoch 3, 0 records (0 ms) behind, 12,345 bytes to replay" in told
    assert "if a dies now: c goes on" in told
    rows = [json.loads(line) for line in CliRunner().invoke(status, (*SERVERS, "--json")).output.splitlines()]
    assert [(row["damaged"], row["unreplayed_bytes"]) for row in rows] == [(False, 0), (True, 0), (False, 12_345)]


def test_a_primary_whose_only_standby_is_damaged_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {"a:1": standing("a", role="primary"), "b:1": replace(standing("b"), damaged=True)})
    assert "if a dies now: NOTHING IS SERVED" in CliRunner().invoke(status, SERVERS).output
