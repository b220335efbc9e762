"""`cluster status` shows the version of a shard's log, and which member keeps it from rising."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from delayserver.cli.cluster.status import _Found, status
from delayserver.members.member_map import FORMAT, Announced, Founded, MemberMap
from delayserver.runtime.shared_log import LogDescription
from tests.delayserver.cli.cluster.members_there import at, standing


def told(monkeypatch: pytest.MonkeyPatch, *arguments: str, **reads: int) -> str:
    """What the command says where member a stands at version 1, and no other answers."""
    members = {name: Announced(name, 0, f"{name}:1", "", "1.2.3", "1", each) for name, each in reads.items()}
    numbers = {name: number for number, name in enumerate(reads, 1)}
    found = MemberMap(founded=Founded(FORMAT, "4d", ("05",)), members=members, numbers=numbers, shards=["05"])
    log = LogDescription(3, 2, 1 << 25, 0, 100, 3)

    def on_kafka(_path: str | None, _work: Any) -> _Found:
        return _Found(0, found, [log], log)

    assert status.callback is not None
    monkeypatch.setattr(sys.modules[status.callback.__module__], "on_kafka", on_kafka)
    at(monkeypatch, {"a:1": replace(standing("a", role="primary"), log_version=1)})
    return CliRunner().invoke(status, ["--cluster", "file", *arguments]).output


def test_an_older_member_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\n  its log has version 1\n" in told(monkeypatch, a=1, b=1)
    assert "\n  its log has version 1, and b, d reads none above 1: it does not rise\n" in told(
        monkeypatch, a=2, b=1, c=2, d=1
    )


def test_a_line_of_json_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line) for line in told(monkeypatch, "--json", a=2, b=1).splitlines()]
    assert [(row["member"], row["log_version"], row["reads"]) for row in rows] == [("a", 1, 2), ("b", None, 1)]
