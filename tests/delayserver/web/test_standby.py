"""The gateway of a standby sends callers to the primary, and says to load balancers what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from delayserver.protocol.errors import InDoubt, NotPrimary, NotReady
from tests.delayserver.client.fake_server import Fail, FakeServer
from tests.delayserver.web.web_server import Web, gateway_alone

MESSAGE = {"subject": "s", "body": "b", "due_ms": 1}


@pytest.fixture(scope="module")
def standby() -> Iterator[tuple[FakeServer, Web]]:
    with FakeServer() as server, gateway_alone(server.address) as web:
        yield server, web


def not_primary(**details: str) -> Fail:
    return Fail(NotPrimary("b is a standby", retry_after_ms=1, details=details))


def test_a_standby_redirects_to_the_same_path_at_the_primary(standby: tuple[FakeServer, Web]) -> None:
    server, web = standby
    server.misbehave("send", not_primary(primary="a:1", http="http://a:2"))
    reply = web.post("/v1/messages?results=all", MESSAGE)
    assert (reply.status, reply.headers["location"]) == (307, "http://a:2/v1/messages?results=all")
    assert (reply.json["error"], reply.json["primary"]) == ("not_primary", "a:1")
    server.misbehave("groups", not_primary(primary="a:1", http="https://a:2/"))
    assert web.ask("GET", "/v1/groups").headers["location"] == "https://a:2/v1/groups"
    assert not server.messages


def test_a_standby_that_knows_no_address_says_its_name(standby: tuple[FakeServer, Web]) -> None:
    server, web = standby
    for details in ({}, {"primary": "a:1"}):
        server.misbehave("send", not_primary(**details))
        reply = web.post("/v1/messages", MESSAGE)
        assert (reply.status, reply.json["error"]) == (503, "not_primary")
        assert "location" not in reply.headers and reply.headers["retry-after"] == "1"


def test_a_result_in_doubt_is_no_refusal(standby: tuple[FakeServer, Web]) -> None:
    server, web = standby
    server.misbehave("reschedule", Fail(InDoubt("a leads since")))
    receipt = web.post("/v1/messages", MESSAGE).json["receipt"]
    reply = web.ask("PATCH", f"/v1/messages/{receipt}", {"due_ms": 2})
    assert (reply.status, reply.json["error"]) == (504, "in_doubt")


def test_a_standby_is_ready_as_one_and_not_as_the_primary(standby: tuple[FakeServer, Web]) -> None:
    server, web = standby
    for query in ("", "?role=any", "?role=primary"):
        assert web.ask("GET", f"/readyz{query}").json == {"status": "ready"}
    server.wrong_replies["status"] = {"ready": False, "waits_for": "this server follows"}
    try:
        server.misbehave("route", not_primary(primary="a:1"))
        reply = web.ask("GET", "/readyz")
        assert (reply.status, reply.json) == (200, {"status": "follows"})
        reply = web.ask("GET", "/readyz?role=primary")
        assert (reply.status, reply.json["error"]) == (503, "not_ready")
        # A primary past its lease, and a server that starts.
        server.misbehave("route", not_primary(), *[Fail(NotReady("it starts", retry_after_ms=1))] * 3)
        for _ in range(2):
            assert web.ask("GET", "/readyz").status == 503
    finally:
        del server.wrong_replies["status"]
    assert web.ask("GET", "/readyz?role=standby").status == 400


def test_a_gateway_that_knows_several_members_passes_requests_on_to_the_primary() -> None:
    with ExitStack() as stack:
        first, second = stack.enter_context(FakeServer()), stack.enter_context(FakeServer())
        first.misbehave("send", not_primary(primary=second.address, http="http://a:2"))
        web = stack.enter_context(gateway_alone(f"{first.address},{second.address}"))
        assert web.post("/v1/messages", MESSAGE).status == 201
        assert len(second.messages) == 1 and not first.messages
