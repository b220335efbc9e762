"""Nodes of Kafka on this machine: they serve when `start` returns, and end, stand still and come back when they are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.kafka.nodes import KafkaNodes, NodeFailed, State
from tests.ports import free_port

pytestmark = pytest.mark.kafka


def states(nodes: KafkaNodes) -> list[State]:
    return [each.state for each in nodes.status()]


def topics(nodes: KafkaNodes) -> set[str]:
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": nodes.bootstrap})
    return set(client.list_topics().topics)


def test_a_killed_node_comes_back_with_its_data(kafka: KafkaNodes) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    client.create_topics([NewTopic("kept")])["kept"].result()
    kafka.kill(1)
    assert states(kafka) == [State.DEAD]
    kafka.start()
    assert states(kafka) == [State.RUNNING]
    assert "kept" in topics(kafka)


def test_a_paused_node_goes_on(kafka: KafkaNodes) -> None:
    kafka.pause(1)
    assert states(kafka) == [State.PAUSED]
    kafka.resume(1)
    assert states(kafka) == [State.RUNNING]
    topics(kafka)


def test_the_command_goes_on_with_the_nodes_of_another_process(kafka: KafkaNodes) -> None:
    command = [
        sys.executable,
        "-m",
        "ops.kafka",
        "--folder",
        str(kafka.folder),
        "--nodes",
        "1",
        "--port",
        str(kafka.port),
    ]
    assert subprocess.run([*command, "pause", "1"], check=True).returncode == 0
    shown = subprocess.run([*command, "status"], check=True, capture_output=True, text=True).stdout
    assert shown == f"1 {kafka.bootstrap} paused {kafka.status()[0].pid}\n"
    assert (
        subprocess.run([*command, "start"], check=True, capture_output=True, text=True).stdout == f"{kafka.bootstrap}\n"
    )
    assert states(kafka) == [State.RUNNING]


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    nodes = KafkaNodes(tmp_path, 1, free_port(2), settings={"log.segment.bytes": "many"})
    with pytest.raises(NodeFailed, match=r"(?s)Invalid value many for configuration log\.segment\.bytes"):
        nodes.start()
    assert states(nodes) == [State.DEAD]


def test_a_process_id_of_another_program_is_no_node(tmp_path: Path) -> None:
    nodes = KafkaNodes(tmp_path, 1, free_port(2))
    (tmp_path / "1.pid").write_text("1")
    assert states(nodes) == [State.DEAD]
    nodes.stop()
