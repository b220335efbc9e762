"""`delayserver reload` and SIGHUP to real processes: groups, nodes, weights and routes are taken over, and what is wrong
changes nothing."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delayserver.client import Client
from tests.delayserver.cli.conftest import Server

NODES = """
[[groups]]
name = "east"
nodes = ["embedded", {{ address = "{address}", weight = {weight} }}]

[[routes]]
pattern = "*"
groups = ["east"]
"""


def node_of(client: Client, address: str) -> tuple[str, int]:
    (node,) = [node for node in client.route(group="east").nodes if node.address == address]
    return node.state, node.weight


def logged(log: Path, text: str) -> str:
    """The log of the server once it has a line with this text."""
    deadline_s = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)
    return log.read_text()


def send_and_count(client: Client, node: Client, name: str, count: int) -> tuple[int, int]:
    """Messages that the server's own broker and the node get of so many that are sent one by one."""
    for number in range(count):
        client.send(name, b"%d" % number, delay_ms=0)
    here, there, deadline_s = 0, 0, time.monotonic() + 60
    while here + there < count:
        assert time.monotonic() < deadline_s, (here, there)
        for each in (client, node):
            deliveries = each.pull(name, "g", wait_s=0.05)
            each.ack(name, "g", deliveries)
            here, there = (here + len(deliveries), there) if each is client else (here, there + len(deliveries))
    return here, there


def send_until_the_node_has_some(client: Client, node: Client, name: str) -> int:
    """How many were sent. How many go to the node depends on how quick it is, and it may not be connected yet."""
    sent = there = 0
    while not there:
        here, there = send_and_count(client, node, name, 40)
        sent += 40
        assert here + there == 40 and sent < 4_000
    return sent


def test_a_drained_node_gets_no_new_messages_and_comes_back(
    start_server: Callable[..., Server], begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    other = start_server(tmp_path / "node")
    config, log = tmp_path / "server.toml", tmp_path / "log"
    config.write_text(NODES.format(address=other.address, weight=1))
    with log.open("wb") as err:
        server = start_server(tmp_path / "data", "--config", str(config), stderr=err)

    def hang_up() -> None:
        server.process.send_signal(signal.SIGHUP)

    with Client(server.address) as client, Client(other.address) as node:
        sent = send_until_the_node_has_some(client, node, "a")

        config.write_text(NODES.format(address=other.address, weight=0))
        hang_up()
        logged(log, f"group east: the weight of {other.address} is 0, was 1, so it is drained")
        assert node_of(client, other.address) == ("draining", 0)
        assert send_and_count(client, node, "b", 40) == (40, 0)

        config.write_text(NODES.format(address=other.address, weight=0) + "[storage]\nwindow_ms = '30s'\n")
        hang_up()
        logged(log, "storage.window_ms: cannot change while the server runs")
        config.write_text("[[groups]\n")
        hang_up()
        logged(log, "is not TOML")
        config.write_text(NODES.format(address=other.address, weight=-1))
        hang_up()
        logged(log, "groups.nodes.weight: expected")
        assert node_of(client, other.address) == ("draining", 0), "nothing was changed"

        config.write_text(NODES.format(address=other.address, weight=3))
        hang_up()
        logged(log, "is 3, was 0")
        sent += send_until_the_node_has_some(client, node, "c")
        hang_up()
        logged(log, "nothing in it has changed")
        assert int(client.status()["accepted"]) == sent + 40
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0


def test_a_new_group_takes_waiting_messages_and_gives_them_back_when_it_is_removed(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    node = start_server(tmp_path / "node")
    config = tmp_path / "server.toml"
    config.write_text("")
    server = start_server(tmp_path / "data", "--config", str(config))
    with Client(server.address) as client, Client(node.address) as other:
        west = f'[[groups]]\nname = "west"\nnodes = ["{node.address}"]\n[[groups]]\nname = "default"\n'
        routes = (
            '[[routes]]\npattern = "orders.*"\ngroups = ["west"]\n[[routes]]\npattern = "*"\ngroups = ["default"]\n'
        )
        # On a busy machine a reload may end after the message is due. Then it is tried again with a later one.
        for delay_ms in (3_000, 30_000, 120_000):
            early = f"orders.early-{delay_ms}"
            sent = client.send(early, b"early", delay_ms=delay_ms)
            config.write_text(west + routes)
            assert server.run("reload", "--json").row["changes"] == [
                f"group west is new: {node.address} with the weight 1",
                "the routes are orders.* to west, * to default, were * to default",
                "subjects without a route go to west, went to default",
            ]
            if client.ping() < sent.due_ms * 1000:
                break
            config.write_text("")
            assert server.run("reload").code == 0
        assert [message.body for message in other.pull(early, "g", wait_s=180)] == [b"early"]

        config.write_text(west + routes + "[storage]\nwindow_ms = '30s'\n")
        refused = server.run("reload")
        assert refused.code == 1 and "config_invalid" in refused.err and "storage.window_ms" in refused.err
        assert client.route(subject="orders.eu").group == "west"

        for delay_ms in (5_000, 30_000, 120_000):
            sent = client.send("orders.eu", b"%d" % delay_ms, delay_ms=delay_ms)
            config.write_text("")
            assert "group west is removed" in server.run("reload").out
            if client.ping() < sent.due_ms * 1000:
                break
            config.write_text(west + routes)
            server.run("reload")
        waited = client.pull("orders.eu", "g", wait_s=60)
        assert [message.body for message in waited] == [b"%d" % delay_ms]
        assert "Nothing has changed." in server.run("reload").out
        assert list(client.status()["groups"]) == ["default"]


def test_without_a_file_the_signal_changes_nothing(start_server: Callable[..., Any], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as err:
        server = start_server(tmp_path / "data", stderr=err)
    server.process.send_signal(signal.SIGHUP)
    logged(log, "nothing in it has changed")
    assert server.run("status", "--json").row["ready"] is True
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
