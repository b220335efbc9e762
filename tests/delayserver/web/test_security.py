"""Who may do what over HTTP: tokens, sessions of the console, pages of other sites, and the headers of every answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from delayserver.client import Client
from delayserver.protocol.errors import QueueFull
from delayserver.web.bodies import TOKEN
from delayserver.web.clients import Clients
from tests.delayserver.cli.conftest import run
from tests.delayserver.web.test_attacks import to_the_end
from tests.delayserver.web.web_server import SECONDS_MAX, Reply, Web, serve, stop

MESSAGE = {"subject": "orders.a", "body": "x", "delay": "1h"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Guarded:
    """A server with tokens, and one token of each kind."""

    def __init__(self, web: Web, admin: str) -> None:
        self.web, self.admin = web, admin
        with Client(web.address, token=admin) as client:
            self.shop = client.token(["send", "consume"], "orders*").text
            self.other = client.token(["send", "consume", "look"], "bills*").text
            self.look = client.token("look").text
            self.look_at_bills = client.token("look", "bills*").text
            self.slow = client.token("send", "orders*", rate=1).text
            self.gone = client.token("send").text
            client.revoke_token(self.gone[4:16])

    def ask(self, token: str, method: str, path: str, document: object = None, **headers: str) -> Reply:
        return self.web.ask(method, path, document, headers=bearer(token) | headers)


def first_admin(data: Path) -> str:
    """A token for all, in a new data directory."""
    return str(run("token", "create", "--role", "admin", "--json", "--data-dir", str(data)).row["token"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded") / "data"
    admin = first_admin(data)
    web = serve("--data-dir", str(data))
    yield Guarded(web, admin)
    assert stop(web) == ""


def problem(reply: Reply, status: int, error: str) -> dict[str, Any]:
    assert (reply.status, reply.json["error"]) == (status, error), reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert ("www-authenticate" in reply.headers) == (status == 401)
    document: dict[str, Any] = reply.json
    return document


def test_a_token_opens_its_subjects_and_a_message_comes_back(guarded: Guarded) -> None:
    sent = guarded.ask(guarded.shop, "POST", "/v1/messages", MESSAGE | {"delay": "0s"})
    assert sent.status == 201
    path = "/v1/subjects/orders.a/groups/g/pull"
    (message,) = guarded.ask(guarded.shop, "POST", path, {"wait_ms": 20_000, "ack": True}).json["messages"]
    assert message["body"] == "x"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x", "Basic dXNlcjpwYXNz", "Bearer dst_0123456789ab_" + "A" * 43, "Bearer " + "x" * 8_000],
)
def test_a_wrong_token_is_unauthenticated_everywhere(guarded: Guarded, header: str) -> None:
    for method, path, document in (
        ("POST", "/v1/messages", MESSAGE),
        ("GET", "/v1/status", None),
        ("GET", "/v1/live", None),
        ("GET", "/metrics", None),
        ("DELETE", "/v1/messages/whatever", None),
        ("POST", "/v1/subjects/orders.a/groups/g/pull", {}),
    ):
        headers = {"authorization": header} if header else {}
        problem(guarded.web.ask(method, path, document, headers=headers), 401, "unauthenticated")


def test_a_revoked_token_is_unauthenticated(guarded: Guarded) -> None:
    problem(guarded.ask(guarded.gone, "POST", "/v1/messages", MESSAGE), 401, "unauthenticated")


def test_a_token_that_is_revoked_while_it_is_in_use_ends_at_once(guarded: Guarded) -> None:
    with Client(guarded.web.address, token=guarded.admin) as client:
        made = client.token("send", "orders*")
        assert guarded.ask(made.text, "POST", "/v1/messages", MESSAGE).status == 201
        client.revoke_token(made.token.id)
    problem(guarded.ask(made.text, "POST", "/v1/messages", MESSAGE), 401, "unauthenticated")


# Each request to an endpoint that needs a token, about what is another tenant's. `{receipt}` is that of a message of
# `orders.a`. The answer is `forbidden`, `message_unknown` for a receipt, or a list without anything of the other tenant.
KEY = "subject=orders.a&message_id=theirs&due_ms={due_ms}"
BY_ID = "/v1/subjects/orders.a/messages/{message_id}"
IN_GROUP = "/v1/subjects/orders.a/groups/theirs"
FORBIDDEN: list[tuple[str, str, object]] = [
    ("POST", "/v1/messages", MESSAGE),
    ("GET", "/v1/messages/{receipt}", None),
    ("GET", "/v1/messages/{receipt}?times=true", None),
    ("DELETE", "/v1/messages/{receipt}", None),
    ("PATCH", "/v1/messages/{receipt}", {"delay": "2h"}),
    ("GET", f"/v1/messages?{KEY}", None),
    ("DELETE", f"/v1/messages?{KEY}", None),
    ("PATCH", f"/v1/messages?{KEY}", {"delay": "2h"}),
    ("GET", BY_ID, None),
    ("DELETE", BY_ID, None),
    ("PATCH", BY_ID, {"delay": "2h"}),
    ("POST", "/v1/subjects/orders.a/publish", {"body": "x"}),
    ("POST", f"{IN_GROUP}/pull", {}),
    ("POST", f"{IN_GROUP}/pull", {"ack": True, "tags": "paid", "where": "n > 3"}),
    ("POST", f"{IN_GROUP}/ack", {"deliveries": ["{delivery}"]}),
    ("POST", f"{IN_GROUP}/nack", {"deliveries": ["{delivery}"]}),
    ("POST", f"{IN_GROUP}/extend", {"deliveries": ["{delivery}"]}),
    ("GET", f"{IN_GROUP}/deliveries", None),
    ("POST", f"{IN_GROUP}/deliveries", None),
    ("GET", "/v1/subjects/orders.a/groups", None),
    ("GET", IN_GROUP, None),
    ("DELETE", IN_GROUP, None),
    ("POST", f"{IN_GROUP}/seek", {"to": "latest"}),
    ("GET", f"{IN_GROUP}/policy", None),
    ("PATCH", f"{IN_GROUP}/policy", {"attempts": 1}),
    ("GET", f"{IN_GROUP}/waiting-keys", None),
    ("POST", f"{IN_GROUP}/waiting-keys/skip", {}),
    ("POST", f"{IN_GROUP}/waiting-keys/retry", {}),
    ("GET", f"{IN_GROUP}/dead-letters", None),
    ("POST", f"{IN_GROUP}/dead-letters/resend", {}),
    ("POST", f"{IN_GROUP}/dead-letters/drop", {}),
    ("GET", "/v1/subjects/orders.a/messages", None),
    ("POST", "/v1/transactions", {"subject": "orders.a", "body": "x", "group": "theirs"}),
    ("POST", "/v1/transactions/{receipt}/commit", {}),
    ("POST", "/v1/transactions/{receipt}/rollback", None),
    ("POST", "/v1/reload", None),
    ("GET", "/v1/find?subject=orders.a", None),
    ("GET", "/v1/live", None),
    ("GET", "/v1/cluster", None),
    ("GET", "/metrics", None),
]
LEFT_OUT: list[tuple[str, str, object]] = [
    ("GET", "/v1/find?message_id=theirs", None),
    ("GET", "/v1/groups", None),
    ("GET", "/v1/groups?subject=*", None),
    ("GET", "/v1/pending?by=subject", None),
    ("GET", "/v1/pending", None),
    ("GET", "/v1/transactions", None),
    ("GET", "/v1/status", None),
]
# No token is asked for.
OPEN = {
    ("GET", "/openapi.json"), ("GET", "/healthz"), ("GET", "/readyz"),
    ("POST", "/login"), ("POST", "/logout"), ("GET", "/v1/session"),
}  # fmt: skip


@dataclass(frozen=True)
class Theirs:
    """What a tenant has: a message that is pending, one that is leased to a group, and one that is stored."""

    receipt: str
    due_ms: int
    delivery: str

    def fill(self, text: str) -> str:
        """A path or a document with the names of these."""
        for name, value in (
            ("receipt", self.receipt),
            ("due_ms", str(self.due_ms)),
            ("delivery", self.delivery),
            ("message_id", "theirs"),
        ):
            text = text.replace(f"{{{name}}}", value)
        return text


@pytest.fixture(scope="module")
def theirs(guarded: Guarded) -> Theirs:
    pending = guarded.ask(guarded.shop, "POST", "/v1/messages", MESSAGE | {"message_id": "theirs"}).json
    assert guarded.ask(guarded.shop, "POST", "/v1/subjects/orders.a/publish", {"body": "leased"}).status == 201
    pull = {"wait_ms": 20_000, "ack_timeout_ms": 3_600_000, "max_messages": 1}
    (leased,) = guarded.ask(guarded.shop, "POST", f"{IN_GROUP}/pull", pull).json["messages"]
    return Theirs(pending["receipt"], pending["due_ms"], leased["delivery"])


def state_of(guarded: Guarded, theirs: Theirs) -> dict[str, Any]:
    """What an administrator sees of a tenant: the messages, the groups and the counts."""
    status = guarded.ask(guarded.admin, "GET", "/v1/status").json
    groups = guarded.ask(guarded.admin, "GET", "/v1/subjects/orders.a/groups").json["groups"]
    kept = ("group", "position", "end", "lag", "leased", "retrying")
    return {
        "message": guarded.ask(guarded.admin, "GET", f"/v1/messages/{theirs.receipt}").json,
        "groups": [{name: group[name] for name in kept} for group in groups],
        "counts": [status[name] for name in ("accepted", "cancelled", "delivered", "pending")],
    }


def test_the_table_of_another_tenants_requests_has_every_endpoint(guarded: Guarded) -> None:
    document = guarded.web.ask("GET", "/openapi.json").json
    endpoints = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    asked = [(method, path.partition("?")[0]) for method, path, _ in [*FORBIDDEN, *LEFT_OUT]]
    named = {(method, path.replace("orders.a", "{subject}").replace("theirs", "{group}")) for method, path in asked}
    assert named == endpoints - OPEN


@pytest.mark.parametrize("role", ["other", "look_at_bills"])
def test_no_request_about_another_tenant_is_served_and_nothing_of_it_changes(
    guarded: Guarded, theirs: Theirs, role: str
) -> None:
    token, before = getattr(guarded, role), state_of(guarded, theirs)
    for method, path, document in FORBIDDEN:
        filled = None if document is None else json.loads(theirs.fill(json.dumps(document)))
        guessed = "{receipt}" in path and (method == "GET" or role == "other")
        unknown = "transaction_unknown" if "/transactions/" in path else "message_unknown"
        expected = (404, unknown) if guessed else (403, "forbidden")
        problem(guarded.ask(token, method, theirs.fill(path), filled), *expected)
    for method, path, document in LEFT_OUT:
        reply = guarded.ask(token, method, path, document)
        assert reply.status == 200 or problem(reply, 403, "forbidden")
        assert b"orders" not in reply.body and theirs.receipt.encode() not in reply.body, (path, reply.body)
    for body, media in ((json.dumps([MESSAGE] * 2), "json"), (f"{json.dumps(MESSAGE)}\n" * 2, "x-ndjson")):
        headers = {"content-type": f"application/{media}"}
        reply = guarded.ask(token, "POST", "/v1/messages", body.encode(), **headers)
        rows = (
            json.loads(f"[{','.join(reply.body.decode().split(chr(10))[:-1])}]") if media == "x-ndjson" else reply.json
        )
        assert {row["error"] for row in (rows if isinstance(rows, list) else [rows])} == {"forbidden"}, reply
    assert state_of(guarded, theirs) == before


# Which roles may use an endpoint, beside `admin`. A request of another role is `forbidden`.
ROLES: dict[str, list[tuple[str, str, object]]] = {
    "send": [
        ("POST", "/v1/messages", MESSAGE),
        ("PATCH", "/v1/messages/{receipt}", {"delay": "2h"}),
        ("PATCH", f"/v1/messages?{KEY}", {"delay": "2h"}),
        ("DELETE", "/v1/messages/{receipt}", None),
        ("DELETE", f"/v1/messages?{KEY}", None),
        ("PATCH", BY_ID, {"delay": "2h"}),
        ("DELETE", BY_ID, None),
        ("POST", "/v1/subjects/orders.a/publish", {"body": "x"}),
        ("POST", "/v1/transactions", {"subject": "orders.a", "body": "x", "group": "orders.theirs"}),
        ("POST", "/v1/transactions/{receipt}/commit", {}),
        ("POST", "/v1/transactions/{receipt}/rollback", None),
    ],
    "consume": [
        ("POST", f"{IN_GROUP}/pull", {}),
        ("POST", f"{IN_GROUP}/ack", {"deliveries": ["1"]}),
        ("POST", f"{IN_GROUP}/nack", {"deliveries": ["1"]}),
        ("POST", f"{IN_GROUP}/extend", {"deliveries": ["1"]}),
        ("GET", f"{IN_GROUP}/deliveries", None),
        ("POST", f"{IN_GROUP}/deliveries", None),
    ],
    "look": [
        ("GET", "/v1/transactions", None),
        ("GET", "/v1/subjects/orders.a/groups", None),
        ("GET", "/v1/groups", None),
        ("GET", "/v1/pending", None),
        ("GET", "/v1/find?message_id=theirs", None),
        ("GET", "/v1/status", None),
        ("GET", "/v1/live", None),
        ("GET", "/v1/cluster", None),
        ("GET", "/metrics", None),
    ],
    "": [
        ("DELETE", IN_GROUP, None),
        ("POST", f"{IN_GROUP}/seek", {"to": "latest"}),
        ("PATCH", f"{IN_GROUP}/policy", {"attempts": 1}),
        ("POST", f"{IN_GROUP}/dead-letters/resend", {}),
        ("POST", f"{IN_GROUP}/waiting-keys/skip", {}),
        ("POST", f"{IN_GROUP}/waiting-keys/retry", {}),
        ("POST", f"{IN_GROUP}/dead-letters/drop", {}),
        ("POST", "/v1/reload", None),
    ],
    "consume look": [
        ("GET", IN_GROUP, None),
        ("GET", f"{IN_GROUP}/policy", None),
        ("GET", f"{IN_GROUP}/dead-letters", None),
        ("GET", f"{IN_GROUP}/waiting-keys", None),
        ("GET", "/v1/subjects/orders.a/messages", None),
    ],
    "send look": [("GET", "/v1/messages/{receipt}", None), ("GET", f"/v1/messages?{KEY}", None), ("GET", BY_ID, None)],
}

STREAMS = ("/v1/live", f"{IN_GROUP}/deliveries")


def test_the_table_of_roles_has_every_endpoint(guarded: Guarded) -> None:
    def named(table: list[tuple[str, str, object]]) -> set[tuple[str, str]]:
        return {(method, path.partition("?")[0]) for method, path, _ in table}

    assert named([each for table in ROLES.values() for each in table]) == named([*FORBIDDEN, *LEFT_OUT])


@pytest.mark.parametrize("role", ["send", "consume", "look"])
def test_no_token_does_what_another_role_may(guarded: Guarded, theirs: Theirs, role: str) -> None:
    with Client(guarded.web.address, token=guarded.admin) as client:
        token = client.token(role).text
    before = state_of(guarded, theirs)
    for roles, table in ROLES.items():
        for method, path, document in table:
            if role not in roles.split():
                problem(guarded.ask(token, method, theirs.fill(path), document), 403, "forbidden")
            elif method == "GET" and path not in STREAMS:
                assert guarded.ask(token, method, theirs.fill(path)).status == 200
    assert state_of(guarded, theirs) == before


def test_an_expired_token_is_unauthenticated(guarded: Guarded) -> None:
    with Client(guarded.web.address, token=guarded.admin) as client:
        until = datetime.now(UTC) + timedelta(seconds=5)  # there is time to make it
        made = client.token(["send", "consume"], "orders*", expires=until).text
    # A pull that waits ends with its token, and every request behind it is refused.
    reply = guarded.ask(made, "POST", "/v1/subjects/orders.a/groups/waits/pull", {"wait_ms": 50_000, "tags": "never"})
    assert reply.status in (401, 503), reply
    problem(guarded.ask(made, "POST", "/v1/messages", MESSAGE), 401, "unauthenticated")


def test_a_rotated_token_ends_at_once_or_with_its_overlap(guarded: Guarded) -> None:
    with Client(guarded.web.address, token=guarded.admin) as client:
        made = client.token("send", "orders*")
        assert guarded.ask(made.text, "POST", "/v1/messages", MESSAGE).status == 201
        beside = client.rotate_token(made.token.id, overlap=3600).text
        assert [guarded.ask(text, "POST", "/v1/messages", MESSAGE).status for text in (made.text, beside)] == [201, 201]
        last = client.rotate_token(made.token.id, overlap=0).text
    for text in (made.text, beside):
        problem(guarded.ask(text, "POST", "/v1/messages", MESSAGE), 401, "unauthenticated")
    assert guarded.ask(last, "POST", "/v1/messages", MESSAGE).status == 201


def test_a_limit_is_429_with_the_time_to_wait(guarded: Guarded) -> None:
    replies = [guarded.ask(guarded.slow, "POST", "/v1/messages", MESSAGE) for _ in range(2)]
    refused = [reply for reply in replies if reply.status != 201] or [
        guarded.ask(guarded.slow, "POST", "/v1/messages", MESSAGE)
    ]
    assert refused[0].status in (201, 429)
    if refused[0].status == 429:
        document = problem(refused[0], 429, "rate_limited")
        assert 0 < document["retry_after_ms"] <= 1_001 and refused[0].headers["retry-after"] in ("1", "2")
    assert guarded.ask(guarded.shop, "POST", "/v1/messages", MESSAGE).status == 201


@pytest.mark.parametrize(
    "target",
    [
        "POST /v1/messages",
        "PATCH /v1/messages/x",
        "POST /v1/subjects/orders.a/publish",
        "POST /v1/subjects/orders.a/groups/g/pull",
        "POST /v1/subjects/orders.a/groups/g/ack",
        "POST /v1/subjects/orders.a/groups/g/nack",
        "POST /v1/subjects/orders.a/groups/g/extend",
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_body_without_a_token_is_not_waited_for(guarded: Guarded, target: str, kind: str) -> None:
    with closing(guarded.web.connect()) as connection:
        head = f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")


def test_a_key_of_another_token_is_not_known(guarded: Guarded) -> None:
    with Client(guarded.web.address, token=guarded.admin) as client:
        tokens = [client.token("send", "orders*").text for _ in range(2)]
    due = [
        guarded.ask(token, "POST", "/v1/messages", MESSAGE | {"delay": delay}, **{"idempotency-key": "same"}).json[
            "due_ms"
        ]
        for token, delay in ((tokens[0], "1h"), (tokens[1], "2h"), (tokens[0], "1h"))
    ]
    assert due[2] == due[0] < due[1]


def test_a_session_and_its_streams_end_with_their_token(guarded: Guarded) -> None:
    with Client(guarded.web.address, token=guarded.admin) as client:
        made = client.token(["look", "consume"])
        cookie = sign_in(guarded, made.text).headers["set-cookie"].partition(";")[0]
        assert guarded.web.ask("GET", "/v1/status", headers={"cookie": cookie}).status == 200
        with ExitStack() as stack:
            streams = [stack.enter_context(closing(guarded.web.connect())) for _ in range(2)]
            for connection, path in zip(streams, ("live", "subjects/quiet/groups/g/deliveries"), strict=True):
                begin_stream(guarded, connection, path, cookie)
            client.rotate_token(made.token.id, overlap=0)
            for connection in streams:
                rest_of_stream(connection)
    problem(guarded.web.ask("GET", "/v1/status", headers={"cookie": cookie}), 401, "unauthenticated")


def begin_stream(guarded: Guarded, connection: socket.socket, path: str, cookie: str) -> None:
    host = f"{guarded.web.host}:{guarded.web.port}"
    connection.sendall(
        f"GET /v1/{path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nX-Delayserver: 1\r\n\r\n".encode()
    )
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def rest_of_stream(connection: socket.socket) -> bytes:
    found, until = b"", time.monotonic() + SECONDS_MAX
    while not found.endswith(b"0\r\n\r\n"):
        assert time.monotonic() < until, "the stream goes on"
        data = connection.recv(65_536)
        assert data, "the stream was cut"
        found += data
    return found


def test_streams_and_lines_of_a_session_end_when_it_signs_out(guarded: Guarded) -> None:
    cookie = sign_in(guarded, guarded.admin).headers["set-cookie"].partition(";")[0]
    group = "subjects/orders.out/groups/out"
    head = f"Host: {guarded.web.host}:{guarded.web.port}\r\nCookie: {cookie}\r\nContent-Type: application/x-ndjson\r\n"
    row = json.dumps(MESSAGE | {"subject": "orders.lines"}).encode() + b"\n"
    with ExitStack() as stack:
        live, deliveries, lines = [stack.enter_context(closing(guarded.web.connect())) for _ in range(3)]
        begin_stream(guarded, live, "live", cookie)
        begin_stream(guarded, deliveries, f"{group}/deliveries?ack=true", cookie)
        lines.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}Content-Length: {2 * len(row)}\r\n\r\n".encode() + row)
        while b"receipt" not in lines.recv(65_536):
            pass
        assert guarded.web.ask("POST", "/logout", headers={"cookie": cookie}).status == 204
        assert guarded.ask(guarded.shop, "POST", "/v1/subjects/orders.out/publish", {"body": "later"}).status == 201
        lines.sendall(row)
        assert b"receipt" not in to_the_end(lines)
        assert b"later" not in rest_of_stream(deliveries)
        rest_of_stream(live)
    # The message was pulled for the stream, or was not, and is there at once.
    pulled = guarded.ask(guarded.shop, "POST", f"/v1/{group}/pull", {"wait_ms": 20_000, "ack": True}).json["messages"]
    assert [message["body"] for message in pulled] == ["later"]


def test_servers_on_two_ports_of_a_machine_have_sessions_beside_each_other(guarded: Guarded) -> None:
    """A browser sends the cookies of a host to all its ports, and keeps one of each name."""
    jar = {}
    for host in ("localhost:20880", "localhost:20881", "localhost"):
        cookie = sign_in(guarded, guarded.look, host=host).headers["set-cookie"].partition(";")[0]
        name, _, jar[name] = cookie.partition("=")
    assert {*jar} == {"delayserver_session", "delayserver_session_20880", "delayserver_session_20881"}
    cookies = {"cookie": "; ".join(f"{name}={value}" for name, value in jar.items())}
    assert guarded.web.ask("POST", "/logout", headers=cookies | {"host": "localhost:20881"}).status == 204
    for host, status in (("localhost:20881", 401), ("localhost:20880", 200), ("localhost", 200)):
        assert guarded.web.ask("GET", "/v1/status", headers=cookies | {"host": host}).status == status


def test_a_cookie_for_a_page_that_came_over_tls_is_secure(guarded: Guarded) -> None:
    """A proxy that encrypts passes `Host` and `Origin` on as they come."""
    for origin, secure in (("https://localhost:8443", True), ("http://localhost:8443", False)):
        headers = {"host": "localhost:8443", "origin": origin, "x-forwarded-proto": "https"}
        signed = sign_in(guarded, guarded.look, **headers)
        out = guarded.web.ask("POST", "/logout", headers=headers)
        for reply in (signed, out):
            assert ("; Secure" in reply.headers["set-cookie"]) == secure


COOKIES = {
    "{cookie}": True,
    "\xff\xfe=\x80; {cookie}": True,
    "{cookie}; {name}=x": True,
    "{name}=x; {cookie}": False,
    "delayserver_session=x; {cookie}": True,
    "a=b, {cookie}": False,
    "x{cookie}": False,
    ";;;;": False,
    "{upper}": False,
}


@pytest.mark.parametrize("given", COOKIES)
def test_an_odd_cookie_is_a_session_or_none(guarded: Guarded, given: str) -> None:
    cookie = sign_in(guarded, guarded.look).headers["set-cookie"].partition(";")[0]
    headers = {"cookie": given.format(cookie=cookie, upper=cookie.upper(), name=cookie.partition("=")[0])}
    reply = guarded.web.ask("GET", "/v1/status", headers=headers)
    assert reply.status == 200 if COOKIES[given] else problem(reply, 401, "unauthenticated")


@pytest.mark.parametrize("second", ["Authorization: Bearer x", "Authorization: Bearer {token}", "Authorization:"])
def test_a_request_with_two_credentials_is_refused(guarded: Guarded, second: str) -> None:
    with closing(guarded.web.connect()) as connection:
        head = f"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {guarded.look}\r\n{second}\r\n\r\n"
        connection.sendall(head.format(token=guarded.look).encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")


def test_probes_need_no_token(guarded: Guarded) -> None:
    assert guarded.web.ask("GET", "/healthz").status == 200
    assert guarded.web.ask("GET", "/readyz").status == 200


# -- sessions


def sign_in(guarded: Guarded, token: str, **headers: str) -> Reply:
    return guarded.web.ask("POST", "/login", {"token": token}, headers=headers)


def test_a_person_signs_in_with_a_token_and_out_again(guarded: Guarded) -> None:
    assert guarded.web.ask("GET", "/v1/session").json["needs_token"] is True
    reply = sign_in(guarded, guarded.look)
    assert reply.status == 200 and reply.json["roles"] == ["look"] and guarded.look not in reply.body.decode()
    cookie = reply.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert part in cookie
    assert guarded.look not in cookie
    signed = {"cookie": "theme=dark; " + cookie.partition(";")[0], "sec-fetch-site": "same-origin"}
    assert guarded.web.ask("GET", "/v1/status", headers=signed).status == 200
    state = guarded.web.ask("GET", "/v1/session", headers=signed).json
    assert (state["needs_token"], state["subjects"]) == (False, ["*"])
    problem(guarded.web.ask("POST", "/v1/messages", MESSAGE, headers=signed), 403, "forbidden")
    out = guarded.web.ask("POST", "/logout", headers=signed)
    assert out.status == 204 and "Max-Age=0" in out.headers["set-cookie"]
    problem(guarded.web.ask("GET", "/v1/status", headers=signed), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"token": "x"}, 401),
        ({"token": "dst_0123456789ab_" + "A" * 43}, 401),
        ({}, 400),
        (b"{", 400),
        (b"x" * 5000, 413),
    ],
)
def test_a_login_without_a_valid_token_begins_no_session(guarded: Guarded, document: object, status: int) -> None:
    reply = guarded.web.ask("POST", "/login", document)
    assert reply.status == status and "set-cookie" not in reply.headers


def test_an_unknown_cookie_is_no_session(guarded: Guarded) -> None:
    signed = {"cookie": "delayserver_session=" + "0" * 64}
    problem(guarded.web.ask("GET", "/v1/status", headers=signed), 401, "unauthenticated")


CROSS = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": ""},
    {"origin": "http://127.0.0.1@evil.example"},
    {"sec-fetch-site": ""},
    {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
    {"origin": "https://evil.example", "x-forwarded-host": "evil.example", "forwarded": "host=evil.example"},
]


@pytest.mark.parametrize("headers", CROSS)
def test_no_page_of_another_site_can_act_or_read(guarded: Guarded, web: Web, headers: dict[str, str]) -> None:
    cookie = sign_in(guarded, guarded.admin).headers["set-cookie"].partition(";")[0]
    signed = headers | {"cookie": cookie}
    for method, path, document in (
        ("POST", "/v1/messages", MESSAGE),
        ("GET", "/v1/status", None),
        ("GET", "/v1/subjects/s/groups/g/deliveries", None),
        ("DELETE", "/v1/messages/x", None),
        ("POST", "/login", {"token": guarded.admin}),
        ("POST", "/logout", None),
    ):
        problem(guarded.web.ask(method, path, document, headers=signed), 403, "cross_site")
        # Nor at a server without tokens, which listens on the person's own machine.
        problem(web.ask(method, path, document, headers=headers), 403, "cross_site")
    own = {"cookie": cookie, "origin": f"http://{guarded.web.host}:{guarded.web.port}", "sec-fetch-site": "same-origin"}
    assert guarded.web.ask("GET", "/v1/status", headers=own).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:20880", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_name_that_leads_to_loopback_reads_nothing(web: Web, host: str) -> None:
    forwarded = {"x-forwarded-host": "localhost", "x-forwarded-for": "127.0.0.1", "forwarded": "host=localhost"}
    problem(web.ask("GET", "/v1/status", headers={"host": host} | forwarded), 403, "host_unknown")
    # A page can invent a token, and a server without tokens takes it for none.
    invented = bearer("dst_0123456789ab_" + "A" * 43) | {"host": host}
    for method, path, document in (
        ("GET", "/v1/status", None),
        ("POST", "/v1/messages", MESSAGE),
        ("GET", "/v1/session", None),
        ("POST", "/login", {"token": invented["authorization"][7:]}),
    ):
        problem(web.ask(method, path, document, headers=invented), 403, "host_unknown")
    assert web.ask("GET", "/v1/status", headers={"host": "localhost:20880"}).status == 200
    assert web.ask("GET", "/v1/status", headers={"host": "[::1]:20880"}).status == 200


@pytest.mark.parametrize("path", ["/", "/v1/status", "/v1/unknown", "/nothing", "/healthz"])
def test_every_answer_has_the_headers_that_protect_a_browser(web: Web, path: str) -> None:
    headers = web.ask("GET", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy
    if path.startswith("/v1/"):
        assert headers["cache-control"] == "no-store"


def test_the_token_of_a_request_is_in_no_answer_and_no_log(guarded: Guarded, tmp_path: Path) -> None:
    wrong = "dst_0123456789ab_" + "B" * 43
    reply = guarded.ask(wrong, "GET", "/v1/status")
    assert wrong not in reply.body.decode() and wrong[17:] not in str(reply.headers)


def test_new_tokens_close_the_connections_of_the_token_that_was_used_least_recently(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.web.clients.TOKENS_MAX", 2)

    async def use() -> None:
        async with Clients(guarded.web.address) as clients:
            in_use = await clients.of_request({TOKEN: guarded.shop})
            await clients.of_request({TOKEN: guarded.other})
            await clients.of_request({TOKEN: guarded.shop})
            await clients.of_request({TOKEN: guarded.look})
            assert await clients.of_request({TOKEN: guarded.shop}) is in_use

    anyio.run(use)


def test_connections_that_a_request_uses_are_not_closed_for_new_tokens(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.web.clients.TOKENS_MAX", 2)

    async def use() -> None:
        async with Clients(guarded.web.address) as clients:
            first: dict[str, Any] = {TOKEN: guarded.shop}
            second: dict[str, Any] = {TOKEN: guarded.other}
            with clients.request(first):
                in_use = await clients.of_request(first)
                with clients.request(second):
                    await clients.of_request(second)
                    with pytest.raises(QueueFull):
                        await clients.of_request({TOKEN: guarded.look})
                await clients.of_request({TOKEN: guarded.look})
                assert (await in_use.calls.hello()).roles
            await clients.of_request({TOKEN: guarded.other})
            assert await clients.of_request({TOKEN: guarded.shop}) is not in_use

    anyio.run(use)


def test_a_larger_bound_of_bodies_counts_for_the_first_request_of_a_token(tmp_path: Path) -> None:
    """Each byte of this body takes six in JSON."""
    admin = first_admin(tmp_path / "data")
    web = serve("--data-dir", str(tmp_path / "data"), "--set", "message.body_bytes_max=4MiB")
    try:
        guarded = Guarded(web, admin)
        large = "\x01" * (2 << 20)
        assert guarded.ask(guarded.shop, "POST", "/v1/messages", MESSAGE | {"body": large}).status == 201
        assert guarded.ask(guarded.other, "POST", "/v1/subjects/bills/publish", {"body": large}).status == 201
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()
