"""The gateway as a process, and the first things that a stranger tries with curl."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from delayserver.client import AsyncClient, Client
from delayserver.protocol.errors import Unauthenticated
from delayserver.web.bodies import TOKEN
from delayserver.web.clients import Clients
from delayserver.web.gateway_process import NICE
from tests.delayserver.cli.conftest import run
from tests.delayserver.web.web_server import SECONDS_MAX, Web, gateway_alone, serve, stop


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    until = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_message_comes_back_when_it_is_due(web: Web) -> None:
    sent = web.post("/v1/messages", {"subject": "orders", "body": "cancel order 7", "delay": "50ms"})
    assert sent.status == 201 and sent.headers["content-type"] == "application/json"
    assert sent.body.endswith(b"}\n") and web.ask("GET", "/v1/nothing").body.endswith(b"}\n")
    assert set(sent.json) == {"receipt", "message_id", "subject", "due_ms", "sequence"}
    pulled = web.post("/v1/subjects/orders/groups/billing/pull", {"max_messages": 10, "wait_ms": 30_000})
    assert pulled.status == 200
    (message,) = pulled.json["messages"]
    assert (message["body"], message["body_encoding"]) == ("cancel order 7", "text")
    assert (message["message_id"], message["due_ms"]) == (sent.json["message_id"], sent.json["due_ms"])
    assert message["dispatched_ms"] >= message["due_ms"] and message["attempt"] == 1
    acked = web.post("/v1/subjects/orders/groups/billing/ack", {"deliveries": [message["delivery"]]})
    assert acked.json == {"acked": 1, "unknown": 0}
    found = web.ask("GET", f"/v1/messages/{sent.json['receipt']}").json
    assert (found["outcome"], found["body"], found["message_id"]) == (
        "delivered", "cancel order 7", sent.json["message_id"],
    )  # fmt: skip


def test_a_nacked_message_comes_again(web: Web) -> None:
    path = "/v1/subjects/nacked/groups/g"
    web.post("/v1/messages", {"subject": "nacked", "body": "x", "delay_ms": 0})
    (first,) = web.post(f"{path}/pull", {"wait_ms": 30_000}).json["messages"]
    nacked = web.post(f"{path}/nack", {"deliveries": [first["delivery"]], "delay_ms": 10})
    assert nacked.json == {"nacked": 1, "unknown": 0, "expired": 0, "dead_lettered": 0}
    (again,) = web.post(f"{path}/pull", {"wait_ms": 30_000, "ack": True}).json["messages"]
    assert (again["message_id"], again["attempt"]) == (first["message_id"], 2)
    # The pull has acked it.
    for settle, count in (("ack", "acked"), ("nack", "nacked")):
        reply = web.post(f"{path}/{settle}", {"deliveries": [int(again["delivery"])]})
        assert (reply.status, reply.json["error"], reply.json[count], reply.json["unknown"]) == (
            409, "deliveries_unknown", 0, 1,
        )  # fmt: skip
        assert web.post(f"{path}/{settle}", {"deliveries": []}).status == 200


def test_a_lease_is_extended_until_it_has_ended(web: Web) -> None:
    path = "/v1/subjects/extended/groups/g"
    web.post("/v1/messages", {"subject": "extended", "body": "x", "delay_ms": 0})
    (first,) = web.post(f"{path}/pull", {"wait_ms": 30_000}).json["messages"]
    asked = {"deliveries": [first["delivery"]]}
    assert web.post(f"{path}/extend", asked).json == {"extended": 1, "unknown": 0}
    # Also to an earlier end.
    assert web.post(f"{path}/extend", asked | {"ack_timeout_ms": 1}).json == {"extended": 1, "unknown": 0}
    (again,) = web.post(f"{path}/pull", {"wait_ms": 30_000, "ack": True}).json["messages"]
    assert again["attempt"] == 2
    ended = web.post(f"{path}/extend", asked)
    assert (ended.status, ended.json["error"], ended.json["extended"]) == (409, "deliveries_unknown", 0)
    assert web.post(f"{path}/extend", asked | {"ack_timeout_ms": 86_400_001}).status == 400


def test_a_cancelled_message_says_so(web: Web) -> None:
    receipt = web.post("/v1/messages", {"subject": "s", "body": "x", "delay": "1h"}).json["receipt"]
    assert web.ask("GET", f"/v1/messages/{receipt}").json["outcome"] == "pending"
    assert web.ask("DELETE", f"/v1/messages/{receipt}").json == {"outcome": "cancelled", "receipt": receipt}
    again = web.ask("DELETE", f"/v1/messages/{receipt}")
    assert (again.status, again.json["outcome"]) == (200, "already_cancelled")
    moved = web.ask("PATCH", f"/v1/messages/{receipt}", {"delay": "2h"})
    assert (moved.status, moved.json["error"]) == (409, "message_ended")
    assert (moved.json["outcome"], moved.json["receipt"]) == ("already_cancelled", receipt)
    assert web.ask("GET", f"/v1/messages/{receipt}").json["outcome"] == "cancelled"


def test_a_message_is_found_moved_and_cancelled_by_its_id_alone(web: Web) -> None:
    sent = {"subject": "by/id", "body": "x", "delay": "1h", "message_id": "order 7/a"}
    receipt = web.post("/v1/messages", sent).json["receipt"]
    path = "/v1/subjects/by%2Fid/messages/order%207%2Fa"
    found = web.ask("GET", path).json
    assert (found["receipt"], found["outcome"], found["body"]) == (receipt, "pending", "x")
    moved = web.ask("PATCH", path, {"delay": "2h"}).json
    assert (moved["outcome"], moved["message_id"]) == ("rescheduled", "order 7/a")
    assert web.ask("DELETE", path).json == {"outcome": "cancelled", "receipt": moved["new_receipt"]}
    for method in ("GET", "DELETE"):
        reply = web.ask(method, "/v1/subjects/by%2Fid/messages/none")
        assert (reply.status, reply.json["error"]) == (404, "message_unknown")


def test_a_message_that_was_delivered_is_neither_cancelled_nor_moved(web: Web) -> None:
    sent = {"subject": "gone", "body": "x", "delay_ms": 0, "message_id": "m"}
    receipt = web.post("/v1/messages", sent).json["receipt"]
    assert web.post("/v1/subjects/gone/groups/g/pull", {"wait_ms": 30_000, "ack": True}).json["messages"]
    found = web.ask("GET", f"/v1/messages/{receipt}").json
    key = f"/v1/messages?subject=gone&message_id=m&due_ms={found['due_ms']}"
    for path in (f"/v1/messages/{receipt}", key):
        for method, document in (("DELETE", None), ("PATCH", {"delay": "2h"})):
            reply = web.ask(method, path, document)
            assert (reply.status, reply.json["error"]) == (409, "message_ended")
            assert reply.json["outcome"] == "delivered"


def test_a_message_that_was_never_sent_is_unknown(web: Web) -> None:
    receipt = web.post("/v1/messages", {"subject": "s", "body": "x", "delay": "1h"}).json["receipt"]
    other = receipt[:-6] + "ffffff"
    for method in ("GET", "DELETE", "PATCH"):
        reply = web.ask(method, f"/v1/messages/{other}", {"delay": "2h"} if method == "PATCH" else None)
        assert (reply.status, reply.json["outcome"], reply.json["error"]) == (404, "unknown", "message_unknown")


@pytest.mark.parametrize(
    ("document", "status", "error"),
    [
        ({"subject": "s", "body": "x"}, 400, "invalid_argument"),
        ({"subject": "s", "body": "x", "delay": "1h", "delay_ms": 5}, 400, "invalid_argument"),
        ({"subject": "s", "body": "x", "delay": "soon"}, 400, "invalid_argument"),
        ({"subject": "s", "body": "x", "at": "2027-01-01T00:00:00"}, 400, "invalid_argument"),
        ({"subject": "s", "delay": "1h"}, 400, "invalid_argument"),
        ({"subject": "s", "body": "x", "body_base64": "eA==", "delay": "1h"}, 400, "invalid_argument"),
        ({"subject": "s", "body_base64": "?", "delay": "1h"}, 400, "invalid_argument"),
        ({"subject": "s", "body": "x", "delay": "1h", "dealy": 1}, 400, "invalid_argument"),
        ({"subject": "", "body": "x", "delay": "1h"}, 400, "subject_invalid"),
        ({"subject": "s", "body": "x", "delay": "9999d"}, 422, "too_far"),
        ({"subject": "s", "body": "x", "due_ms": 1}, 422, "too_old"),
        ({"subject": "s", "body": "x" * 2_000_000, "delay": "1h"}, 413, "message_too_large"),
        (b"{", 400, "malformed_request"),
        (b"", 400, "malformed_request"),
        (b"7", 400, "invalid_argument"),
    ],
)
def test_a_wrong_message_is_a_problem_document_with_the_name_of_its_error(
    web: Web, document: object, status: int, error: str
) -> None:
    reply = web.post("/v1/messages", document)
    assert reply.headers["content-type"] == "application/problem+json"
    assert (reply.status, reply.json["status"], reply.json["error"]) == (status, status, error), reply.json
    assert reply.json["type"] == f"urn:delayserver:error:{error}" and reply.json["title"] and reply.json["detail"]


def test_a_path_or_method_that_is_not_there_is_a_problem_document(web: Web) -> None:
    assert (web.ask("GET", "/v1/nothing").status, web.ask("GET", "/v1/nothing").json["error"]) == (404, "path_unknown")
    reply = web.ask("PUT", "/healthz")
    assert (reply.status, reply.json["error"], reply.headers["allow"]) == (405, "method_not_allowed", "GET")


def test_a_subject_in_a_path_may_hold_any_character(web: Web) -> None:
    web.post("/v1/messages", {"subject": "a/b ü?#", "body": "x", "delay_ms": 0})
    path = "/v1/subjects/a%2Fb%20%C3%BC%3F%23/groups/g/pull"
    (message,) = web.post(path, {"wait_ms": 30_000, "ack": True}).json["messages"]
    assert message["subject"] == "a/b ü?#"


def test_the_probes_say_that_the_server_is_well(web: Web) -> None:
    assert (web.ask("GET", "/healthz").status, web.ask("GET", "/healthz").json) == (200, {"status": "ok"})
    assert (web.ask("GET", "/readyz").status, web.ask("GET", "/readyz").json) == (200, {"status": "ready"})
    assert web.ask("HEAD", "/healthz").body == b""


def test_the_console_is_at_the_root(web: Web) -> None:
    reply = web.ask("GET", "/")
    assert reply.status == 200 and b"<title>delayserver" in reply.body
    assert web.ask("GET", "/../gateway.py").status == 404
    assert web.ask("GET", "/%2e%2e/gateway.py").status == 404


def test_live_figures_come_as_events(web: Web) -> None:
    with closing(web.connect()) as listener, closing(listener.makefile("rb")) as lines:
        listener.sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data: list[dict[str, Any]] = []
        while len(data) < 4:
            line = lines.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                data.append(json.loads(line[6:]))
    past, coming, first, second = data
    assert [*past] == ["samples"]
    assert [*coming] == ["hours"]
    assert [*first] == ["metrics", "minutes"], "it has one shard"
    assert first["metrics"]["ready"] is True
    assert second["metrics"]["clock"]["server_us"] > first["metrics"]["clock"]["server_us"]


def test_a_gateway_that_dies_starts_again_and_its_port_stays(tmp_path: Path) -> None:
    web = serve("--data-dir", str(tmp_path / "data"))
    try:
        assert web.ask("GET", "/healthz").status == 200
        before = web.gateway()
        os.kill(before, signal.SIGKILL)
        # The kernel keeps the request until the next gateway is there.
        wait_until(lambda: not is_running(before))
        assert web.ask("GET", "/healthz").status == 200
        assert web.gateway() != before
        assert "the HTTP gateway ended with code -9" in stop(web)
    finally:
        web.process.kill()
        web.process.communicate()


def test_a_gateway_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    web = serve("--data-dir", str(tmp_path / "data"))
    try:
        assert web.ask("GET", "/healthz").status == 200
        gateway = web.gateway()
    finally:
        web.process.kill()
    wait_until(lambda: not is_running(gateway))
    web.process.communicate()


def test_a_port_that_is_taken_is_an_error_of_the_start(web: Web, tmp_path: Path) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--http-port", str(web.port))
    assert (done.code, done.out) == (1, "")
    assert f"cannot listen for HTTP on 127.0.0.1:{web.port}: another process" in done.err and "--http-port" in done.err


def test_a_gateway_can_run_alone(web: Web) -> None:
    with gateway_alone(web.address) as alone:
        assert alone.ask("GET", "/readyz").json == {"status": "ready"}
        assert stop(alone) == ""


def test_a_gateway_without_a_server_says_so() -> None:
    with gateway_alone("127.0.0.1:1") as alone:
        for path in ("/healthz", "/readyz"):
            assert (alone.ask("GET", path).status, alone.ask("GET", path).json["error"]) == (502, "connection_lost")
        reply = alone.post("/v1/messages", {"subject": "s", "body": "x", "due_ms": 2**41})
        assert (reply.status, reply.json["error"]) == (502, "connection_lost")
        alone.process.terminate()
        assert alone.process.wait(SECONDS_MAX) == 0


def test_the_server_goes_before_its_gateway(web: Web) -> None:
    assert web.ask("GET", "/healthz").status == 200
    server, gateway = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (web.process.pid, web.gateway()))
    assert gateway == min(server + NICE, 19)


def test_the_first_token_of_a_server_closes_its_figures_to_clients_without_one() -> None:
    web = serve("--memory")
    try:
        with closing(web.connect()) as connection, closing(connection.makefile("rb")) as answer:
            connection.sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while answer.readline() != b"event: live\n":
                pass
            assert web.ask("GET", "/metrics").status == 200
            with Client(web.address) as client:
                client.token("admin")
            for path in ("/metrics", "/v1/live", "/v1/cluster"):
                with closing(web.connect()) as other:
                    other.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    assert other.recv(65_536).startswith(b"HTTP/1.1 401 ")
            until = time.monotonic() + SECONDS_MAX
            while answer.readline() != b"0\r\n":
                assert time.monotonic() < until, "the stream goes on"
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()


def test_invented_tokens_share_one_client_until_the_server_has_a_token() -> None:
    web = serve("--memory")

    async def use() -> None:
        async with Clients(web.address) as clients:
            anonymous = await clients.of_request({})
            for letter in "ab":
                assert await clients.of_request({TOKEN: f"dst_{letter * 12}_{letter * 43}"}) is anonymous
            async with AsyncClient(web.address) as operator:
                first = await operator.token("admin")
            with pytest.raises(Unauthenticated):
                await clients.of_request({TOKEN: f"dst_{'a' * 12}_{'a' * 43}"})
            assert await clients.of_request({TOKEN: first.text}) is not anonymous

    try:
        anyio.run(use)
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()
