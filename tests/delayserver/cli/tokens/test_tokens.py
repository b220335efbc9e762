"""`delayserver token`, at a running server and in a data directory, and what a server without tokens refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError, Forbidden, Unauthenticated
from tests.delayserver.cli.conftest import Done, Server, run, start

StartServer = Callable[..., Server]


def made(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    return done.row


def test_a_token_made_before_the_start_opens_the_server_for_its_role_and_subjects(
    tmp_path: Path, start_server: StartServer
) -> None:
    data = tmp_path / "data"
    admin = made(run("token", "create", "--role", "admin", "--name", "operator", "--json", "--data-dir", str(data)))
    server = start_server(data)
    file = tmp_path / "token"
    file.write_text(admin["token"] + "\n")
    signed = ("--token-file", str(file))
    sender = made(server.run("token", "create", "--role", "send", "--subject", "orders*", "--json", *signed))
    with Client(server.address, token=sender["token"]) as client:
        assert client.send("orders.a", b"hi", delay_ms=60_000).receipt
        with pytest.raises(Forbidden, match="no pattern"):
            client.send("bills", b"hi", delay_ms=60_000)
        with pytest.raises(Forbidden, match="role"):
            client.status()
    with Client(server.address) as client, pytest.raises(Unauthenticated):
        client.status()
    listed = server.run("token", "list", "--json", *signed)
    assert [(row["id"], row["name"]) for row in listed.rows] == [(admin["id"], "operator"), (sender["id"], "")]
    assert "dst_" not in listed.out
    assert server.run("token", "revoke", sender["id"], *signed).code == 0
    with pytest.raises(Unauthenticated):
        Client(server.address, token=sender["token"]).connect()
    refused = run("token", "list", "--data-dir", str(data))
    assert refused.code == 1 and "in use by process" in refused.err
    assert server.stop().code == 0
    stored = (data / "tokens").read_bytes()
    assert admin["token"].encode() not in stored and admin["token"].split("_", 2)[2].encode() not in stored


def test_a_rotated_secret_works_beside_the_old_one(tmp_path: Path) -> None:
    place = ("--json", "--data-dir", str(tmp_path / "data"))
    one = made(run("token", "create", "--role", "look", "--expires", "90d", *place))
    two = made(run("token", "rotate", one["id"], "--overlap", "1d", *place))
    assert two["id"] == one["id"] and two["token"] != one["token"]
    assert two["old_until_ms"] > two["created_ms"] and two["expires_ms"] == one["expires_ms"]
    assert run("token", "revoke", "0" * 12, *place).code == 1
    assert run("token", "create", "--role", "root", *place).code == 2


def test_the_environment_and_a_file_give_the_token_of_a_command(tmp_path: Path, start_server: StartServer) -> None:
    data = tmp_path / "data"
    token = made(run("token", "create", "--role", "look", "--json", "--data-dir", str(data)))["token"]
    server = start_server(data)
    named = os.environ | {"DELAYSERVER_TOKEN": token, "DELAYSERVER_SERVER": server.address}
    process = start("status", "--json", env=named)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"") and json.loads(out)["ready"] is True
    refused = server.run("status")
    assert refused.code == 1 and "asks for a token" in refused.err


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_beyond_loopback_a_server_without_tokens_does_not_start(tmp_path: Path, command: str) -> None:
    refused = run(command, "--data-dir", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 2
    assert "without tokens any client may do everything" in refused.err and "--insecure" in refused.err
    assert not (tmp_path / "data").exists()


def test_beyond_loopback_a_server_starts_with_tokens_or_with_insecure(
    tmp_path: Path, start_server: StartServer
) -> None:
    open_to_all = start_server(tmp_path / "one", "--host", "0.0.0.0", "--insecure")
    assert open_to_all.run("status").code == 0
    made(run("token", "create", "--role", "admin", "--json", "--data-dir", str(tmp_path / "two")))
    closed = start_server(tmp_path / "two", "--host", "0.0.0.0")
    assert "unauthenticated" in closed.run("status").err


def test_a_damaged_table_of_tokens_stops_the_start_and_never_opens_the_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made(run("token", "create", "--role", "admin", "--json", "--data-dir", str(data)))
    table = data / "tokens"
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    refused = run("serve", "--data-dir", str(data), "--port", "0")
    assert refused.code == 1 and "tokens: corrupt" in refused.err


def test_the_text_of_a_token_is_in_no_repr(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(tmp_path / "data")
    with Client(server.address) as client:
        token = client.token("admin")
    assert token.text.startswith("dst_") and "dst_" not in repr(token)
    with Client(server.address, token=token.text) as client:
        (listed,) = client.tokens()
        assert listed == token.token
        rotated = client.rotate_token(listed.id, 60)
        assert rotated.token.old_until_ms > 0
        assert client.revoke_token(listed.id).id == listed.id
        with pytest.raises(DelayServerError):
            client.tokens()
