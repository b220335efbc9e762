"""Commands about receipts."""

from __future__ import annotations

import json

from delayserver.client import Client
from delayserver.protocol.limits import Limits
from tests.delayserver.cli.conftest import run
from tests.delayserver.client.fake_server import FakeServer


def test_receipts_are_asked_about_no_more_at_once_than_the_server_takes() -> None:
    with FakeServer(limits=Limits(batch_messages_max=2)) as server, Client(server.address) as client:
        receipts = client.send_columns("a", [1] * 2, [b"1", b"2"]).receipts()
        receipts += client.send_columns("a", [1], [b"3"]).receipts()
        for command in ("lookup", "cancel"):
            done = run(command, *receipts, "--server", server.address, "--json")
            assert [json.loads(line)["receipt"] for line in done.out.splitlines()] == receipts
            asked = [request.arguments["receipts"] for request in server.requests if request.operation == command]
            assert [len(part) for part in asked] == [2, 1]
