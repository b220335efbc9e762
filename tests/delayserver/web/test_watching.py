"""Streams of deliveries, groups with their lag, and pulls whose client goes away."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from delayserver.client import Client
from tests.delayserver.web.test_gateway import wait_until
from tests.delayserver.web.web_server import ROOT, Web, serve, stop
from tests.forked import Program

DELIBERATE = {"x-delayserver": "1"}


@contextmanager
def stream(web: Web, path: str) -> Iterator[BinaryIO]:
    """The body of a stream, read line by line."""
    with closing(web.connect()) as connection, closing(connection.makefile("rb")) as answer:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Delayserver: 1\r\n\r\n".encode())
        yield answer


def events(answer: BinaryIO, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The next events: id and data."""
    found: list[tuple[str, dict[str, Any]]] = []
    event_id = ""
    while len(found) < count:
        line = answer.readline().decode()
        assert line, "the stream ended"
        name, _, value = line.rstrip().partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            found.append((event_id, json.loads(value)))
    return found


def test_deliveries_come_as_events_when_they_are_due(web: Web) -> None:
    path = "/v1/subjects/streamed/groups/g"
    with stream(web, f"{path}/deliveries?max_messages=2&body_as=json") as answer:
        for number in range(3):
            web.post("/v1/messages", {"subject": "streamed", "body": number, "delay_ms": 0})
        found = events(answer, 3)
    assert sorted(data["body"] for _, data in found) == [0, 1, 2]  # no message has an order key
    deliveries = [event_id for event_id, _ in found]
    assert deliveries == [data["delivery"] for _, data in found]
    assert web.post(f"{path}/ack", {"deliveries": deliveries}).json == {"acked": 3, "unknown": 0}


def test_a_stream_acks_its_messages_on_request(web: Web) -> None:
    path = "/v1/subjects/acked/groups/g"
    with stream(web, f"{path}/deliveries?ack=true") as answer:
        web.post("/v1/messages", {"subject": "acked", "body": "x", "delay_ms": 0})
        ((delivery, _),) = events(answer, 1)
        assert web.post(f"{path}/ack", {"deliveries": [delivery]}).json["unknown"] == 1


def test_a_stream_that_cannot_begin_is_a_problem_document(web: Web) -> None:
    for query, error in (
        ("where=x+%3D+", "filter_invalid"),
        ("max_messages=0", "invalid_argument"),
        ("a=1", "invalid_argument"),
    ):
        reply = web.ask("GET", f"/v1/subjects/s/groups/g/deliveries?{query}", headers=DELIBERATE)
        assert (reply.status, reply.json["error"]) == (400, error)


def test_groups_have_their_lag(web: Web) -> None:
    path = "/v1/subjects/lagging/groups/slow"
    web.post(f"{path}/pull", {})
    for _ in range(3):
        web.post("/v1/subjects/lagging/publish", {"body": "x"})
    web.post(f"{path}/pull", {"max_messages": 1})
    for place in ("/v1/subjects/lagging/groups", "/v1/groups?subject=lagging"):
        (group,) = web.ask("GET", place).json["groups"]
        assert (group["subject"], group["group"], group["lag"], group["leased"]) == ("lagging", "slow", 3, 1)
    everything = web.ask("GET", "/v1/groups").json
    assert "lagging" in {group["subject"] for group in everything["groups"]} and "next" not in everything


def test_groups_come_in_pages(web: Web) -> None:
    web.post("/v1/subjects/paged/publish", {"body": "x"})
    for group in "abc":
        web.post(f"/v1/subjects/paged/groups/{group}/pull", {})
    found, after = list[str](), ""
    for _ in range(5):
        page = web.ask("GET", f"/v1/groups?subject=paged&max=2{after}").json
        assert len(page["groups"]) <= 2
        found += [group["group"] for group in page["groups"]]
        if "next" not in page:
            break
        after = f"&after={page['next']}"
    assert sorted(found) == ["a", "b", "c"] and "next" not in page
    for wrong in ("after=x", "after=1", "after=1.2.3", "max=0", "max=257"):
        assert web.ask("GET", f"/v1/groups?{wrong}").json["error"] == "invalid_argument", wrong


def test_a_pull_ends_when_its_client_goes_away(web: Web) -> None:
    with Client(web.address) as client:
        # The pull of a stream of the test before ends a moment after the stream.
        wait_until(lambda: client.status()["broker"]["waiting_pulls"] == 0)
        with closing(web.connect()) as connection:
            body, began_s = b'{"wait_ms": 60000}', time.monotonic()
            head = b"POST /v1/subjects/gone/groups/g/pull HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: client.status()["broker"]["waiting_pulls"] == 1)
        wait_until(lambda: client.status()["broker"]["waiting_pulls"] == 0)
        assert time.monotonic() - began_s < 50, "it has waited to its own end"
    # Nobody has the message that comes now.
    web.post("/v1/subjects/gone/publish", {"body": "x"})
    (message,) = web.post("/v1/subjects/gone/groups/g/pull", {"wait_ms": 30_000}).json["messages"]
    assert message["attempt"] == 1


