"""A single server becomes a cluster on real Kafka, and a cluster goes back to a moment: each message comes once."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delayserver.client import Client
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import run, start
from tests.delayserver.kafka.following import UNHURRIED_S, new_cluster
from tests.delayserver.kafka.processes import SUBJECT, Cluster, Member
from tests.ports import free_port

pytestmark = pytest.mark.kafka


def members(nodes: KafkaNodes, folder: Path, names: str) -> Cluster:
    """Members of a cluster that is not founded yet."""
    topic, port = new_cluster(nodes).topic, free_port(len(names))
    cluster = Cluster({name: Member(name, folder, f"127.0.0.1:{port + at}") for at, name in enumerate(names)})
    for name, member in cluster.members.items():
        member.file.write_text(
            f'[cluster]\nkafka = "{nodes.bootstrap}"\ntopic = "{topic}"\nmember = "{name}"\ncopies = 1\n'
        )
    return cluster


def kill(cluster: Cluster, *names: str) -> None:
    """End the processes of these members, if they live."""
    for name in names:
        member = cluster.members[name]
        if member.process is not None and member.process.poll() is None:
            member.signal(signal.SIGKILL)
            member.end()


def sent_to(address: str, count: int, delay_ms: int, first: int = 0) -> list[str]:
    """Send so many messages; their ids."""
    ids = [f"m{first + number}" for number in range(count)]
    with Client(address) as client:
        due_ms = time.time_ns() // 1_000_000 + delay_ms
        for each in ids:
            client.send(SUBJECT, each, due_ms=due_ms, message_id=each)
    return ids


def test_a_single_server_becomes_a_cluster_and_that_goes_back_to_a_moment(one_node: KafkaNodes, tmp_path: Path) -> None:
    cluster, port, place = members(one_node, tmp_path, "ab"), free_port(), str(tmp_path / "backups")
    first, second = cluster.members.values()
    single = start("serve", "--data-dir", str(tmp_path / "a"), "--port", str(port), "--http-port", "0", "--json")
    try:
        assert single.stdout is not None and single.stdout.readline()
        address = f"127.0.0.1:{port}"
        with Client(address) as client:
            client.send(SUBJECT, "before", delay_ms=0, message_id="before")
            (before,) = client.pull(SUBJECT, "g", wait_s=UNHURRIED_S, start="earliest")
            client.ack(SUBJECT, "g", [before])
        sent = sent_to(address, 20, 30_000)
    finally:
        single.kill()
        single.communicate()
    try:
        made = run("cluster", "init", "--cluster", str(first.file), "--from", str(tmp_path / "a"), "--json")
        assert made.code == 0 and len(made.row["made"]) == 4, made.err
        refused = run("serve", "--data-dir", str(tmp_path / "a"), "--port", str(port))
        assert (refused.code, "serve --cluster FILE" in refused.err) == (1, True), refused.err
        first.begin()
        assert first.ready()["standing"] == "primary"
        sent += sent_to(first.address, 5, 20_000, len(sent))
        assert run("backup", "--server", first.address, "--to", place, "--json").code == 0
        assert run("restore", "--from", place, "--data-dir", str(tmp_path / "b"), "--json").row["log_position"]
        second.begin()
        assert second.ready()["standing"] == "standby"
        kill(cluster, "a")
        assert cluster.primary() == "b"
        cluster.sent = sent
        assert cluster.consumed("g") == Counter(sent)
        moment = run("backup", "--server", second.address, "--to", place, "--json").row["taken_ms"]
        kill(cluster, "b")
        past = members(one_node, tmp_path, "cd")
        third = past.members["c"]
        back = ("--from", place, "--data-dir", str(tmp_path / "c"), "--to-time", time_of(moment - 1))
        done = run("restore", *back, "--json")
        assert (done.code, done.row["log_position"]) == (0, None), done.err
        assert run("recover", "check", str(tmp_path / "c")).code == 0
        assert run("cluster", "init", "--cluster", str(third.file), "--from", str(tmp_path / "c")).code == 0
        third.begin()
        assert third.ready()["standing"] == "primary"
        past.sent = sent_to(third.address, 3, 500, len(sent))
        # A member's message_log has what was delivered and acked up to the moment.
        assert past.consumed("g") == Counter(past.sent)
    finally:
        kill(cluster, *cluster.members)
        if "past" in locals():
            kill(past, *past.members)


def time_of(ms: int) -> str:
    """A moment for the command line."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
