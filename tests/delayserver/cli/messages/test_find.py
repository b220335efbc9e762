"""`delayserver find` against a real server."""

from __future__ import annotations

from tests.delayserver.cli.conftest import Server


def arrived(server: Server, *arguments: str) -> str:
    """Sends a message that is due at once, and waits until a consumer group has it; returns its id."""
    sent = server.run("send", "orders", *arguments, "--delay", "0s", "--json").row
    server.run("pull", "orders", "--group", "watcher", "--wait", "20s", "--ack", "--json")
    return str(sent["message_id"])


def test_a_delivered_message_is_found_by_its_id_and_by_its_keys(server: Server) -> None:
    arrived(server, "first", "--id", "find-1", "--property", "keys=order-7 customer-42")
    derived = arrived(server, "second")
    row = server.run("find", "--id", "find-1", "--json").row
    assert (row["message_id"], row["subject"], row["body"]) == ("find-1", "orders", "first")
    assert row["properties"] == {"keys": "order-7 customer-42"}
    assert server.run("find", "--key", "customer-42", "--subject", "orders", "--json").row == row
    assert server.run("find", "--id", derived, "--json").row["body"] == "second"
    text = server.run("find", "--key", "order-7").out
    assert "find-1" in text and "    first" in text and "keys=order-7 customer-42" in text


def test_find_without_a_result_ends_with_1_and_a_line(server: Server) -> None:
    done = server.run("find", "--key", "never-seen")
    assert (done.code, done.out) == (1, "") and "nothing found" in done.err
    done = server.run("find", "--key", "never-seen", "--json")
    assert (done.code, done.out, done.err) == (1, "", "")


def test_an_id_or_a_key_must_be_given(server: Server) -> None:
    for arguments in ([], ["--id", "a", "--key", "b"], ["--from", "2026-01-01T00:00Z"]):
        done = server.run("find", *arguments)
        assert done.code == 2 and "--id" in done.err


def test_messages_of_a_subject_and_a_time_are_found(server: Server) -> None:
    for body in ("one", "two"):
        server.run("send", "timed", body, "--delay", "0s")
    server.run("pull", "timed", "--group", "g", "--max", "2", "--wait", "20s")
    assert [row["body"] for row in server.run("find", "--subject", "timed", "--json").rows] == ["one", "two"]
    later = ["--from", "2100-01-01T00:00Z"]
    assert server.run("find", "--subject", "timed", *later, "--json").rows == []
    earlier = ["--to", "2020-01-01T00:00Z"]
    assert server.run("find", "--subject", "timed", *earlier, "--json").rows == []


def test_lookup_with_body_shows_the_contents_of_a_message(server: Server) -> None:
    sent = server.run("send", "orders", "pay order 9", "--delay", "1h", "--property", "n=9", "--json").row
    row = server.run("lookup", sent["receipt"], "--body", "--json").row
    assert (row["body"], row["properties"], row["message_id"]) == ("pay order 9", {"n": "9"}, sent["message_id"])
    assert "body" not in server.run("lookup", sent["receipt"], "--json").row
    text = server.run("lookup", sent["receipt"], "--body").out
    assert text.splitlines()[1:] == ["    n=9", "    pay order 9"]


def test_a_found_message_has_the_receipt_by_which_it_is_looked_up(server: Server) -> None:
    sent = server.run("send", "receipts", "b", "--id", "find-receipt", "--delay", "0s", "--json").row
    server.run("pull", "receipts", "--group", "g", "--wait", "20s", "--ack")
    row = server.run("find", "--id", "find-receipt", "--json").row
    assert row["receipt"] == sent["receipt"]
    assert sent["receipt"] in server.run("find", "--id", "find-receipt").out
    assert server.run("lookup", row["receipt"], "--json").row["outcome"] == "delivered"
