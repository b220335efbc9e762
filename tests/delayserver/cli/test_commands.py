"""Every client command against a real server, through its output and exit code alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.delayserver.client.listening.listeners import until


def send(server: Any, subject: str, body: str = "hello", *arguments: str) -> dict[str, Any]:
    done = server.run("send", subject, body, "--json", *arguments)
    assert done.code == 0, done.err
    row: dict[str, Any] = done.row
    return row


def pull(server: Any, subject: str, *arguments: str) -> list[dict[str, Any]]:
    done = server.run("pull", subject, "--group", "g", "--wait", "20s", "--json", *arguments)
    assert done.code == 0, done.err
    rows: list[dict[str, Any]] = done.rows
    return rows


def test_a_message_arrives_when_it_is_due_and_not_before(server: Any) -> None:
    sent = send(server, "arrives", "hello", "--delay", "1s")
    assert set(sent) == {"receipt", "message_id", "subject", "due_ms", "sequence"}
    (row,) = pull(server, "arrives", "--ack")
    assert time.time() * 1000 >= sent["due_ms"]
    assert row["dispatched_ms"] >= row["due_ms"] == sent["due_ms"]
    assert (row["message_id"], row["sequence"]) == (sent["message_id"], sent["sequence"])
    assert (row["subject"], row["body"], row["attempt"]) == ("arrives", "hello", 1)
    assert server.run("pull", "arrives", "--group", "g", "--json").out == ""


def test_consumer_groups_are_listed_with_their_lag(server: Any) -> None:
    for body in ("one", "two"):
        send(server, "listed", body)
    pull(server, "listed", "--ack")
    until(lambda: server.run("groups", "list", "listed", "--json").row["end"] == 2, "the second message")
    row = server.run("groups", "list", "listed", "--json").row
    assert (row["subject"], row["group"], row["position"], row["end"], row["lag"]) == ("listed", "g", 1, 2, 1)
    shown = server.run("groups", "list", "listed").out.splitlines()
    assert shown[0].split()[:5] == ["SUBJECT", "GROUP", "POSITION", "END", "LAG"]
    assert shown[1].split()[:5] == ["listed", "g", "1", "2", "1"]
    assert "no consumer group" in server.run("groups", "list", "nobody's").out


def test_a_receipt_names_server_due_time_and_sequence(server: Any) -> None:
    sent = send(server, "named", "hello", "--delay", "1h")
    assert sent["receipt"] == f"{server.server_id}-{sent['due_ms']:012x}-{sent['sequence']:012x}"


def test_without_a_time_a_message_is_due_now(server: Any) -> None:
    send(server, "now")
    assert [row["body"] for row in pull(server, "now", "--ack")] == ["hello"]


def test_an_absolute_time_with_zone_is_taken_exactly(server: Any) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    local = at.astimezone().isoformat()
    assert send(server, "at", "x", "--at", local)["due_ms"] == int(at.timestamp()) * 1000


def test_a_body_comes_from_stdin_or_a_file_byte_by_byte(server: Any, tmp_path: Path) -> None:
    assert server.run("send", "bytes", "-", stdin=b"\xff\x00 from stdin").code == 0
    (tmp_path / "body").write_bytes(b"from a file\n")
    assert server.run("send", "bytes", "--file", str(tmp_path / "body")).code == 0
    rows = pull(server, "bytes", "--max", "2", "--ack")
    assert sorted((row["body"], row.get("body_encoding")) for row in rows) == [
        ("/wAgZnJvbSBzdGRpbg==", "base64"),
        ("from a file\n", None),
    ]


def test_properties_and_an_id_arrive_with_the_message(server: Any) -> None:
    send(server, "properties", "x", "--id", "order-1", "--property", "a=b=c", "--property", "d=")
    (row,) = pull(server, "properties", "--ack")
    assert (row["message_id"], row["properties"]) == ("order-1", {"a": "b=c", "d": ""})


def test_people_see_properties_and_that_a_body_is_empty(server: Any) -> None:
    send(server, "seen", "", "--property", "customer=42")
    done = server.run("pull", "seen", "--group", "g", "--wait", "20s", "--ack")
    assert done.out.endswith("\n    customer=42\n    (empty)\n")


def test_a_message_sent_twice_with_one_id_and_due_time_is_delivered_once(server: Any) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    first = send(server, "twice", "x", "--id", "one", "--at", at)
    second = send(server, "twice", "x", "--id", "one", "--at", at)
    assert len(pull(server, "twice", "--ack")) == 1
    assert pull(server, "twice", "--wait", "2s") == []
    outcomes = [row["outcome"] for row in server.run("lookup", first["receipt"], second["receipt"], "--json").rows]
    assert outcomes == ["delivered", "deduplicated"]


def test_a_message_without_an_ack_comes_again_with_another_attempt(server: Any) -> None:
    send(server, "again")
    (first,) = pull(server, "again", "--ack-timeout", "1s")
    (second,) = pull(server, "again", "--ack")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["message_id"] == second["message_id"]


def test_pull_ends_when_the_wait_is_over(server: Any) -> None:
    started_s = time.monotonic()
    done = server.run("pull", "silent", "--group", "g", "--wait", "1s")
    assert (done.code, done.out) == (0, "")
    assert "nothing was due within 1 s" in done.err
    assert time.monotonic() - started_s >= 1


def test_pull_goes_on_until_it_has_as_many_as_asked_for(server: Any) -> None:
    for delay in ("0s", "1s", "2s"):
        send(server, "several", delay, "--delay", delay)
    assert [row["body"] for row in pull(server, "several", "--max", "3", "--ack")] == ["0s", "1s", "2s"]


def test_two_groups_get_every_message_each(server: Any) -> None:
    send(server, "groups")
    for group in ("one", "two"):
        done = server.run("pull", "groups", "--group", group, "--wait", "20s", "--ack", "--json")
        assert [row["body"] for row in done.rows] == ["hello"]


def test_a_cancelled_message_is_not_delivered(server: Any) -> None:
    # Where the machine stands still the message may be due before its cancel. Then the next one has more time.
    for delay in ("6s", "40s"):
        receipt = send(server, "cancelled", "x", "--delay", delay)["receipt"]
        row = server.run("cancel", receipt, "--json").row
        if row["outcome"] != "too_late":
            break
        assert len(pull(server, "cancelled", "--ack")) == 1
    assert row == {"receipt": receipt, "outcome": "cancelled"}
    again = server.run("cancel", receipt, "--json")
    assert (again.code, again.row) == (0, {"receipt": receipt, "outcome": "already_cancelled"})
    assert server.run("lookup", receipt, "--json").row["outcome"] == "cancelled"
    assert pull(server, "cancelled", "--wait", "8s" if delay == "6s" else "42s") == []


def test_receipts_are_read_from_stdin_too(server: Any) -> None:
    receipts = [send(server, "stdin", "x", "--delay", "1h")["receipt"] for _ in range(3)]
    done = server.run("cancel", "-", "--json", stdin="\n".join(receipts).encode())
    assert [row["receipt"] for row in done.rows] == receipts
    assert {row["outcome"] for row in done.rows} == {"cancelled"}


def test_a_bad_receipt_fails_alone_and_the_exit_code_says_so(server: Any) -> None:
    receipt = send(server, "bad", "x", "--delay", "1h")["receipt"]
    foreign = "0" * 12 + receipt[12:]
    done = server.run("cancel", "nonsense", foreign, receipt, "--json")
    assert done.code == 1
    assert [row.get("error") or row["outcome"] for row in done.rows] == [
        "receipt_invalid",
        "foreign_receipt",
        "cancelled",
    ]


def test_a_message_is_named_by_its_subject_and_id(server: Any) -> None:
    receipt = send(server, "ids", "x", "--delay", "1h", "--id", "order-7")["receipt"]
    row = server.run("lookup", "ids", "--id", "order-7", "--body", "--json").row
    assert (row["receipt"], row["outcome"], row["body"]) == (receipt, "pending", "x")
    moved = server.run("reschedule", "ids", "--id", "order-7", "--delay", "2h", "--json").row
    done = server.run("cancel", "ids", "--id", "order-7", "--id", "none", "--json")
    assert done.code == 1
    assert done.rows == [
        {"receipt": moved["new_receipt"], "outcome": "cancelled"},
        {"receipt": "none", "outcome": "unknown"},
    ]
    assert server.run("lookup", "ids", "more", "--id", "order-7").code == 2


def test_lookup_follows_a_message(server: Any) -> None:
    waiting = send(server, "followed", "x", "--delay", "1h")["receipt"]
    before = server.run("lookup", waiting, "--json").row
    assert (before["receipt"], before["outcome"]) == (waiting, "pending")
    receipt = send(server, "followed", "y", "--delay", "0s")["receipt"]
    pull(server, "followed", "--ack")
    after = server.run("lookup", receipt, "--json").row
    assert (after["outcome"], after["subject"]) == ("delivered", "followed")
    assert after["dispatched_ms"] >= after["due_ms"]


def test_a_receipt_that_was_never_given_is_unknown(server: Any) -> None:
    receipt = send(server, "unknown", "x", "--delay", "1h")["receipt"]
    never = receipt[:-12] + f"{int(receipt[-12:], 16) + 10**6:012x}"
    done = server.run("lookup", never, "--json")
    assert (done.code, done.row["outcome"]) == (1, "unknown")
    assert (cancelled := server.run("cancel", never, "--json")).code == 1 and cancelled.row["outcome"] == "unknown"


def test_rescheduled_to_now_a_message_is_delivered_now_and_once(server: Any) -> None:
    sent = send(server, "moved", "content", "--delay", "1h", "--id", "mine")
    row = server.run("reschedule", sent["receipt"], "--delay", "0s", "--json").row
    assert (row["receipt"], row["outcome"]) == (sent["receipt"], "cancelled")
    (pulled,) = pull(server, "moved", "--ack")
    assert (pulled["body"], pulled["message_id"], pulled["sequence"]) == ("content", "mine", row["sequence"])
    assert server.run("lookup", row["new_receipt"], "--json").row["outcome"] == "delivered"
    again = server.run("reschedule", sent["receipt"], "--delay", "0s")
    assert again.code == 1 and "nothing was changed" in again.out
    late = server.run("cancel", row["new_receipt"], "--json")
    assert (late.code, late.row["outcome"]) == (1, "delivered")


def test_a_message_that_is_late_beyond_use_expires(server: Any) -> None:
    at = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    receipt = send(server, "expires", "x", "--at", at, "--expires", "1s")["receipt"]
    assert pull(server, "expires", "--wait", "1s") == []
    until(lambda: server.run("lookup", receipt, "--json").row["outcome"] == "expired", "the expiry")


def test_a_due_time_too_far_is_refused_by_name(server: Any) -> None:
    done = server.run("send", "far", "x", "--delay", "4000d")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: too_far")
    assert done.err.count("\n") == 1


def test_status_adds_up(server: Any) -> None:
    send(server, "counted", "x", "--delay", "1h")
    status = server.run("status", "--json").row
    parts = ("delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back", "pending")
    assert status["accepted"] == sum(status[name] for name in parts)
    assert status["ready"] is True
    assert {"p50", "p99", "max"} <= set(status["lateness_ms"])
    text = server.run("status").out
    for name in ("ready", "accepted", *parts, "lateness_ms"):
        assert f"\n{name} " in f"\n{text}"


def test_watch_prints_one_status_after_the_other(server: Any, begin: Callable[..., subprocess.Popen[bytes]]) -> None:
    watching = begin("status", "--watch", "--every", "100ms", "--json", "--server", server.address)
    assert watching.stdout is not None
    assert all(json.loads(watching.stdout.readline())["ready"] for _ in range(3))


def test_output_for_people_is_the_default(server: Any) -> None:
    sent = server.run("send", "people", "hello", "--delay", "0s").out
    assert "receipt  " in sent
    done = server.run("pull", "people", "--group", "g", "--wait", "20s")
    assert "\n    hello\n" in done.out
    assert "not acknowledged" in done.err


def test_a_reader_that_goes_away_is_no_traceback(server: Any) -> None:
    receipt = send(server, "pipe", "x", "--delay", "1h")["receipt"]
    command = f"{sys.executable} -m delayserver lookup {' '.join([receipt] * 3000)} --server {server.address} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(receipt)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["send", "pull"])
def test_the_script_and_the_module_print_the_same_help(server: Any, name: str) -> None:
    script = Path(sys.executable).parent / "delayserver"
    if not script.exists():
        pytest.skip("delayserver is not installed in this environment")
    done = subprocess.run([str(script), name, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout == server.run(name, "--help").out


def test_the_policy_of_a_group_is_shown_and_set(server: Any) -> None:
    named = ("groups", "policy", "policed", "--group", "g")
    assert "without end" in server.run(*named).out
    done = server.run(*named, "--attempts", "5", "--first", "1s", "--factor", "3", "--cap", "1m", "--json")
    assert (done.row["attempts"], done.row["first_ms"], done.row["factor"], done.row["cap_ms"]) == (
        5,
        1000,
        3.0,
        60_000,
    )
    assert done.row["settings"]["first_level"] is None
    shown = server.run(*named).out
    assert "attempts  5" in shown and "1 s, each 3 times the one before, at most 1 m" in shown
    levels = server.run(*named, "--reset", "--first-level", "17").out
    assert "without end" in levels and "1 h, 2 h, and so on" in levels
    refused = server.run(*named, "--first", "2s")
    assert refused.code == 1 and "policy_invalid" in refused.err and "first_level" in refused.err


def test_dead_letters_are_listed_sent_again_and_dropped(server: Any) -> None:
    named = ("dying", "--group", "g")
    assert server.run("groups", "policy", *named, "--attempts", "1").code == 0
    for body in ("one", "two", "three"):
        send(server, "dying", body)
    deliveries = [str(pull(server, "dying")[0]["delivery"]) for _ in range(3)]
    assert "no dead letters" in server.run("dead", "list", *named).out
    done = server.run("nack", *named, *deliveries, "7", "--reason", "no\x1bcolour", "--json")
    assert done.code == 1 and done.row == {"nacked": 3, "unknown": 1, "expired": 0, "dead_lettered": 3}
    rows = server.run("dead", "list", *named, "--json").rows
    assert [(row["body"], row["reason"], row["text"], row["attempts"]) for row in rows] == [
        (body, "nacked", "no\x1bcolour", 1) for body in ("one", "two", "three")
    ]
    shown = server.run("dead", "list", *named, "--max", "2").out.splitlines()
    assert len(shown) == 2 and "attempt 1, nacked: no" in shown[0] and "\x1b" not in shown[0]
    assert server.run("groups", "list", "dying", "--json").row["dead_letters"] == 3
    unasked = server.run("dead", "drop", *named)
    assert unasked.code == 2 and "--yes" in unasked.err
    assert server.run("dead", "resend", *named, "--max", "1", "--rate", "10", "--yes", "--json").row["resent"] == 1
    assert server.run("groups", "list", "dying", "--json").row["oldest_ms"] > rows[0]["due_ms"] - 1
    (row,) = pull(server, "dying", "--ack")
    assert (row["body"], row["attempt"]) == ("one", 1)
    again = server.run("dead", "resend", *named, "--position", str(rows[2]["position"]), "--yes").out.split()
    assert again == ["resent", "1", "left", "1"]
    for command in ("resend", "drop"):
        assert server.run("dead", command, *named, "--position", "7777", "--yes").code == 1
    assert server.run("dead", "drop", *named, "--yes", "--json").row == {"dropped": 1, "left": 0}
    assert "no dead letters" in server.run("dead", "list", *named).out
    unknown = server.run("dead", "list", "dying", "--group", "nobody")
    assert unknown.code == 1 and "group_unknown" in unknown.err


def test_waiting_keys_are_listed_tried_again_and_skipped(server: Any) -> None:
    named = ("blocked", "--group", "g")
    assert server.run("groups", "policy", *named, "--attempts", "1", "--failed-key", "wait", "--first", "1h").code == 0
    for body in ("one", "two"):
        assert server.run("publish", "blocked", body, "--order-key", "k\x1b").code == 0
    (message,) = pull(server, "blocked")
    assert "no key of g in blocked waits" in server.run("groups", "waiting", *named).out
    assert server.run("nack", *named, str(message["delivery"])).code == 0
    row = server.run("groups", "waiting", *named, "--json").row
    assert (row["order_key"], row["attempts"], row["state"]) == ("k\x1b", 1, "paused")
    shown = server.run("groups", "waiting", *named).out
    assert "attempt 1, failing since" in shown and "paused until" in shown and "\x1b" not in shown
    assert server.run("groups", "list", "blocked", "--json").row["waiting_keys"] == 1
    for command in (("retry",), ("skip", "--yes")):
        assert server.run("groups", *command, *named, "--position", "7777").code == 1
    assert server.run("groups", "retry", *named).out.split() == ["retried", "1", "left", "1"]
    assert server.run("groups", "skip", *named).code == 2, "it asks first"
    skipped = server.run(
        "groups", "skip", *named, "--position", str(row["position"]), "--reason", "no", "--yes", "--json"
    )
    assert skipped.row == {"skipped": 1, "left": 0}
    letter = server.run("dead", "list", *named, "--json").row
    assert (letter["body"], letter["reason"], letter["text"]) == ("one", "skipped", "no")
    assert pull(server, "blocked", "--ack")[0]["body"] == "two"


def test_a_message_is_sent_by_a_delay_level(server: Any) -> None:
    before_ms = time.time() * 1000
    sent = send(server, "levels", "hello", "--delay-level", "5")
    assert before_ms - 1 <= sent["due_ms"] - 60_000 <= time.time() * 1000 + 1
    both = server.run("send", "levels", "hello", "--delay-level", "5", "--delay", "1s")
    assert both.code == 2 and "only one of" in both.err
    unknown = server.run("send", "levels", "hello", "--delay-level", "99")
    assert unknown.code == 1 and "levels 1 to 18" in unknown.err


def test_a_delay_level_is_named_by_its_duration(server: Any) -> None:
    before_ms = time.time() * 1000
    sent = send(server, "levels", "hello", "--delay-level", "30s")
    assert before_ms - 1 <= sent["due_ms"] - 30_000 <= time.time() * 1000 + 1
    unknown = server.run("send", "levels", "hello", "--delay-level", "31s")
    assert unknown.code == 2 and "31 s is no delay level of this server; it has: 1 s, 5 s" in unknown.err
    shown = server.run("groups", "policy", "levels", "--group", "named", "--first-level", "1h").out
    assert "1 h, 2 h, and so on" in shown
    assert server.run("nack", "levels", "--group", "named", "7", "--delay-level", "10s", "--json").row["unknown"] == 1


def test_a_filter_that_cannot_match_is_refused_and_one_that_did_not_is_counted(server: Any) -> None:
    refused = server.run("pull", "sieved", "--group", "g", "--where", "2 < 1")
    assert refused.code == 1 and "filter_invalid: where at line 1, column 1: it never matches" in refused.err
    for _ in range(3):
        send(server, "sieved", "hello")
    arrived = server.run("pull", "sieved", "--group", "look", "--max", "3", "--wait", "20s", "--json")
    assert len(arrived.rows) == 3
    assert server.run("pull", "sieved", "--group", "g", "--where", "price > 3", "--wait", "1s", "--json").rows == []
    rows = {row["group"]: row for row in server.run("groups", "list", "sieved", "--json").rows}
    assert (rows["g"]["filtered"], rows["g"]["lag"]) == (3, 0)


def test_a_nacked_delivery_comes_again(server: Any) -> None:
    send(server, "nacked")
    (row,) = pull(server, "nacked")
    shown = server.run("nack", "nacked", str(row["delivery"]), "--group", "g", "--delay", "0s").out
    assert shown.split() == ["nacked", "1"]
    assert server.run("nack", "nacked", str(row["delivery"]), "--group", "g").code == 1
    assert pull(server, "nacked", "--ack")[0]["attempt"] == 2
