"""Clients of two shards, as processes on real Kafka: one token is enough for both, and each client takes from both."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client, Delivery, ThreadListener
from delayserver.protocol.errors import Unauthenticated
from delayserver.protocol.slots import slot_of
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import Done, run, start
from tests.delayserver.kafka.following import UNHURRIED_S
from tests.delayserver.kafka.processes import Cluster, Member, running
from tests.delayserver.web.web_server import gateway_alone

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(one_node: KafkaNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two shards with a member each."""
    with running(one_node, tmp_path_factory.mktemp("clients"), "ab", shards=(0, 1)) as members:
        yield members


def token(cluster: Cluster, *arguments: str) -> Done:
    done = run("token", *arguments, "--cluster", str(cluster.members["a"].file), "--json")
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> str:
    """The first token of the cluster, valid at both shards."""
    text = str(token(cluster, "create", "--role", "admin").row["token"])
    for member in cluster.members.values():
        until_valid(member, text)
    return text


def until_valid(member: Member, text: str, *, valid: bool = True) -> None:
    """Return when a member takes a token; or takes it no more."""
    for _ in range(UNHURRIED_S * 10):
        try:
            with Client(member.address, token=text) as client:
                if client.hello().needs_token and valid:
                    return
        except Unauthenticated:
            if not valid:
                return
        time.sleep(0.1)
    raise AssertionError(f"{member.name} does not know it")


