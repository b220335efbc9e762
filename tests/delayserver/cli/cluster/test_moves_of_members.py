"""`cluster move` believes a member only under its name and shard, and takes none for the heir that can never lead."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from delayserver.cli.cluster.move import move
from delayserver.members.member_map import FORMAT, Announced, Founded, MemberMap
from tests.delayserver.cli.cluster.members_there import There, at, standing

FORMER, HEIR = Announced("a", 1, "a:1", "", "1.2.3", "1"), Announced("d", 1, "d:1", "", "1.2.3", "1")


def moved(monkeypatch: pytest.MonkeyPatch, there: There) -> tuple[Result, list[str]]:
    """Move `a` of shard 1 to `d`. Returns also who is a member then."""
    found = MemberMap(
        founded=Founded(FORMAT, "4d", ("05", "06")), members={"a": FORMER, "d": HEIR}, shards=["05", "06"]
    )

    def on_kafka(_path: str | None, work: Any) -> MemberMap:
        if work.__name__ == "write":
            found.members.pop("a", None)
        return found

    monkeypatch.setattr("delayserver.cli.kafka.on_kafka.on_kafka", on_kafka)
    at(monkeypatch, there)
    done = CliRunner().invoke(move, ["--cluster", "file", "--shard", "1", "--from", "a", "--to", "d"])
    return done, sorted(found.members)


def test_a_standby_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    done, members = moved(monkeypatch, {"a:1": standing("a", 1), "d:1": standing("d", 1)})
    assert (done.output, members) == ("d follows shard 1. a is no member any more: stop it.\n", ["d"])


@pytest.mark.parametrize("role", ["standby", "primary"])
def test_no_member_moves_to_a_damaged_one(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    done, members = moved(monkeypatch, {"a:1": standing("a", 1, role), "d:1": replace(standing("d", 1), damaged=True)})
    assert (done.exit_code, members) == (1, ["a", "d"])
    assert done.output == "Error: d is damaged, and never leads: choose another member\n"


@pytest.mark.parametrize(("name", "shard"), [("z", 1), ("d", 0)])
def test_another_server_at_the_address_of_the_heir_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, name: str, shard: int
) -> None:
    done, members = moved(monkeypatch, {"a:1": standing("a", 1), "d:1": standing(name, shard)})
    assert (done.exit_code, members) == (1, ["a", "d"])
    assert f"d at d:1 does not answer: {name} of shard {shard} has that address now" in done.output


def test_another_primary_at_the_address_of_the_former_member_leads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    there: There = {"a:1": standing("z", 0, "primary"), "d:1": standing("d", 1)}
    done, members = moved(monkeypatch, there)
    assert (done.output, members) == ("d follows shard 1. a is no member any more: stop it.\n", ["d"])
    assert there["a:1"] == standing("z", 0, "primary")
