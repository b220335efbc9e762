"""`trace`, `pending`, `dump` and `export`: what they show is what happened."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.delayserver.recover.directories import Made, in_process, recover

WHATS = {
    "delivered": {"accepted", "scheduled", "stored by the broker", "outcome"},
    "cancelled": {"accepted", "scheduled", "cancel requested", "outcome"},
    "far_cancelled": {"accepted", "scheduled", "cancel requested", "outcome"},
    "pending": {"accepted", "scheduled"},
    "far": {"accepted", "scheduled"},
    "copy": {"accepted", "scheduled", "outcome"},
    "original": {"accepted", "scheduled", "copy accepted"},
    "moved": {"accepted", "scheduled", "replaced by", "outcome"},
    "expired": {"accepted", "scheduled", "outcome"},
}
STATES = {
    "copy": "deduplicated",
    "far_cancelled": "cancelled",
    "original": "pending",
    "moved": "cancelled",
    "far": "pending",
}


@pytest.mark.parametrize("name", WHATS)
def test_a_trace_shows_the_life_of_a_message_with_evidence(stopped: Made, name: str) -> None:
    done = in_process("trace", str(stopped.path), "--receipt", stopped.receipts[name], "--json")
    assert done.code == 0
    *evidence, last = done.rows
    assert last["state"] == STATES.get(name, name)
    assert last["receipt"] == stopped.receipts[name]
    assert {item["what"] for item in evidence} == WHATS[name]
    for item in evidence:
        rows = [row for row in in_process("dump", item["file"]).rows if row.get("offset") == item["offset"]]
        assert any(row.get("sequence") == item["sequence"] for row in rows), "the record stands where the trace says"


def test_a_trace_finds_the_same_message_by_receipt_id_and_sequence(stopped: Made) -> None:
    receipt = stopped.receipts["pending"]
    by_receipt = in_process("trace", str(stopped.path), "--receipt", receipt, "--json").rows
    sequence = str(int(receipt[-12:], 16))
    assert in_process("trace", str(stopped.path), "--sequence", sequence, "--json").rows == by_receipt
    assert in_process("trace", str(stopped.path), "--id", "pending", "--json").rows == by_receipt
    derived = f"{stopped.server_id}-{stopped.receipts['delivered'][-12:]}"
    [*_, last] = in_process("trace", str(stopped.path), "--id", derived, "--json").rows
    assert last["receipt"] == stopped.receipts["delivered"]


def test_a_redelivery_and_its_acks_belong_to_the_trace(stopped: Made) -> None:
    whats = [row.get("what") for row in in_process("trace", str(stopped.path), "--sequence", "1", "--json").rows]
    assert whats.count("stored by the broker") == 2
    assert "redelivery accepted" in whats
    assert "acked" in whats


def test_an_unknown_message_is_said_to_be_unknown(stopped: Made) -> None:
    done = in_process("trace", str(stopped.path), "--sequence", "99999999")
    assert (done.code, done.out) == (1, "")
    foreign = "abcdefabcdef" + stopped.receipts["far"][12:]
    for wrong in (("--receipt", "nonsense"), ("--receipt", foreign), (), ("--id", "x", "--sequence", "1")):
        assert in_process("trace", str(stopped.path), *wrong).code == 2


def test_an_id_that_is_no_text_is_wrong_usage(stopped: Made) -> None:
    done = in_process("trace", str(stopped.path), "--id", "\udcff")
    assert done.code == 2
    assert "is no UTF-8" in done.err


def test_pending_counts_by_minute_and_lists_the_messages(stopped: Made) -> None:
    *counts, last = in_process("pending", str(stopped.path), "--json").rows
    assert last == {"pending": 92, "redeliveries": 0}
    assert sum(row["pending"] for row in counts if "start_ms" in row) == 92
    assert {row["subject"]: row["pending"] for row in counts if "subject" in row} == {
        "far": 49, "orders": 20, "mails": 20, "single": 3,
    }  # fmt: skip
    listed = in_process("pending", str(stopped.path), "--list", "--json", "--bodies").rows
    assert len(listed) == 92
    assert {row["body"] for row in listed if row["subject"] == "single"} == {"pending", "original", "moved"}
    assert stopped.receipts["moved_to"] in {row["receipt"] for row in listed}
    assert stopped.receipts["copy"] not in {row["receipt"] for row in listed}


def test_pending_keeps_to_subject_and_range(stopped: Made) -> None:
    only = in_process("pending", str(stopped.path), "--json", "--subject", "mails").rows
    assert only[-1] == {"pending": 20, "redeliveries": 0}
    assert in_process("pending", str(stopped.path), "--json", "--subject", "nobody").rows == [
        {"pending": 0, "redeliveries": 0}
    ]
    assert in_process("pending", str(stopped.path), "--json", "--to", "2001-01-01T00:00Z").rows == [
        {"pending": 0, "redeliveries": 0}
    ]


def test_text_for_people_has_the_figures_of_json(stopped: Made) -> None:
    assert "92 pending" in recover("pending", str(stopped.path)).out
    assert "clean" in recover("check", str(stopped.path)).out
    assert "state delivered" in recover("trace", str(stopped.path), "--sequence", "2").out


def test_every_file_of_a_directory_can_be_dumped(stopped: Made) -> None:
    seen = set()
    for path in sorted(stopped.path.rglob("*")):
        if path.is_file():
            done = in_process("dump", str(path))
            assert done.code == 0, path
            assert done.rows, path
            assert in_process("dump", str(path), "--json") == done
            seen.add(done.rows[0].get("kind"))
    assert {"identity", "sequences", "checkpoint", "days", "names", "ledger", "broker store", "broker progress"} <= seen
    assert {
        "message_log",
        "schedule_log",
        "dispatch_log",
        "lock",
        "reserve",
        "broker checkpoint",
        "kept room",
        "key runs",
    } <= seen
    assert in_process("dump", str(stopped.path / "identity"), "--json").rows[0]["role"] == "server"


@pytest.mark.parametrize(("content", "kind"), [(bytes(5_000), "kept room"), (b"sequ", "unfinished replacement")])
@pytest.mark.parametrize("name", ["checkpoint.tmp", "sequences.tmp"])
def test_a_dump_distinguishes_kept_room_from_an_interrupted_replacement(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = in_process("dump", str(path))
    assert (done.code, done.rows) == (0, [{"file": str(path), "kind": kind, "bytes": len(content)}])
    foreign = path.rename(tmp_path / "letter.tmp")
    assert in_process("dump", str(foreign)).code == 2


def test_a_foreign_file_is_not_dumped(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear server")
    assert in_process("dump", str(path)).code == 2


def test_an_export_without_pyarrow_says_what_to_install(
    stopped: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "pyarrow" else found(name, *rest)
    )
    done = in_process("export", str(stopped.path), "--to", str(tmp_path / "out"))
    assert done.code == 1
    assert "pip install --use-pep517 '.[audit]'" in done.err
    assert len(done.err.splitlines()) == 1


def test_an_export_holds_every_message_and_every_outcome(stopped: Made, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = in_process("export", str(stopped.path), "--to", str(tmp_path / "out"), "--json")
    assert done.code == 0
    accepted = parquet.read_table(tmp_path / "out" / "accepted.parquet").to_pylist()
    own = [row for row in accepted if not row["origin_sequence"]]
    assert len(own) == stopped.accepted
    by_receipt = {row["receipt"]: row for row in own}
    assert by_receipt[stopped.receipts["far"]]["outcome"] == "pending"
    assert by_receipt[stopped.receipts["delivered"]]["body"] == b"body 0007"
    assert by_receipt[stopped.receipts["delivered"]]["outcome"] == "delivered"
    dispatched = parquet.read_table(tmp_path / "out" / "dispatched.parquet").to_pylist()
    assert sum(row["outcome"] == "delivered" and not row["origin_sequence"] for row in dispatched) == 300
