"""Streams of deliveries: who may begin one, and what one holds whose client does not read."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import StorageFailed
from tests.delayserver.client.fake_server import Fail, FakeServer
from tests.delayserver.web.test_gateway import wait_until
from tests.delayserver.web.test_security import problem
from tests.delayserver.web.test_watching import events
from tests.delayserver.web.web_server import Web, gateway_alone, serve, stop

GROUP = "/v1/subjects/{}/groups/g/deliveries"
STREAMS_COUNT = 60
LARGE = 200_000
QUERIES: Mapping[str, str] = {
    "/v1/messages": "?subject=looked.at&message_id=m&due_ms={due_ms}",
    "/v1/find": "?subject=looked.at",
}
GROWTH_BYTES_MAX = 150 * 1024 * 1024
"""The room of streams, their small messages, and the memory of the interpreter for these."""


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024


def begin(web: Web, path: str, head: str = "") -> socket.socket:
    """A stream whose client has little room for what it does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((web.host, web.port))
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{head}\r\n".encode())
    return connection


def test_streams_that_nobody_reads_hold_little_and_give_it_back() -> None:
    web = serve("--memory", "--set", "http.body_timeout_ms=600000")
    try:
        with Client(web.address) as client, ExitStack() as stack:
            subject = "unread"
            for _ in range(100):
                client.publish(subject, b"\xff" * LARGE)
            assert web.ask("GET", "/healthz").status == 200
            gateway = web.gateway()
            before = resident_bytes(gateway)
            for number in range(STREAMS_COUNT):
                path = f"/v1/subjects/{subject}/groups/g{number}/deliveries"
                stack.enter_context(closing(begin(web, path)))

            def leased() -> list[int]:
                return [group.leased for group in client.groups(subject)]

            wait_until(lambda: len(leased()) == STREAMS_COUNT and min(leased()) > 0)
            # Messages that no client is about to read stay with their group, for its other consumers.
            assert all(client.pull(subject, f"g{number}", 1) for number in range(STREAMS_COUNT))
            assert max(leased()) * LARGE < 100 * LARGE / 2
            assert resident_bytes(gateway, "VmHWM") - before < GROWTH_BYTES_MAX
            stack.close()
            wait_until(lambda: resident_bytes(gateway) - before < GROWTH_BYTES_MAX / 3)
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()


def state_of(client: Client) -> list[Any]:
    """The messages and groups, without what only time changes."""
    status = client.status()
    return [
        [
            (each.subject, each.group, each.lag, each.leased, each.position, each.where, each.tags)
            for each in client.groups()
        ],
        {name: status[name] for name in ("accepted", "delivered", "cancelled", "pending")},
    ]


def test_many_streams_that_begin_at_once_stay_within_their_bound() -> None:
    web = serve("--memory", "--set", "http.streams_max=5")
    try:
        web.post("/v1/subjects/raced/publish", {"body": "x"})
        first_lines: list[bytes] = []
        with ExitStack() as stack:
            connections = [stack.enter_context(closing(web.connect())) for _ in range(100)]

            def ask(connection: socket.socket) -> None:
                path = GROUP.format("raced")
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())

            for connection in connections:
                ask(connection)
            first_lines = [connection.recv(65_536).partition(b"\r\n")[0] for connection in connections]
        assert first_lines.count(b"HTTP/1.1 200 OK") == 5, first_lines
        assert len([line for line in first_lines if b" 503 " in line]) == 95
        # The places come back.
        wait_until(lambda: web.post(GROUP.format("raced"), {"start": "never"}).status == 400)
        with closing(web.connect()) as connection:
            ask(connection)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()


TAKEN_FROM = "/v1/subjects/lured/groups/g"


@pytest.mark.parametrize("query", ["", "?ack=true"])
def test_a_get_without_a_header_that_no_link_can_send_takes_no_message(web: Web, query: str) -> None:
    web.post("/v1/subjects/lured/publish", {"body": "x"})
    # As a browser asks for an image of another page, where it says nothing about that page.
    headers = {
        "host": f"delay.example:{web.port}",
        "accept": "text/event-stream, */*",
        "referer": "http://other.example/",
    }
    problem(
        web.ask("GET", f"{TAKEN_FROM}/deliveries{query}", headers=headers | {"host": f"localhost:{web.port}"}),
        403,
        "cross_site",
    )
    (message,) = web.post(f"{TAKEN_FROM}/pull", {"ack": True}).json["messages"]
    assert message["attempt"] == 1


def test_a_stream_begins_with_post_or_with_such_a_header(web: Web) -> None:
    path = "/v1/subjects/begun/groups/g/deliveries"
    head = f"Host: localhost:{web.port}\r\n"
    own = f"GET {path}?ack=true HTTP/1.1\r\n{head}"
    begins = [
        f"POST {path} HTTP/1.1\r\n{head}Content-Length: 13\r\n\r\n" + json.dumps({"ack": True}).ljust(13),
        f"{own}X-Delayserver: 1\r\n\r\n",
        f"{own}Sec-Fetch-Site: same-origin\r\n\r\n",
    ]
    for begins_with in begins:
        web.post("/v1/subjects/begun/publish", {"body": begins_with})
        with closing(web.connect()) as connection, closing(connection.makefile("rb")) as answer:
            connection.sendall(begins_with.encode())
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
            ((_, data),) = events(answer, 1)
            assert data["body"] == begins_with


def test_no_other_get_changes_anything(web: Web) -> None:
    """Beside streams of deliveries. Every GET of the document, asked as a link asks."""
    sent = web.post("/v1/messages", {"subject": "looked.at", "body": "x", "delay": "1h", "message_id": "m"}).json
    web.post("/v1/subjects/looked.at/publish", {"body": "now"})
    web.post("/v1/subjects/looked.at/groups/before/pull", {"wait_ms": 1000})
    with Client(web.address) as client:
        before = state_of(client)
        asked = 0
        for path, methods in web.ask("GET", "/openapi.json").json["paths"].items():
            if "get" not in methods or path.endswith(("/deliveries", "/v1/live")):
                continue
            asked += 1
            filled = path.format(receipt=sent["receipt"], subject="looked.at", group="before", message_id="m")
            reply = web.ask("GET", filled + QUERIES.get(path, "").format(due_ms=sent["due_ms"]))
            assert reply.status == 200, (path, reply.body)
        assert asked >= 12 and state_of(client) == before


def test_what_a_stream_could_not_send_goes_back_to_its_group_as_no_attempt() -> None:
    with FakeServer() as server:
        server.leases = True
        server.wrong_replies["route"] = {
            "group": "main",
            "nodes": [{"address": server.address, "weight": 1, "here": True}],
        }
        with Client(server.address) as client:
            client.send_columns("a", 1, [b""] * 3)
        server.misbehave("ack", *[Fail(StorageFailed("the disk is broken"))] * 3)
        with gateway_alone(server.address) as alone:
            reply = alone.post("/v1/subjects/a/groups/g/deliveries", {"ack": True})
            assert reply.status == 200 and b"storage_failed" in reply.body
            wait_until(lambda: server.count("nack") == 1)
            assert stop(alone) == ""
    (nack,) = [request.arguments for request in server.requests if request.operation == "nack"]
    assert (nack["count"], nack["delay_ms"], nack["unseen"]) == (3, 0, True)
