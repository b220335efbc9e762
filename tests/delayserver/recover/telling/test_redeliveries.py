"""`recover pending` shows the redeliveries that wait in a directory: no group gets them if its node is taken away."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from delayserver.client import Client
from tests.delayserver.cli.conftest import serving
from tests.delayserver.recover.directories import in_process


def test_pending_counts_and_lists_what_waits_for_redelivery(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with serving(path) as server, Client(server.address) as client:
        for number in range(5):
            client.publish("orders", f"{number}")
        deliveries = client.pull("orders", "shop", max_messages=5)
        client.nack("orders", "shop", deliveries[:3], timedelta(hours=1))
        client.ack("orders", "shop", deliveries[3:])
        [group] = client.groups("orders")
        assert (group.lag, group.retrying) == (3, 3)
        assert client.status()["broker"]["redeliveries_waiting"] == 3
    told = in_process("pending", str(path), "--json")
    assert told.last == {"pending": 0, "redeliveries": 3}
    assert {"subject": "orders", "group": "shop", "redeliveries": 3} in told.rows
    text = in_process("pending", str(path)).out.splitlines()
    assert text == ["group shop of orders: 3 wait for redelivery", "0 pending, 3 wait for redelivery"]
    listed = in_process("pending", str(path), "--list", "--bodies", "--json").rows
    assert [(row["redelivery_for"], row["body"]) for row in listed] == [("shop", f"{number}") for number in range(3)]
    assert in_process("pending", str(path), "--subject", "others", "--json").last == {"pending": 0, "redeliveries": 0}
