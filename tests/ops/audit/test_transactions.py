"""The timers of transactions are a matter of the server: no broker has to have stored them."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="install the extra audit")
pytest.importorskip("pyspark", reason="install the extra audit")

from delayserver.client import Delivery
from ops.audit.command import report
from tests.ops.audit.server_process import ServerProcess
from tests.ports import free_port


def test_timers_that_asked_producers_are_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ServerProcess("serve", tmp_path / "data", free_port())
    server.start()
    try:
        with server.client() as client:
            after = timedelta(seconds=1)
            sent = [client.prepare("orders", b"x", group="shop", check_after=after, checks_max=9) for _ in range(5)]
            # The first timers have asked the producer's group before the commits.
            deadline = time.monotonic() + 60
            while sum([group.end for group in client.groups("shop.check")]) < 5 and time.monotonic() < deadline:
                client.pull("shop.check", "producer", 10, wait_s=1.0)
            for each in sent:
                client.commit(each.receipt)
            pulled: list[Delivery] = []
            while len(pulled) < 5 and time.monotonic() < deadline:
                pulled += client.pull("orders", "billing", 10, wait_s=5.0)
            client.ack("orders", "billing", pulled)
    finally:
        server.stop()
    code = report.main(["completeness", str(server.directory), "--broker-log", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert (code, found["not_stored"], found["evidence"]["not_stored"]) == (0, 0, [])
    assert found["broker"]["stored"] >= 10
