"""The log of real members rises to their version when the last older member is forgotten, and then they use it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.members.member_map import Announced
from ops.kafka.nodes import KafkaNodes
from store.shared.payload import LOG_VERSION
from tests.delayserver.cli.conftest import run
from tests.delayserver.kafka.following import UNHURRIED_S
from tests.delayserver.kafka.processes import Cluster, Member, running
from tests.ports import free_port

pytestmark = pytest.mark.kafka

# Of the broker's store a segment is kept that is not full, and nothing else that was acked.
GIVES_UP_AT_ONCE = ("broker.segment_bytes=16384", "broker.retention_ms=0", "storage.clock_hold_ms=1")


def log_versions(cluster: Cluster) -> list[int]:
    return [row["log_version"] for row in cluster.run("status", "--json").rows if row["log_version"] is not None]


def kinds(member: Member) -> set[str]:
    """Those of the records in its message_log."""
    segments = sorted((member.folder / member.name / "message_log").glob("*.log"))
    rows = [row for path in segments for row in run("recover", "dump", str(path), "--records").rows]
    return {row["record"] for row in rows if "record" in row}


def publish_and_ack(cluster: Cluster) -> None:
    with Client(cluster.addresses) as client:
        for _ in range(20):
            client.publish("s", b"b" * 4_000)
            client.ack("s", "g", client.pull("s", "g", wait_s=UNHURRIED_S, start="earliest"))


def first_kept(member: Member) -> int:
    with Client(member.address) as client:
        return client.read("s", 0).first


def test_the_log_rises_when_an_older_member_is_forgotten(one_node: KafkaNodes, tmp_path: Path) -> None:
    older = Announced("old", 0, f"127.0.0.1:{free_port()}", "", "0.1", f"{1:016x}")
    options = tuple([word for setting in GIVES_UP_AT_ONCE for word in ("--set", setting)])
    with running(one_node, tmp_path, "ab", options=options, before=older) as cluster:
        first, second = cluster.members.values()
        publish_and_ack(cluster)
        while first_kept(first) == 0:
            time.sleep(0.1)
        assert "its log has version 0, and old reads none above 0: it does not rise" in cluster.run("status").out
        assert log_versions(cluster) == [0, 0]
        assert "kept" not in kinds(first) | kinds(second), "each member gives up by its own clock"
        assert cluster.run("forget", "--member", "old").code == 0
        while log_versions(cluster) != [LOG_VERSION, LOG_VERSION]:
            time.sleep(0.1)
        assert f"its log has version {LOG_VERSION}\n" in cluster.run("status").out
        publish_and_ack(cluster)
        while first_kept(first) < 36:  # a segment has four messages
            time.sleep(0.1)
        kept = first_kept(first)
        first.signal(signal.SIGKILL)
        first.end()
        assert cluster.primary() == "b"
        assert first_kept(second) == kept
        assert "kept" in kinds(second), "from the log"
