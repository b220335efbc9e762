"""The short torture of every run of the tests, and proof that its judge can say no."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from delayserver.client import Delivery
from delayserver.protocol.outcomes import Outcome
from ops.torture.record import Record

ROOT = Path(__file__).parents[3]
NOW_US = 1_800_000_000_000_000
DUE_MS = NOW_US // 1000 - 100


def test_a_server_killed_again_and_again_under_load_keeps_every_promise(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ops.torture",
        "--kills",
        "8",
        "--seed",
        str(os.getpid()),
        "--directory",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["passed"]
    assert report["kills"] == 8
    assert (report["lost"], report["early"], report["violations"]) == (0, 0, [])
    assert report["accepted"] > 100
    assert report["arrived"] > 100
    assert report["status"]["pending"] == 0


def delivery(number: int, *, dispatched_us: int = NOW_US) -> Delivery:
    return Delivery(
        message_id=f"m{number}",
        subject="s",
        sequence=number,
        server_id="000000000001",
        due_ms=DUE_MS,
        accepted_us=0,
        dispatched_us=dispatched_us,
        attempt=1,
        body=b"%d" % number,
        properties={},
        delivery=number,
    )


@pytest.fixture
def record() -> Record:
    made = Record(lambda: NOW_US)
    made.accepted([made.new("s", DUE_MS)], ["receipt"])
    return made


def test_what_was_accepted_and_did_not_come_is_missing(record: Record) -> None:
    assert [sent.number for sent in record.missing()] == [1]
    record.arrived(delivery(1))
    assert record.missing() == []
    assert record.violations == []


def test_an_early_arrival_is_a_violation(record: Record) -> None:
    record.arrived(delivery(1, dispatched_us=DUE_MS * 1000 - 1))
    assert "was early" in record.violations[0]


def test_a_cancelled_message_that_arrives_is_a_violation_in_either_order(record: Record) -> None:
    record.ended(record.sent[1], Outcome.CANCELLED)
    record.arrived(delivery(1))
    assert "arrived though it was answered ended" in record.violations[0]
    other = record.new("s", DUE_MS)
    record.accepted([other], ["receipt"])
    record.arrived(delivery(2))
    record.ended(other, Outcome.CANCELLED)
    assert "had arrived and its cancel was answered cancelled" in record.violations[1]


def test_a_message_that_comes_again_after_its_ack_is_a_violation_whatever_crashed(record: Record) -> None:
    sent = record.arrived(delivery(1))
    assert sent is not None
    record.acking([sent])
    record.acked([sent])
    record.crashed()
    record.arrived(delivery(1))
    assert "came again after its ack" in record.violations[0]


def test_a_repeat_is_explained_by_a_crash_before_its_ack_or_by_a_nack_and_by_nothing_else(record: Record) -> None:
    record.arrived(delivery(1))
    record.crashed()
    record.arrived(delivery(1))
    record.handing_back([record.sent[1]], 0)
    record.handed_back([record.sent[1]])
    record.arrived(delivery(1))
    assert dict(record.duplicates) == {"not acked before a crash": 1, "handed back": 1}
    assert record.violations == []
    record.arrived(delivery(1))
    assert "came twice without a crash" in record.violations[0]


def test_a_message_that_nobody_sent_is_a_violation(record: Record) -> None:
    assert record.arrived(delivery(7)) is None
    assert "nobody sent" in record.violations[0]


def test_a_cancel_of_an_accepted_message_answered_unknown_is_a_violation(record: Record) -> None:
    record.ended(record.sent[1], Outcome.UNKNOWN)
    assert "was answered unknown" in record.violations[0]