def test_the_gateway_counts_pending_messages_by_minute_hour_and_subject(web: Web) -> None:
    due_ms = web.post("/v1/messages", {"subject": "pending", "body": "x", "delay": "3h"}).json["due_ms"]
    for by, width_ms in (("minute", 60_000), ("hour", 3_600_000)):
        start_ms = due_ms // width_ms * width_ms
        path = f"/v1/pending?by={by}&from={start_ms}&to={start_ms + width_ms}"
        while not (buckets := web.ask("GET", path).json["buckets"]):
            pass  # The replay puts it there in a moment.
        assert buckets == [{"start_ms": start_ms, "width_ms": width_ms, "pending": 1}]
    subjects = web.ask("GET", "/v1/pending?by=subject").json["subjects"]
    assert {"subject": "pending", "pending": 1} in subjects
    within = web.ask("GET", f"/v1/pending?by=hour&from={due_ms - due_ms % 3_600_000}&to={due_ms + 1}").json["buckets"]
    assert [bucket["pending"] for bucket in within] == [1]
    assert web.ask("GET", "/v1/pending?by=subject&from=1").status == 400
    assert web.ask("GET", "/v1/pending?by=century").status == 400


def test_what_is_due_far_ahead_is_one_bucket_of_what_is_coming(web: Web) -> None:
    due_ms = [
        web.post("/v1/messages", {"subject": "far", "body": "x", "delay": delay}).json["due_ms"]
        for delay in ("300d", "450d", "700d")
    ]
    days = [each - each % 86_400_000 for each in due_ms]
    found: list[dict[str, int]] = []

    def are_there() -> bool:
        """In a moment, by the replay. And a listener gets what was read for the one before it."""
        with stream(web, "/v1/live") as answer:
            (first,) = [data for _, data in events(answer, 3) if "hours" in data]
        found[:] = [bucket for bucket in first["hours"] if bucket["start_ms"] >= days[0]]
        return [(bucket["start_ms"], bucket["pending"]) for bucket in found] == [(days[0], 1), (days[1], 2)]

    wait_until(are_there)
    assert found[1]["start_ms"] + found[1]["width_ms"] == days[2] + 86_400_000


def test_a_stream_starts_at_a_time_as_a_pull_does(web: Web) -> None:
    web.post("/v1/subjects/started/publish", {"body": "before"})
    time.sleep(0.05)
    start_ms = time.time_ns() // 1_000_000 - 25
    web.post("/v1/subjects/started/publish", {"body": "after"})
    with stream(web, f"/v1/subjects/started/groups/late/deliveries?ack=true&start={start_ms}") as answer:
        ((_, first),) = events(answer, 1)
    assert first["body"] == "after"
    assert web.ask("GET", "/v1/subjects/started/groups/late/deliveries?start=soon", headers=DELIBERATE).status == 400


def test_requests_about_a_subject_of_other_nodes_name_them(tmp_path: Path) -> None:
    node = Program(
        ["broker", "--data-dir", str(tmp_path / "node"), "--port", "0", "--http-port", "0", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert node.stdout is not None
        ready = json.loads(node.stdout.readline())
        address = f"{ready['host']}:{ready['port']}"
        routes = tmp_path / "server.toml"
        routes.write_text(
            f'[[groups]]\nname = "far"\nnodes = ["{address}"]\n[[groups]]\nname = "near"\nnodes = ["embedded"]\n'
            '[[routes]]\npattern = "far.*"\ngroups = ["far"]\n[[routes]]\npattern = "*"\ngroups = ["near"]\n'
        )
        server = serve("--data-dir", str(tmp_path / "data"), "--config", str(routes))
        try:
            asked = {"wait_ms": 60_000, "ack": True}
            for path in ("pull", "deliveries"):
                reply = server.post(f"/v1/subjects/far.a/groups/g/{path}", asked if path == "pull" else {})
                assert (reply.status, reply.json["error"]) == (421, "consumed_elsewhere"), reply
                assert reply.json["nodes"] == [address] and address in reply.json["detail"]
            group, number = "/v1/subjects/far.a/groups/g", {"deliveries": ["4611686018427387905"]}
            requests: list[tuple[str, str, object]] = [
                ("POST", f"{group}/ack", number),
                ("POST", f"{group}/nack", number),
                ("POST", f"{group}/extend", number),
                ("GET", "/v1/subjects/far.a/groups", None),
                ("GET", group, None),
                ("DELETE", group, None),
                ("POST", f"{group}/seek", {"to": "latest"}),
                ("GET", f"{group}/policy", None),
                ("PATCH", f"{group}/policy", {"attempts": 1}),
                ("GET", f"{group}/dead-letters", None),
                ("POST", f"{group}/dead-letters/resend", {}),
                ("POST", f"{group}/dead-letters/drop", {}),
                ("GET", f"{group}/waiting-keys", None),
                ("POST", f"{group}/waiting-keys/skip", {}),
                ("POST", f"{group}/waiting-keys/retry", {}),
                ("GET", "/v1/subjects/far.a/messages", None),
            ]
            for method, path, document in requests:
                reply = server.ask(method, path, document)
                assert (reply.status, reply.json.get("error")) == (421, "consumed_elsewhere"), (method, path, reply)
                assert reply.json["nodes"] == [address]
                near = server.ask(method, path.replace("far.a", "near.b"), document)
                assert near.status != 421, (method, path, near)
            for subject in ("near.a", "far.a"):
                assert server.post("/v1/messages", {"subject": subject, "body": "x", "delay_ms": 0}).status == 201
            assert len(server.post("/v1/subjects/near.a/groups/g/pull", asked).json["messages"]) == 1
            with Client(address) as client:
                assert len(client.pull("far.a", "g", wait_s=30)) == 1
        finally:
            stop(server)
    finally:
        node.kill()
        node.communicate()
