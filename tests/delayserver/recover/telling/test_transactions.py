"""The recovery tools show transactions, on a directory that a real server wrote and left by a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import serving
from tests.delayserver.recover.directories import in_process


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The directory, and the receipts of an open, a committed and a rolled-back transaction."""
    path = tmp_path_factory.mktemp("transactions") / "data"
    with serving(path) as server:
        with Client(server.address) as client:
            now_ms = client.ping() // 1000
            receipts = {
                name: client.prepare("deals", name, group="shop", due_ms=now_ms + 3_600_000, message_id=name).receipt
                for name in ("open", "committed", "back")
            }
            client.commit(receipts["committed"])
            client.rollback(receipts["back"])
    yield path, receipts


def test_check_counts_each_once(killed: tuple[Path, dict[str, str]]) -> None:
    done = in_process("check", str(killed[0]), "--json")
    assert (done.code, done.last["findings"]) == (0, [])
    counts = {name: done.last[name] for name in ("accepted", "cancelled", "rolled_back", "pending", "internal")}
    # Three prepared ones and a visible message; what was committed ends as cancelled. Replay may have waited for the kill.
    assert counts["accepted"] == 4 and counts["internal"] == 3
    assert counts["cancelled"] + counts["rolled_back"] + counts["pending"] == 4


def test_pending_marks_prepared_messages(killed: tuple[Path, dict[str, str]]) -> None:
    rows = in_process("pending", str(killed[0]), "--list", "--json").rows
    prepared = {row["receipt"]: row.get("prepared", False) for row in rows}
    assert prepared[killed[1]["open"]] is True
    assert False in prepared.values(), "the visible message"
    assert any(line.endswith("prepared") for line in in_process("pending", str(killed[0]), "--list").out.splitlines())


def test_trace_shows_how_each_transaction_ended(killed: tuple[Path, dict[str, str]]) -> None:
    path, receipts = killed
    told = in_process("trace", str(path), "--receipt", receipts["open"]).out
    assert "prepared" in told and "redelivery accepted" in told, told
    assert "rollback requested" in in_process("trace", str(path), "--receipt", receipts["back"]).out
    assert "replaced by" in in_process("trace", str(path), "--receipt", receipts["committed"]).out


def test_dump_shows_the_flag_and_the_control_record(killed: tuple[Path, dict[str, str]]) -> None:
    (log,) = sorted((killed[0] / "message_log").glob("*.log"))[:1]
    rows = in_process("dump", str(log), "--json").rows
    assert [row["message_id"] for row in rows if row.get("flags") == 1] == ["open", "committed", "back"]
    assert [row["outcome_name"] for row in rows if "requested_us" in row] == ["rolled_back"]


def test_export_tells_the_records_that_the_server_made(killed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert in_process("export", str(killed[0]), "--to", str(tmp_path)).code == 0
    for name, duplicate in (("accepted", None), ("dispatched", "deduplicated")):
        rows = parquet.read_table(tmp_path / f"{name}.parquet").to_pylist()
        for row in rows:
            made = row["origin_sequence"] != 0 or row["redelivery"] > 0
            assert row["internal"] is (made and row["outcome"] != duplicate)
        if name == "accepted":
            known = {row["message_id"] for row in rows if not row["internal"]}
            assert {"open", "committed", "back"} <= known and any(row["internal"] for row in rows)
