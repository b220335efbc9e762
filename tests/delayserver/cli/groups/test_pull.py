"""`pull` into outputs that cannot show everything, and too late for its acknowledgement."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import COMMAND_SECONDS_MAX, Done, Server, start
from tests.delayserver.client.fake_server import FakeServer

BODY = "ok € 😀"


def run_in(encoding: str, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Run a command whose stdin and stdout have this encoding: code, stdout and stderr."""
    process = start(*arguments, stdin=-1, env=os.environ | {"PYTHONIOENCODING": encoding})
    out, err = process.communicate(stdin, timeout=COMMAND_SECONDS_MAX)
    return process.returncode, out, err.decode()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_characters_that_the_output_cannot_show_are_shown_by_their_codes(encoding: str) -> None:
    with FakeServer() as server, Client(server.address) as client:
        client.send("a", BODY, due_ms=1, message_id="ä")
        options = ("--group", "g", "--server", server.address)
        code, out, err = run_in(encoding, "pull", "a", *options)
        assert (code, "Traceback" in err) == (0, False), err
        # click writes UTF-8 where stdout says that it is ASCII.
        shown = "utf-8" if encoding == "ascii" else encoding
        assert BODY.encode(shown, "backslashreplace") in out
        code, out, err = run_in(encoding, "pull", "a", "--json", *options)
        assert code == 0, err
        assert json.loads(out.decode(shown))["body"] == BODY
        assert out.isascii() == (encoding != "utf-8")


def test_pull_names_messages_whose_lease_had_ended_at_their_ack() -> None:
    with FakeServer() as server, Client(server.address) as client:
        client.send_columns("a", 1, [b"1", b"2"])
        server.wrong_replies["ack"] = {"acked": 0, "unknown": 1}
        for as_json in ((), ("--json",)):
            command = ("pull", "a", "--group", "g", "--max", "2", "--ack", "--server", server.address, *as_json)
            process = start(*command)
            out, err = process.communicate(timeout=COMMAND_SECONDS_MAX)
            done = Done(process.returncode, out.decode(), err.decode())
            assert done.code == 1
            assert "1 of 2 were not in flight any more and may come again; use a longer --ack-timeout" in done.err
            assert done.out


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_byte_that_is_no_text_spoils_its_own_line_alone(server: Server, errors: str) -> None:
    with Client(server.address) as client:
        receipts = [client.send("a", b"", delay_ms=3_600_000).receipt for _ in range(2)]
    lines = f"{receipts[0]}\n".encode() + b"\xff\n" + f"{receipts[1]}\n".encode()
    for command, outcome in (("lookup", "pending"), ("cancel", "cancelled")):
        options = ("--json", "--server", server.address)
        code, out, err = run_in(f"utf-8:{errors}", command, "-", *options, stdin=lines)
        rows: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
        assert (code, [row.get("outcome", row.get("error")) for row in rows]) == (
            1,
            [outcome, "receipt_invalid", outcome],
        ), err


def test_an_argument_that_is_no_text_spoils_itself_alone(server: Server) -> None:
    with Client(server.address) as client:
        receipt = client.send("a", b"", delay_ms=3_600_000).receipt
    done = server.run("cancel", os.fsdecode(b"\xff"), receipt, "--json")
    assert done.code == 1, done.err
    assert [row.get("outcome", row.get("error")) for row in done.rows] == ["receipt_invalid", "cancelled"]


def test_the_delivery_is_text_that_nack_takes(server: Server) -> None:
    server.run("send", "numbers", "x", "--delay", "0s")
    row = server.run("pull", "numbers", "--group", "g", "--wait", "20s", "--json").row
    assert isinstance(row["delivery"], str) and row["delivery"].isdecimal()
    assert server.run("nack", "numbers", row["delivery"], "--group", "g").code == 0


def test_a_pull_that_looks_like_a_pattern_says_who_takes_patterns(server: Server) -> None:
    done = server.run("pull", "shop.*", "--group", "g")
    assert "consume` takes patterns" in done.err
    assert "consume" not in server.run("pull", "shop.nothing", "--group", "g").err


def test_a_broadcast_pull_gets_what_comes_and_leaves_no_group(server: Server) -> None:
    process = start(
        "pull", "cast", "--group", "screen", "--broadcast", "--start", "earliest", "--wait", "20s",
        "--json", "--server", server.address,
    )  # fmt: skip
    server.run("publish", "cast", "to all")
    out, err = process.communicate(timeout=COMMAND_SECONDS_MAX)
    assert (process.returncode, json.loads(out)["body"]) == (0, "to all"), err
    assert server.run("groups", "list", "cast", "--json").rows == []
