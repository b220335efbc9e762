"""`deadline_ms` of any request, on real sockets: what comes too late is not carried out and is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from delayserver.protocol.frames import decode_reply, encode_request
from tests.delayserver.cli.conftest import Server, serving
from tests.delayserver.front.test_refused_is_freed import connect, read_frame, rows

PAST, FAR = 1, 1 << 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("deadlines") / "data") as running:
        yield running


def ask(server: Server, operation: str, **arguments: Any) -> Any:
    with connect(server) as client:
        client.sendall(encode_request(1, operation, arguments))
        reply = decode_reply(read_frame(client))
    return reply.result if reply.error is None else reply.error.name


MESSAGE = {"subject": "late", "body": b"x", "delay_ms": 0}
REQUESTS: dict[str, dict[str, Any]] = {
    "ping": {},
    "status": {},
    "send": rows(MESSAGE),
    "pull": {"subject": "late", "group": "g", "wait_ms": 1000},
    "ack": {"subject": "late", "group": "g", "count": 1, "deliveries": 1},
    "lookup": {"receipts": ["r"] * 100},
    "groups": {},
}


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_request_that_comes_after_its_deadline_is_not_carried_out_and_is_counted(
    server: Server, operation: str
) -> None:
    before = ask(server, "status")
    assert ask(server, operation, **REQUESTS[operation], deadline_ms=PAST) == "deadline_passed"
    after = ask(server, "status")
    assert after["errors"]["deadline_passed"] == before["errors"].get("deadline_passed", 0) + 1
    assert after["accepted"] == before["accepted"]


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_request_before_its_deadline_is_answered_as_ever(server: Server, operation: str) -> None:
    assert ask(server, operation, **REQUESTS[operation], deadline_ms=FAR) != "deadline_passed"
    assert ask(server, operation, **REQUESTS[operation], deadline_ms=None) != "deadline_passed"


@pytest.mark.parametrize("wrong", ["soon", -1, 1.5, True, [1]])
def test_a_deadline_that_is_no_time_is_refused_by_name(server: Server, wrong: Any) -> None:
    assert ask(server, "ping", deadline_ms=wrong) == "invalid_argument"


def test_a_held_pull_waits_until_its_deadline_at_most(server: Server) -> None:
    began = time.monotonic()
    deadline_ms = int(time.time() * 1000) + 300
    result = ask(server, "pull", subject="never", group="g", wait_ms=25_000, deadline_ms=deadline_ms)
    assert result["messages"] == []
    assert 0.2 < time.monotonic() - began < 20