def ids(subject: str) -> list[str]:
    """Four ids: two of each shard."""
    found: dict[int, list[str]] = {0: [], 1: []}
    for number in range(1_000):
        of_shard = found[slot_of(subject, f"m{number}") // 512]
        if len(of_shard) < 2:
            of_shard.append(f"m{number}")
    return found[0] + found[1]


def test_a_token_is_valid_at_both_shards_until_it_is_revoked(cluster: Cluster, admin: str) -> None:
    shop = token(cluster, "create", "--role", "send", "--role", "consume").row
    for member in cluster.members.values():
        until_valid(member, shop["token"])
    with Client(cluster.addresses, token=shop["token"]) as client:
        # A shard that refuses one, because it waits for its lease, gets none for two seconds.
        servers: set[str] = set()
        for _ in range(UNHURRIED_S * 10):
            servers.add(client.send("s", "x", due_ms=time.time_ns() // 1_000_000).receipt.partition("-")[0])
            if len(servers) == 2:
                break
            time.sleep(0.1)
        assert len(servers) == 2, "both shards took some"
    # A primary of the other shard revokes it.
    with Client(cluster.members["b"].address, token=admin) as client:
        assert [each.id for each in client.tokens()][1] == shop["id"]
        client.revoke_token(shop["id"])
    for member in cluster.members.values():
        until_valid(member, shop["token"], valid=False)
    assert shop["id"] not in [row["id"] for row in token(cluster, "list").rows]


def test_a_new_member_with_an_empty_directory_has_the_tokens_at_its_start(cluster: Cluster, admin: str) -> None:
    a = cluster.members["a"]
    new = Member("c", a.folder, "127.0.0.1:0", 0)
    new.file.write_text(a.file.read_text().replace('"a"', '"c"'))
    new.process = start(
        "serve", "--cluster", str(new.file), "--json", "--http-port", "0", "--port", "0", "--host", "0.0.0.0",
        "--announce", "127.0.0.1:1", "--data-dir", str(new.folder / "c"),
    )  # fmt: skip
    try:
        said = new.ready()
        with (
            pytest.raises(Unauthenticated),
            Client(f"127.0.0.1:{said['port']}", token="dst_0123456789ab_" + "A" * 43) as client,
        ):
            client.ping()
        until_valid(Member("c", a.folder, f"127.0.0.1:{said['port']}"), admin)
    finally:
        new.process.kill()
        new.process.communicate()


def test_the_command_line_sends_to_both_shards_and_pulls_from_both(
    cluster: Cluster, admin: str, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text(admin)
    at = "--server", ",".join(cluster.addresses), "--token-file", str(secret), "--json"
    sent = [run("send", "line", "x", "--id", each, *at).row for each in ids("line")]
    assert len({each["receipt"].partition("-")[0] for each in sent}) == 2
    pulled = run("pull", "line", "--group", "g", "--max", "4", "--wait", "60s", "--ack", *at).rows
    assert {each["message_id"] for each in pulled} == set(ids("line"))
    later = [run("send", "line", "x", "--id", each, "--delay", "1h", *at).row for each in ids("line")]
    for each in later:
        assert run("cancel", each["receipt"], *at).row["outcome"] == "cancelled"
        assert run("lookup", each["receipt"], *at).row["outcome"] == "cancelled"


def test_a_gateway_of_both_shards_takes_and_gives_messages_of_both(cluster: Cluster, admin: str) -> None:
    bearer = {"authorization": f"Bearer {admin}"}
    with gateway_alone(",".join(cluster.addresses)) as web:
        receipts = set()
        for each in ids("web"):
            sent = web.ask(
                "POST",
                "/v1/messages",
                {"subject": "web", "body": "x", "delay_ms": 0, "message_id": each},
                headers=bearer,
            )
            assert sent.status == 201, sent.json
            receipts.add(sent.json["receipt"].partition("-")[0])
        assert len(receipts) == 2
        came: set[str] = set()
        while len(came) < 4:
            pull = "/v1/subjects/web/groups/g/pull"
            found = web.ask("POST", pull, {"wait_ms": 20_000, "max_messages": 4}, headers=bearer).json["messages"]
            came |= {each["message_id"] for each in found}
            acked = web.ask(
                "POST",
                "/v1/subjects/web/groups/g/ack",
                {"deliveries": [each["delivery"] for each in found]},
                headers=bearer,
            )
            assert acked.status == 200 and acked.json["acked"] == len(found), (acked.json, found)
        shown = web.ask("GET", "/v1/cluster", headers=bearer).json["shards"]
        assert [[each["member"] for each in shard["members"] if each["role"] == "primary"] for shard in shown] == [
            ["a"],
            ["b"],
        ]
        assert all(shard["log"]["faults"] == [] for shard in shown)


def test_figures_and_lists_are_those_of_both_shards(cluster: Cluster, admin: str, tmp_path: Path) -> None:
    later_ms = time.time_ns() // 1_000_000 + 86_400_000
    with Client(cluster.addresses, token=admin) as client:
        for each in ids("sum.later"):
            client.send("sum.later", "x", due_ms=later_ms, message_id=each)
        for each in ids("sum.now"):
            client.send("sum.now", "x", due_ms=later_ms - 86_400_000, message_id=each)
        client.set_policy("sum.now", "g", attempts=1)
        came: list[Delivery] = []
        while len(came) < 4:
            came += client.pull("sum.now", "g", 4, wait_s=20)
        assert client.nack("sum.now", "g", came).nacked == 4
        assert client.subjects("sum.*") == ["sum.later", "sum.now", "sum.now.dead.g"]
        assert client.group("sum.now", "g").dead_letters == 4
        letters = client.dead_letters("sum.now", "g")
        assert {each.message_id for each in letters} == set(ids("sum.now"))
        assert {each.message_id for each in client.find(subject="sum.now")} == set(ids("sum.now"))
        last = letters[-1].position
        assert (client.drop_dead_letters("sum.now", "g", positions=[last]).left, letters.pop().position) == (3, last)
        assert [each.position for each in client.dead_letters("sum.now", "g")] == [each.position for each in letters]
        alone = client.shard_clients()
        assert [alone[shard].group("sum.now", "g").dead_letters for shard in (0, 1)] == [2, 1]
    secret = tmp_path / "token"
    secret.write_text(admin)
    at = "--server", ",".join(cluster.addresses), "--token-file", str(secret), "--json"

    def pending(*shard: str) -> dict[str, int]:
        rows = run("pending", "--by", "subject", *shard, *at).rows
        return {row["subject"]: row["pending"] for row in rows if row["subject"].startswith("sum.")}

    assert [pending(), pending("--shard", "0"), pending("--shard", "1")] == [{"sum.later": n} for n in (4, 2, 2)]
    assert "no shard 7" in run("pending", "--shard", "7", *at).err
    assert [run("groups", "list", "sum.now", *shard, *at).row["dead_letters"] for shard in ((), ("--shard", "1"))] == [
        3,
        1,
    ]
    status = run("status", "--shard", "1", *at)
    assert status.row["cluster"][0]["shard"] == 1 and not status.err
    assert "one shard alone" in run("status", *at).err
    bearer = {"authorization": f"Bearer {admin}"}
    with gateway_alone(",".join(cluster.addresses)) as web:

        def told(path: str) -> list[int]:
            rows = web.ask("GET", path, headers=bearer).json["subjects"]
            return [row["pending"] for row in rows if row["subject"] == "sum.later"]

        assert [told("/v1/pending?by=subject" + shard) for shard in ("", "&shard=0", "&shard=1")] == [[4], [2], [2]]
        pages = []
        path = "/v1/groups?max=1"
        while path:
            page = web.ask("GET", path, headers=bearer).json
            pages += [(row["subject"], row["group"]) for row in page["groups"]]
            path = f"/v1/groups?max=1&after={page['next']}" if "next" in page else ""
        assert len(pages) == len(set(pages)) and ("sum.now", "g") in pages and pages == sorted(pages)
        assert web.ask("GET", "/v1/pending?shard=7", headers=bearer).status == 400
        assert web.ask("GET", "/v1/status?shard=1", headers=bearer).json["cluster"][0]["shard"] == 1
        read = "/v1/subjects/sum.now/messages"
        assert web.ask("GET", read, headers=bearer).status == 400
        assert len(web.ask("GET", f"{read}?shard=0", headers=bearer).json["messages"]) == 2


def test_a_listener_with_a_pattern_gets_the_messages_of_both_shards(cluster: Cluster, admin: str) -> None:
    came: set[str] = set()
    all_came = threading.Event()
    listener = ThreadListener("g")

    @listener("listen.*")
    def take(message: Delivery) -> None:
        came.add(message.message_id)
        if len(came) == 4:
            all_came.set()

    with Client(cluster.addresses, token=admin) as client:
        for each in ids("listen.one"):
            client.send("listen.one", "x", due_ms=time.time_ns() // 1_000_000, message_id=each)
        with listener.running(client):
            assert all_came.wait(UNHURRIED_S)
    assert came == set(ids("listen.one"))
