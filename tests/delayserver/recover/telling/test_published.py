"""Published messages in the recovery tools: whole in the store, traced, dumped, and never in the balance."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.recover.directories import SMALL, ServerProcess, in_process


def make(path: Path, number: int) -> tuple[list[int], str]:
    """Three published messages and one sent; the sequences of the published, and the receipt of the sent one."""
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        for body in ("one", "two"):
            client.publish("s", body, tag="paid", order_key="k")
        sent = client.send("s", "sent", delay_ms=3_600_000, message_id="later")
        client.publish("s", "three")
        sequences = [row.sequence for row in client.pull("s", "g", 10)]
        server.stop(number)
    return sequences, sent.receipt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_check_counts_published_messages_in_no_window_and_finds_no_fault(tmp_path: Path, number: int) -> None:
    sequences, _ = make(tmp_path / "d", number)
    assert len(set(sequences)) == 3
    last = in_process("check", str(tmp_path / "d"), "--json").last
    assert last["findings"] == [] and (last["accepted"], last["pending"], last["delivered"]) == (1, 1, 0)


def test_a_trace_and_a_dump_show_that_messages_were_published(tmp_path: Path) -> None:
    sequences, _ = make(tmp_path / "d", signal.SIGTERM)
    done = in_process("trace", str(tmp_path / "d"), "--sequence", str(sequences[0]), "--json")
    stored = [row for row in done.rows if row.get("what") == "published to the broker"]
    assert stored and stored[0]["tag"] == "paid" and stored[0]["position"] == 0
    (segment,) = (tmp_path / "d" / "broker" / "store").iterdir()
    rows = [row for row in in_process("dump", str(segment), "--json").rows if "order_hash" in row]
    assert [row["body"] for row in rows] == ["one", "two", "three"]
    assert [row["flags"] for row in rows] == [1, 1, 1]
    assert [(row.get("tag_name"), row.get("order_key")) for row in rows] == [("paid", "k"), ("paid", "k"), (None, None)]


def test_sequences_that_are_made_anew_lie_behind_the_published_ones(tmp_path: Path) -> None:
    path = tmp_path / "d"
    sequences, _ = make(path, signal.SIGTERM)
    (path / "sequences").unlink()
    assert in_process("rebuild", str(path), "--yes").code == 0
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        client.publish("s", "four")
        (again,) = client.pull("s", "other", 10)[3:]
        assert again.sequence > max(sequences)


def test_a_torn_tail_of_the_store_is_cut_and_no_answered_message_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "d"
    make(path, signal.SIGKILL)
    (segment,) = (path / "broker" / "store").iterdir()
    rows = [row for row in in_process("dump", str(segment), "--json", "--records").rows if "end" in row]
    end = max(row["end"] for row in rows)
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(b"DREC torn in the middle of a publish")
    done = in_process("check", str(path), "--json")
    assert done.code == 0 and [finding["kind"] for finding in done.last["findings"]] == ["torn"]
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        assert client.publish("s", "four").position == 3
        assert [row.body for row in client.pull("s", "new", 10)] == [b"one", b"two", b"three", b"four"]
