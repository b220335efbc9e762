"""The figures of a real server, with each kind of client and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from delayserver.client import PendingBucket, PendingSubject
from delayserver.protocol.errors import InvalidArgument
from tests.delayserver.cli.conftest import Server, serving, start
from tests.delayserver.client.both import Connect

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("figures") / "data") as running:
        yield running


def test_pending_messages_are_counted_by_time_and_by_subject(real_server: Server, connect: Connect) -> None:
    with connect(real_server.address) as client:
        before = {each.subject: each.pending for each in client.pending_by_subject()}.get("figures", 0)
        sent = client.send("figures", "", delay_ms=2 * HOUR_MS)
        assert PendingSubject("figures", before + 1) in client.pending_by_subject()
        client.lookup(sent.receipt)  # waits until it is placed
        hour = sent.due_ms - sent.due_ms % HOUR_MS
        found = client.pending("hour", from_ms=hour, to_ms=hour + HOUR_MS)
        assert [(each.start_ms, each.width_ms) for each in found] == [(hour, HOUR_MS)]
        assert found[0].pending >= 1
        minute = sent.due_ms - sent.due_ms % 60_000
        assert isinstance(client.pending(from_ms=minute)[0], PendingBucket)
        with pytest.raises(InvalidArgument, match="by must be one of"):
            client.pending("week")


def test_pending_messages_are_listed(real_server: Server, connect: Connect) -> None:
    with connect(real_server.address) as client:
        due_ms = client.ping() // 1000 + 5 * HOUR_MS
        subject = f"listed.{due_ms}"
        sent = [client.send(subject, str(i), due_ms=due_ms + i, tag="t", properties={"i": str(i)}) for i in range(5)]
        client.send(f"{subject}.other", "", due_ms=due_ms)
        receipts = [each.receipt for each in sent]
        found = list(client.pending_messages(subject))
        assert [each.receipt for each in found] == receipts
        assert (found[3].due_ms, found[3].tag, found[3].body_bytes, found[3].body) == (due_ms + 3, "t", 1, None)
        latest = list(client.pending_messages(f"{subject}*", tag="t", where="i > 1", latest_first=True, bodies=True))
        assert [(each.receipt, each.body) for each in latest] == [(receipts[i], str(i).encode()) for i in (4, 3, 2)]
        page = client.pending_messages_page(
            f"{subject}*", from_ms=due_ms + 1, to_ms=due_ms + 4, count=True, max_messages=2
        )
        assert ([each.receipt for each in page.messages], page.matching, page.at_least) == (receipts[1:3], 3, False)
        rest = client.pending_messages_page(f"{subject}*", from_ms=due_ms + 1, to_ms=due_ms + 4, after=page.next)
        assert ([each.receipt for each in rest.messages], rest.next) == (receipts[3:4], None)
        with pytest.raises(InvalidArgument, match="another list"):
            client.pending_messages_page(after=page.next)


def test_metrics_have_all_of_status_and_more(real_server: Server, connect: Connect) -> None:
    with connect(real_server.address) as client:
        figures = client.metrics()
        assert figures.keys() >= client.status().keys() | {
            "lateness",
            "stages",
            "queues",
            "subjects",
            "consumer_groups",
        }


def test_the_command_counts_by_hour_minute_and_subject(real_server: Server) -> None:
    real_server.run("send", "cli.figures", "body", "--delay", "3h")
    rows = real_server.run("pending", "--by", "subject", "--json").rows
    assert {"subject": "cli.figures", "pending": 1} in rows
    assert "cli.figures" in real_server.run("pending", "--by", "subject").out
    for by, width in (("hour", HOUR_MS), ("minute", 60_000)):
        rows = real_server.run("pending", "--by", by, "--json").rows
        assert {row["width_ms"] for row in rows} == {width}
        assert len(real_server.run("pending", "--by", by).out.splitlines()) >= 1
    assert real_server.run("pending", "--from", "2100-01-01T00:00Z").out == "nothing is pending\n"
    assert real_server.run("pending", "--by", "subject", "--to", "2100-01-01T00:00Z").code == 2


def test_the_command_lists_messages(real_server: Server) -> None:
    sent = [
        real_server.run("send", "cli.list", body, "--delay", "3h", "--tag", body, "--json").row
        for body in ("one", "two")
    ]
    rows = real_server.run("pending", "--list", "--subject", "cli.*", "--tag", "two", "--json").rows
    assert [row.pop("accepted_us") > 0 for row in rows] == [True]
    assert rows == [
        {
            "receipt": sent[1]["receipt"], "message_id": sent[1]["message_id"], "subject": "cli.list",
            "due_ms": sent[1]["due_ms"], "expires_ms": None, "tag": "two", "body_bytes": 3,
        }
    ]  # fmt: skip
    both = real_server.run("pending", "--list", "--subject", "cli.list", "--latest", "--body", "--json").rows
    assert [row["body"] for row in both] == ["two", "one"]
    assert len(real_server.run("pending", "--list", "--subject", "cli.list", "--max", "1", "--json").rows) == 1
    text = real_server.run("pending", "--list", "--subject", "cli.list", "--body").out
    assert all(each["receipt"] in text for each in sent)
    assert real_server.run("pending", "--list", "--subject", "nothing").out == "nothing is pending\n"
    for wrong in (["--subject", "s"], ["--list", "--tail"], ["--list", "--by", "hour"], ["--max", "3"], ["--latest"]):
        assert real_server.run("pending", *wrong).code == 2
    assert real_server.run("pending", "--tail", "--from", "2100-01-01T00:00Z").code == 2


def test_the_command_prints_what_becomes_due(real_server: Server) -> None:
    sent = [real_server.run("send", "cli.tail", "x", "--delay", f"{seconds}s", "--json").row for seconds in (12, 10)]
    tail = start("pending", "--tail", "--subject", "cli.tail", "--json", "--server", real_server.address)
    try:
        assert tail.stdout is not None
        rows = [json.loads(tail.stdout.readline()) for _ in sent]
    finally:
        tail.kill()
        tail.communicate()
    assert [row["receipt"] for row in rows] == [sent[1]["receipt"], sent[0]["receipt"]]


def test_lookup_gives_the_times_of_a_message(real_server: Server, connect: Connect) -> None:
    with connect(real_server.address) as client:
        waiting = client.send("times", "", delay_ms=HOUR_MS)
        found = client.lookup(waiting.receipt, times=True)
        assert found.times is not None and list(found.times) == ["accepted_us"] and found.body is None
        sent = client.send("times.now", "", delay_ms=0)
        pulled = client.pull("times.now", "g", wait_s=30)
        assert pulled
        while (found := client.lookup(sent.receipt, times=True)).outcome.label != "delivered":
            pass
        assert found.times is not None
        names = ["accepted_us", "loaded_us", "due_us", "queued_us", "handed_off_us", "delivered_us"]
        assert list(found.times) == names
        [handed_out] = found.consumed or []
        assert (handed_out["group"], handed_out["acked_us"]) == ("g", 0)
        assert handed_out["pulled_us"] >= found.times["handed_off_us"]
        client.ack("times.now", "g", pulled)
        [acked] = client.lookup(sent.receipt, times=True).consumed or []
        assert acked["pulled_us"] == handed_out["pulled_us"] <= acked["acked_us"]
        assert found.times["accepted_us"] <= found.times["loaded_us"] <= found.times["handed_off_us"]
        assert found.times["handed_off_us"] == found.dispatched_us
        client.cancel(waiting.receipt)
        found = client.lookup(waiting.receipt, times=True)
        assert found.times is not None and list(found.times) == ["accepted_us", "settled_us"]
        assert client.lookup(waiting.receipt).times is None


def test_the_command_prints_times(real_server: Server) -> None:
    receipt = real_server.run("send", "cli.times", "body", "--delay", "3h", "--json").row["receipt"]
    assert "accepted" in real_server.run("lookup", receipt, "--times").out
    assert list(real_server.run("lookup", receipt, "--times", "--json").row["times"]) == ["accepted_us"]
