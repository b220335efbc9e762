"""The short torture of every run of the tests, and proof that its judge can say no."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Delivery
from delayserver.protocol.outcomes import Outcome
from ops.torture import server
from ops.torture.__main__ import main
from ops.torture.harness import Plan, StateRefused, Torture
from ops.torture.power import FILE_SYSTEMS, PowerDisk, why_not
from ops.torture.record import Fate, Instance, Record
from store.disk.filesystem import RealFileSystem, read_whole
from store.errors import DiskError, SyncFailedError
from tests.forked import forking

NOW_US = 1_800_000_000_000_000
DUE_MS = NOW_US // 1000 - 100


Tortured = Callable[..., dict[str, Any]]


@pytest.fixture
def torture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tortured:
    """`python -m ops.torture` with these arguments, in this process; its report. The servers are forked."""
    forking(monkeypatch, server)

    def run(*arguments: str) -> dict[str, Any]:
        command = ["torture", *arguments, "--seed", str(os.getpid()), "--directory", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", command)
        code = main()
        said = capsys.readouterr()
        assert code == 0, said.out[-3000:] + said.err[-3000:]
        report: dict[str, Any] = json.loads(said.out)
        return report

    return run


def test_a_server_killed_again_and_again_under_load_keeps_every_promise(torture: Tortured) -> None:
    report = torture("--kills", "8")
    assert report["passed"]
    assert report["kills"] == 8
    assert (report["lost"], report["early"], report["violations"]) == (0, 0, [])
    assert report["accepted"] > 100
    assert report["arrived"] > 100
    assert report["status"]["pending"] == 0


def delivery(
    number: int,
    *,
    sequence: int = 0,
    due_ms: int = DUE_MS,
    dispatched_us: int = NOW_US,
    attempt: int = 1,
    subject: str = "s",
    message_id: str = "",
) -> Delivery:
    return Delivery(
        message_id=message_id or f"m{number}",
        subject=subject,
        sequence=sequence or number,
        server_id="000000000001",
        due_ms=due_ms,
        accepted_us=0,
        dispatched_us=dispatched_us,
        attempt=attempt,
        body=b"%d" % number,
        properties={},
        delivery=number,
    )


def receipt(number: int) -> str:
    return f"000000000001-{DUE_MS:012x}-{number:012x}"


@pytest.fixture
def record() -> Record:
    made = Record(lambda: NOW_US)
    made.accepted([made.new("s", DUE_MS)], [receipt(1)])
    return made


def arrive(record: Record, number: int = 1, **more: Any) -> Instance:
    instance = record.arrived(delivery(number, **more))
    assert instance is not None
    return instance


def test_an_accepted_message_that_did_not_come_is_missing(record: Record) -> None:
    assert [sent.number for sent in record.missing()] == [1]
    arrive(record)
    assert record.missing() == []
    assert record.violations == []


def test_an_early_arrival_is_a_violation(record: Record) -> None:
    record.arrived(delivery(1, dispatched_us=DUE_MS * 1000 - 1))
    assert "was early" in record.violations[0]


def test_a_retry_that_is_dispatched_before_its_own_due_time_is_early(record: Record) -> None:
    [retry] = record.handing_back([arrive(record)], 1)
    record.arrived(delivery(1, sequence=9, due_ms=retry.from_us // 1000, dispatched_us=NOW_US))
    assert "was early" in record.violations[0]


def test_a_cancelled_message_that_arrives_is_a_violation_in_either_order(record: Record) -> None:
    record.ended(record.sent[1], Outcome.CANCELLED)
    record.arrived(delivery(1))
    assert "arrived though it was answered ended" in record.violations[0]
    other = record.new("s", DUE_MS)
    record.accepted([other], [receipt(2)])
    record.arrived(delivery(2))
    record.ended(other, Outcome.CANCELLED)
    assert "had arrived and its cancel was answered cancelled" in record.violations[1]


def test_a_message_that_comes_again_after_its_ack_is_a_violation_even_after_a_crash(record: Record) -> None:
    instance = arrive(record)
    record.acking([instance])
    record.acked([instance])
    record.crashed()
    record.arrived(delivery(1))
    assert "came again after its ack" in record.violations[0]


def test_a_delivery_that_comes_again_after_its_nack_is_a_violation_even_after_a_crash(record: Record) -> None:
    instance = arrive(record)
    record.handed_back([instance], record.handing_back([instance], 0))
    record.crashed()
    record.arrived(delivery(1))
    assert "came again after its nack" in record.violations[0]


def test_a_repeat_is_explained_by_a_crash_before_its_ack_or_by_a_nack_and_by_nothing_else(record: Record) -> None:
    arrive(record)
    record.crashed()
    instance = arrive(record)
    record.handed_back([instance], record.handing_back([instance], -200))
    arrive(record, sequence=9)
    assert dict(record.duplicates) == {"not acked before a crash": 1, "handed back": 1}
    assert record.violations == []
    record.arrived(delivery(1, sequence=9))
    assert "came twice without a crash" in record.violations[0]


def test_a_nack_is_good_for_one_more_instance_and_not_for_two(record: Record) -> None:
    instance = arrive(record)
    record.handing_back([instance], -200)  # and the server dies over it: the delivery and its retry may both come
    record.crashed()
    arrive(record)
    arrive(record, sequence=9)
    assert dict(record.duplicates) == {"nack without an answer": 1, "handed back, without an answer": 1}
    assert record.violations == []
    record.arrived(delivery(1, sequence=10))
    assert "that no nack asked for" in record.violations[0]


def test_a_retry_due_before_the_delay_of_its_nack_is_a_violation(record: Record) -> None:
    record.handing_back([arrive(record)], 150)
    record.arrived(delivery(1, sequence=9))
    assert "before the delay of its nack" in record.violations[0]


def test_the_retry_of_an_answered_nack_must_come(record: Record) -> None:
    instance = arrive(record)
    record.handed_back([instance], record.handing_back([instance], -200))
    assert [sent.number for sent in record.unsettled()] == [1]
    again = arrive(record, sequence=9)
    assert [sent.number for sent in record.unsettled()] == [1]
    record.acked([again])
    assert record.unsettled() == []


def test_a_nack_that_a_crash_cut_off_must_bring_its_instance_or_its_retry_again(record: Record) -> None:
    record.handing_back([arrive(record)], -200)
    record.crashed()
    assert [sent.number for sent in record.unsettled()] == [1]
    again = arrive(record)
    record.acked([again])
    assert record.unsettled() == []


def test_the_retry_of_a_nack_that_a_crash_cut_off_stands_for_the_instance(record: Record) -> None:
    record.handing_back([arrive(record)], -200)
    record.crashed()
    record.acked([arrive(record, sequence=9)])
    assert record.unsettled() == []
    assert record.violations == []


def test_a_nack_cut_off_twice_loses_the_message_where_neither_comes_after_the_second_time(record: Record) -> None:
    record.handing_back([arrive(record)], -200)
    record.crashed()
    record.handing_back([arrive(record)], -200)
    record.crashed()
    assert [sent.number for sent in record.unsettled()] == [1]
    record.acked([arrive(record, sequence=9)])
    assert record.unsettled() == []


def test_a_message_under_another_sequence_than_its_receipt_says_is_a_violation(record: Record) -> None:
    record.arrived(delivery(1, sequence=7))
    assert "arrived as sequence 7" in record.violations[0]


def test_a_request_of_this_life_is_not_taken_for_one_that_a_crash_cut_off(record: Record) -> None:
    asked = record.new("s", DUE_MS)
    assert record.unanswered(Fate.ASKED) == []
    record.crashed()
    assert record.unanswered(Fate.ASKED) == [asked]


def test_a_saved_run_goes_on_where_it_was_and_refuses_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking(monkeypatch, server)
    plan = Plan(2, 5, str(tmp_path / "first"), run_s_max=0.2, state=str(tmp_path / "state"), save_every=1)
    (tmp_path / "first").mkdir()
    first = Torture(plan, lambda _line: None)
    first.run()
    saved = (tmp_path / "state" / "run.pickle").read_bytes()
    (tmp_path / "second").mkdir()
    again = Torture(replace(plan, kills=3, directory=str(tmp_path / "second")), lambda _line: None)
    report = again.run()
    assert (report.kills, report.violations) == (3, [])
    assert report.sent > 0 and report.passed
    (tmp_path / "state" / "run.pickle").write_bytes(saved.replace(report.code.encode(), b"0" * 12))
    (tmp_path / "third").mkdir()
    with pytest.raises(StateRefused, match="other code"):
        Torture(replace(plan, directory=str(tmp_path / "third")), lambda _line: None)


def test_a_message_that_was_never_sent_is_a_violation(record: Record) -> None:
    assert record.arrived(delivery(7)) is None
    assert "no producer sent" in record.violations[0]


@pytest.mark.parametrize("name", [{"subject": "another"}, {"message_id": "m2"}])
def test_a_message_under_another_name_is_a_violation(record: Record, name: dict[str, str]) -> None:
    record.arrived(delivery(1, **name))  # type: ignore[arg-type]
    assert "1 of s as m1 arrived of" in record.violations[0]


def test_a_derived_id_is_that_of_the_first_instance(record: Record) -> None:
    derived = f"000000000001-{2:012x}"
    sent = record.new("s", DUE_MS, with_id=False)
    record.accepted([sent], [receipt(2)])
    instance = record.arrived(delivery(2, message_id=derived))
    assert instance is not None
    record.handed_back([instance], record.handing_back([instance], -200))
    record.arrived(delivery(2, sequence=9, message_id=derived))
    assert record.violations == []
    record.arrived(delivery(1, message_id=derived))
    assert "1 of s as m1 arrived of" in record.violations[0]


def test_a_cancel_of_an_accepted_message_answered_unknown_is_a_violation(record: Record) -> None:
    record.ended(record.sent[1], Outcome.UNKNOWN)
    assert "was answered unknown" in record.violations[0]


def test_a_server_whose_disk_loses_power_again_and_again_keeps_every_promise(torture: Tortured) -> None:
    if missing := why_not("ext4"):
        pytest.skip(missing)
    report = torture("--cuts", "3")
    assert (report["power"], report["kills"], report["lost"], report["early"]) == ("ext4", 3, 0, 0)
    assert report["accepted"] > 50 and report["arrived"] > 50


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_a_disk_that_loses_power_keeps_synced_bytes_alone(kind: str, tmp_path: Path) -> None:
    if missing := why_not(kind):
        pytest.skip(missing)
    disk = PowerDisk(str(tmp_path), kind)
    disk.make()
    try:
        fs = RealFileSystem()
        synced, unsynced = (fs.open(f"{disk.mount}/{name}", create=True) for name in ("synced", "unsynced"))
        synced.pwrite(0, [b"old"])
        synced.datasync()
        fs.sync_directory(disk.mount)
        synced.pwrite(0, [b"new"])
        unsynced.pwrite(0, [b"gone"])
        disk.cut()
        with pytest.raises(SyncFailedError):
            synced.datasync()
        with pytest.raises(DiskError, match="Input/output error"):
            fs.open(f"{disk.mount}/none", create=True)
        with pytest.raises(DiskError, match="Input/output error"):
            synced.pwrite(0, [b"x"])
        for file in (synced, unsynced):
            file.close()
        disk.restore()
        assert read_whole(fs, f"{disk.mount}/synced") == b"old"
        assert not fs.exists(f"{disk.mount}/unsynced") or fs.size(f"{disk.mount}/unsynced") == 0
    finally:
        disk.clean_up()
