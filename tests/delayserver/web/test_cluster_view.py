"""`GET /v1/cluster`: any member shows all shards and members, and says who did not answer."""

from __future__ import annotations

from delayserver.protocol.schema.shard_map import ShardPlace
from delayserver.web.cluster_view import shard_shown
from tests.delayserver.client.fake_cluster import fake_cluster
from tests.delayserver.client.fake_server import FakeServer
from tests.delayserver.web.test_console_cluster import LEADS, MEMBER, status
from tests.delayserver.web.web_server import gateway_alone


def test_any_member_shows_all_shards_and_who_does_not_answer() -> None:
    with fake_cluster(shards=3) as cluster, FakeServer(server_id=cluster.members[0].server_id) as standby:
        cluster.show(0, standbys=[standby.address, "127.0.0.1:1"], epoch=7)
        cluster.add("0000000000ff")
        a, other, lost = cluster.members
        a.wrong_replies["status"] = status(a, MEMBER | LEADS | {"member": "a", "log_in_sync": 2})
        standby.wrong_replies["status"] = status(standby, MEMBER | {"member": "b", "front": "does not reach c"})
        other.wrong_replies["status"] = status(a, MEMBER)
        lost.close()
        with gateway_alone(standby.address) as web:
            standby.map = a.map
            found = web.ask("GET", "/v1/cluster")
    assert found.status == 200
    assert found.json["version"] == cluster.shown.version
    first, second, third, added = found.json["shards"]
    assert (first["state"], first["epoch"], first["pending"]) == ("open", 7, 1_234)
    assert first["log"] == {
        "answers": True, "copies": 3, "in_sync": 2, "in_sync_min": 2, "kept": 123_456, "faults": [],
    }  # fmt: skip
    assert first["members"] == [
        {
            "address": a.address, "announced": "primary", "unanswered": None, "member": "a", "role": "primary", "epoch": 7,
            "lag_records": 0, "lag_ms": 0, "if_it_dies": "b goes on, some two seconds later",
            "front": "", "damaged": False,
        },
        {
            "address": standby.address, "announced": "standby", "unanswered": None, "member": "b", "role": "standby",
            "epoch": 7, "lag_records": 12, "lag_ms": 1_500,
            "if_it_dies": "nothing stops, but the primary has no standby then", "front": "does not reach c",
            "damaged": False,
        },
        {
            "address": "127.0.0.1:1", "announced": "standby", "unanswered": "no answer", "member": None, "role": None,
            "epoch": None, "lag_records": None, "lag_ms": None, "if_it_dies": None, "front": None,
            "damaged": None,
        },
    ]  # fmt: skip
    assert [each["unanswered"] for each in second["members"]] == ["another server is at this address"]
    assert [each["unanswered"] for each in third["members"]] == ["no answer"]
    assert (third["pending"], third["log"]) == (None, None)
    assert (added["server_id"], added["members"]) == ("0000000000ff", [])


def test_a_server_without_a_cluster_shows_no_shards() -> None:
    with FakeServer() as server, gateway_alone(server.address) as web:
        server.wrong_replies["map"] = {"version": 0, "slots": [], "shards": []}
        assert web.ask("GET", "/v1/cluster").json == {"version": 0, "shards": []}


def test_members_that_were_not_asked_in_time_are_shown_as_such() -> None:
    shown = shard_shown(ShardPlace(0, "05", "open", 3, "a:1", ["b:1"]), {})
    assert [(each.address, each.announced, each.unanswered) for each in shown.members] == [
        ("a:1", "primary", "not asked"),
        ("b:1", "standby", "not asked"),
    ]


def test_a_damaged_member_is_shown_and_goes_on_for_no_other() -> None:
    with fake_cluster(shards=1) as cluster, FakeServer(server_id=cluster.members[0].server_id) as standby:
        cluster.show(0, standbys=[standby.address])
        a = cluster.members[0]
        a.wrong_replies["status"] = status(a, MEMBER | LEADS | {"member": "a"})
        standby.wrong_replies["status"] = status(standby, MEMBER | {"member": "b", "damaged": True})
        with gateway_alone(a.address) as web:
            (shard,) = web.ask("GET", "/v1/cluster").json["shards"]
    leads, follows = shard["members"]
    assert (leads["damaged"], follows["damaged"]) == (False, True)
    assert leads["if_it_dies"] == "NOTHING IS SERVED until it, or another member, is back: it has no standby"
