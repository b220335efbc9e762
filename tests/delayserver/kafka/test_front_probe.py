"""A primary on real Kafka that clients cannot reach any more hands over to its standby."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.processes import running
from tests.delayserver.kafka.relay import Relay
from tests.ports import free_port

pytestmark = pytest.mark.kafka


def test_a_primary_that_is_cut_off_from_clients_only_hands_over(one_node: KafkaNodes, tmp_path: Path) -> None:
    with running(one_node, tmp_path, "ab") as cluster:
        first = cluster.members["a"]
        first.signal(signal.SIGTERM)
        assert first.end()[0] == 0
        first.port = free_port()
        with Relay(first.address, first.port) as relay:
            first.begin()
            first.ready()
            assert cluster.run("switch", "--to", "a").code == 0
            with cluster.under_load():
                relay.cut()
                assert cluster.primary() == "b"
            rows = {row["member"]: row for row in cluster.run("status", "--json").rows}
            assert rows["b"]["front"] == "does not reach a"
            assert "does not reach a" in cluster.run("status").out
        with Relay(first.address, first.port):
            rows = {row["member"]: row for row in cluster.run("status", "--json").rows}
            assert (rows["a"]["role"], rows["a"]["epoch"]) == ("standby", rows["b"]["epoch"])
            assert set(cluster.consumed("cut off").values()) == {1}
        first.signal(signal.SIGTERM)
        code, said = first.end()
        assert code == 0
        assert f"no member reaches {first.address}, so this primary hands over to b" in said
