"""`delayserver transactions`: an operator ends what no producer ends."""

from __future__ import annotations

from typing import Any

from delayserver.client import Client


def prepared(server: Any, *bodies: str) -> list[str]:
    with Client(server.address) as client:
        return [client.prepare("deals", body, group="shop").receipt for body in bodies]


def test_a_transaction_is_committed_or_rolled_back_by_hand(server: Any) -> None:
    kept, dropped = prepared(server, "kept", "dropped")
    assert server.run("lookup", kept, "--json").row["outcome"] == "prepared"
    committed = server.run("transactions", "commit", kept, "--json").row
    assert (committed["receipt"], committed["outcome"]) == (kept, "committed")
    assert server.run("transactions", "commit", kept).out == f"{kept}  committed  {committed['new_receipt']}\n"
    assert server.run("transactions", "rollback", "-", stdin=dropped.encode()).out == f"{dropped}  rolled_back\n"
    assert [server.run("lookup", one, "--json").row["outcome"] for one in (kept, dropped)] == [
        "committed",
        "rolled_back",
    ]
    pulled = server.run("pull", "deals", "--group", "g", "--wait", "20s", "--json").rows
    assert [row["body"] for row in pulled] == ["kept"]


def test_open_transactions_are_listed_until_they_end(server: Any) -> None:
    assert server.run("transactions", "list").out == "no transaction is open\n"
    first, second = prepared(server, "one", "two")
    rows = server.run("transactions", "list", "--json").rows
    assert [row["receipt"] for row in rows] == [first, second]
    assert {name: rows[0][name] for name in ("subject", "group", "checks", "checks_max", "policy")} == {
        "subject": "deals", "group": "shop", "checks": 0, "checks_max": 15, "policy": "rollback",
    }  # fmt: skip
    assert rows[0]["next_check_ms"] * 1000 > rows[0]["accepted_us"]
    heading, line, _ = server.run("transactions", "list").out.splitlines()
    assert heading.split() == ["RECEIPT", "SUBJECT", "GROUP", "PREPARED", "CHECKS", "NEXT", "POLICY"]
    assert line.split()[:3] == [first, "deals", "shop"]
    server.run("transactions", "rollback", first)
    assert [row["receipt"] for row in server.run("transactions", "list", "--max", "1", "--json").rows] == [second]


def test_another_end_is_refused_and_the_exit_code_says_so(server: Any) -> None:
    (dropped,) = prepared(server, "dropped")
    assert server.run("transactions", "rollback", dropped).code == 0
    done = server.run("transactions", "commit", dropped, "--json")
    assert (done.code, done.row["error"]) == (1, "transaction_ended")
    never = f"{dropped[:-12]}{'f' * 6}{dropped[-6:]}"
    assert server.run("transactions", "rollback", never, "--json").row["error"] == "transaction_unknown"
