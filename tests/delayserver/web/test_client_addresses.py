"""What the address of a client of HTTP decides: lines of the audit log, and places for new tokens."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from delayserver.protocol.errors import RateLimited
from delayserver.web.clients import CHECKS_AT_ONCE_MAX, CHECKS_OF_ADDRESS_MAX, WAITING_CHECKS_MAX, Checks
from tests.delayserver.web.test_security import first_admin
from tests.delayserver.web.web_server import SECONDS_MAX, Web, serve, stop

CLIENT = "127.0.0.9"


def wrong(token: str) -> str:
    """A token of the right form that no server has made."""
    return token[:-20] + "".join(["A" if each != "A" else "B" for each in token[-20:]])


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[tuple[Web, str, Path]]:
    """A server with tokens and an audit log; an admin's token and the log."""
    data, log = tmp_path / "data", tmp_path / "audit.log"
    admin = first_admin(data)
    web = serve("--data-dir", str(data), "--set", f"log.audit_file={log}")
    try:
        yield web, admin, log
    finally:
        stop(web)


def ask_from(web: Web, address: str, method: str, path: str, document: object, token: str) -> int:
    """The status of a request from another address of this machine."""
    connection = http.client.HTTPConnection(web.host, web.port, SECONDS_MAX, source_address=(address, 0))
    with closing(connection):
        connection.request(method, path, json.dumps(document), {"authorization": f"Bearer {token}"})
        return connection.getresponse().status


def test_audit_lines_of_http_have_the_address_of_the_client(audited: tuple[Web, str, Path]) -> None:
    web, admin, log = audited
    group = "/v1/subjects/a/groups/g"
    assert ask_from(web, CLIENT, "POST", "/v1/subjects/a/publish", {"body": "x"}, admin) == 201
    assert ask_from(web, CLIENT, "POST", f"{group}/pull", {}, admin) == 200
    assert ask_from(web, CLIENT, "POST", f"{group}/seek", {"to": "latest"}, admin) == 200
    assert ask_from(web, CLIENT, "PATCH", f"{group}/policy", {"attempts": 3}, admin) == 200
    assert ask_from(web, CLIENT, "DELETE", group, None, admin) == 204
    assert ask_from(web, CLIENT, "GET", "/v1/status", None, wrong(admin)) == 401
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    told = [(line["event"], line.get("operation"), line["address"]) for line in lines]
    assert [(event, operation) for event, operation, _ in told] == [
        ("administrative_act", "seek"), ("administrative_act", "policy"), ("administrative_act", "remove_group"),
        ("token_refused", None),
    ]  # fmt: skip
    assert {address.rpartition(":")[0] for _, _, address in told} == {f"{CLIENT} by way of 127.0.0.1"}


async def test_new_tokens_of_one_address_leave_places_to_others() -> None:
    checks, running, release = Checks(), [0], anyio.Event()

    async def guess() -> None:
        async with checks.place("guesser"):
            running[0] += 1
            await release.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(CHECKS_OF_ADDRESS_MAX + WAITING_CHECKS_MAX):
            tasks.start_soon(guess)
        await anyio.wait_all_tasks_blocked()
        assert running == [CHECKS_OF_ADDRESS_MAX] and CHECKS_OF_ADDRESS_MAX < CHECKS_AT_ONCE_MAX
        with pytest.raises(RateLimited):
            async with checks.place("guesser"):
                pass
        async with checks.place("person"):
            assert running == [CHECKS_OF_ADDRESS_MAX]
        release.set()
    assert running == [CHECKS_OF_ADDRESS_MAX + WAITING_CHECKS_MAX]
    async with checks.place("guesser"):
        pass


def test_a_person_signs_in_while_one_address_guesses(audited: tuple[Web, str, Path]) -> None:
    web, admin, _ = audited
    ended = threading.Event()

    def guess() -> None:
        while not ended.is_set():
            ask_from(web, CLIENT, "GET", "/v1/session", None, wrong(admin))

    guessers = [threading.Thread(target=guess) for _ in range(60)]
    for each in guessers:
        each.start()
    try:
        # Those who wait for a check beyond the bound of their address are turned away; nobody else is.
        statuses = {ask_from(web, CLIENT, "GET", "/v1/session", None, wrong(admin)) for _ in range(100)}
        assert statuses <= {401, 429}
        assert web.ask("POST", "/login", {"token": admin}).status == 200
    finally:
        ended.set()
        for each in guessers:
            each.join()
