"""Clients of two shards, as processes on real Kafka: one token is enough for both."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import Unauthenticated
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import Done, run, start
from tests.delayserver.kafka.following import UNHURRIED_S
from tests.delayserver.kafka.processes import Cluster, Member, running

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


def test_a_token_is_valid_at_both_shards_until_it_is_revoked(cluster: Cluster, admin: str) -> None:
    shop = token(cluster, "create", "--role", "send", "--role", "consume").row
    for member in cluster.members.values():
        until_valid(member, shop["token"])
    with Client(cluster.addresses, token=shop["token"]) as client:
        sent = [client.send("s", "x", due_ms=time.time_ns() // 1_000_000) for _ in range(20)]
        assert len({each.receipt.partition("-")[0] for each in sent}) == 2, "both shards took some"
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
