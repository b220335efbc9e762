"""What the tools say at three in the morning is the whole truth: no message left out, no loss and no repeat unsaid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delayserver.config.units import format_instant
from delayserver.recover.checking.whole_rows import read_blobs
from delayserver.recover.mending import offline_redispatch
from delayserver.recover.telling import export
from store.disk.filesystem import RealFileSystem
from store.errors import CorruptionError, DiskFullError
from store.logs.message_log import MessageLog
from store.records.batches import LedgerBatch
from store.tables import checkpoint
from store.tables.identity import DataDirectory
from store.tables.ledger import Ledger
from tests.delayserver.recover import damaging
from tests.delayserver.recover.damaging import records
from tests.delayserver.recover.directories import SMALL, Done, Made, ServerProcess, copy, in_process

EVERYTHING = ("--from", "2020-01-01T00:00Z", "--to", "2100-01-01T00:00Z")


def minute(made: Made, log: str, place: int = 0) -> Path:
    """A minute's file; the first is of the 300 delivered messages, the second of those due in an hour."""
    pattern = "*/*.direct.log" if log == "schedule_log" else "*/[0-9]*.log"
    return sorted((made.path / log).glob(pattern))[place]


def day(made: Made, log: str) -> Path:
    [found] = (made.path / log).glob("*/day.log")
    return found


def ends_with(done: Done, code: int) -> list[str]:
    assert done.code == code, (done.out, done.err)
    return (done.out + done.err).splitlines()


# -- between repair and rebuild


def test_messages_that_repair_took_out_are_counted_exported_and_redispatched_before_a_rebuild(
    stopped: Made, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    made = copy(stopped, tmp_path / "data")
    for place in (0, 1):
        damaging.flip_in_columns(minute(made, "schedule_log", place))
    ends_with(in_process("repair", str(made.path), "--yes"), 0)
    pending = in_process("pending", str(made.path), "--json")
    assert (pending.code, pending.last["pending"]) == (1, 92)
    assert pending.err.count("`rebuild` restores them") == 2
    out = tmp_path / "out"
    exported = in_process("export", str(made.path), "--to", str(out), "--json")
    assert (exported.code, exported.rows[0]["rows"]) == (1, rows_of_an_export(stopped, tmp_path))
    again = in_process("redispatch", str(made.path), *EVERYTHING, "--dry-run", "--json")
    assert again.last["messages"] == 300


def rows_of_an_export(made: Made, tmp_path: Path) -> int:
    whole = in_process("export", str(made.path), "--to", str(tmp_path / "whole"), "--json")
    assert whole.code == 0
    return int(whole.rows[0]["rows"])


def test_a_range_within_a_minute_is_read_as_before(stopped: Made) -> None:
    from_ms = int(stopped.receipts["pending"].split("-")[1], 16)
    done = in_process(
        "pending", str(stopped.path), "--from", format_instant(from_ms), "--to", format_instant(from_ms + 1), "--json"
    )
    assert (done.code, done.err) == (0, "")
    assert done.last["pending"] == 42  # forty of one request and two named ones; not the one moved two minutes on


# -- names


@pytest.mark.parametrize(
    ("log", "found", "named"),
    [
        ("dispatch_log", minute, "day.log"),
        ("dispatch_log", day, "0017.log"),
        ("dispatch_log", day, "0000.log"),
        ("schedule_log", day, "0017.direct.log"),
        ("schedule_log", day, "0000.direct.log"),
    ],
)
def test_a_minute_and_a_day_that_bear_each_others_names_get_their_own(
    made: Made, log: str, found: Callable[[Made, str], Path], named: str
) -> None:
    path = found(made, log)
    path.rename(path.with_name(named))
    assert in_process("check", str(made.path)).code == 1
    ends_with(in_process("repair", str(made.path), "--yes"), 0)
    assert path.exists() and not path.with_name(named).exists()
    assert in_process("check", str(made.path)).code == 0


def test_a_minute_under_the_name_of_a_day_is_the_file_of_its_minute_that_is_not_in_its_place(made: Made) -> None:
    path = minute(made, "schedule_log")
    path.rename(path.with_name("day.log"))
    ends_with(in_process("repair", str(made.path), "--yes"), 0)
    assert path.exists() and not path.with_name("day.log").exists()
    assert in_process("check", str(made.path)).code == 0


def test_which_file_of_its_minute_a_schedule_file_is_may_be_for_the_operator_to_say(made: Made) -> None:
    path = minute(made, "schedule_log")
    path.rename(path.with_name("day.log"))
    (made.path / "checkpoint").unlink()
    (made.path / "days").unlink()
    line = next(line for line in in_process("repair", str(made.path), "--yes").out.splitlines() if "day.log" in line)
    assert "left as it is" in line and str(path) in line and str(path).replace("direct", "day") in line
    assert path.with_name("day.log").exists()


# -- what a rebuild cannot bring back, and what it brings back twice


def test_a_rebuild_says_how_many_messages_no_file_holds_any_more(made: Made) -> None:
    retire_message_log(made)
    lost = day(made, "schedule_log")
    lost.unlink()
    planned = in_process("rebuild", str(made.path), "--dry-run", "--json").last
    assert planned["lost_messages"] == 50
    lines = ends_with(in_process("rebuild", str(made.path), "--yes"), 0)
    assert f"{lost}: 50 messages are lost for good: message_log does not have them any more" in lines


def test_a_rebuild_that_brings_all_back_speaks_of_no_loss(made: Made) -> None:
    day(made, "schedule_log").unlink()
    minute(made, "schedule_log", 1).unlink()
    done = in_process("rebuild", str(made.path), "--yes", "--json")
    assert (done.code, done.rows[0]["lost_messages"], done.rows[0]["perhaps_retired"]) == (0, 0, 0)
    assert in_process("check", str(made.path)).code == 0


def retire_message_log(made: Made) -> None:
    """As retention does: the next segment begins where replay stands, and the one before goes."""
    fs = RealFileSystem()
    known = checkpoint.read(fs, f"{made.path}/checkpoint")
    assert known is not None
    log = MessageLog.open(
        fs, f"{made.path}/message_log", known.server_id, segment_bytes=64, valid_to=known.replay_offset
    )
    log.append([])  # the last segment is full
    assert log.retire(log.segments()[-1][0])
    log.close()


def test_a_rebuild_behind_a_repaired_ledger_names_messages_that_may_come_again(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    damaging.flip_in_columns(made.path / "ledger.log")
    ends_with(in_process("repair", str(made.path), "--yes"), 0)
    planned = in_process("rebuild", str(made.path), "--dry-run", "--json").last
    restored = [line for line in planned["changes"] if line.endswith("restored from message_log")]
    assert restored and planned["perhaps_retired"] > 0
    assert any("they are delivered again" in line for line in planned["changes"])
    # Without the quarantine file nothing says that the ledger ever had more.
    shutil.rmtree(made.path / "quarantine")
    assert in_process("rebuild", str(made.path), "--dry-run", "--json").last["perhaps_retired"] == 0


# -- one message


def test_trace_names_the_damage_that_may_hide_an_outcome_beside_pending(made: Made) -> None:
    damaged = minute(made, "dispatch_log")
    damaging.flip_in_columns(damaged)
    lines = ends_with(in_process("trace", str(made.path), "--receipt", made.receipts["delivered"]), 1)
    assert any(line.startswith("corrupt") and str(damaged) in line for line in lines)
    # Those of another window are none of its business.
    ends_with(in_process("trace", str(made.path), "--receipt", made.receipts["pending"]), 0)
    ends_with(in_process("trace", str(made.path), "--receipt", made.receipts["cancelled"]), 0)
    damaged.unlink()
    lines = ends_with(in_process("trace", str(made.path), "--receipt", made.receipts["delivered"]), 1)
    assert any(line.startswith("missing") and str(damaged) in line for line in lines)


def test_trace_names_the_damage_that_may_hide_a_message_beside_unknown(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    scheduled = minute(made, "schedule_log", 1)
    [logged] = (made.path / "message_log").glob("*.log")
    damaging.flip_in_columns(scheduled)
    damaging.flip(logged, records(logged)[1][0] + 70)
    hidden = in_process("trace", str(made.path), "--sequence", "310")
    assert hidden.code == 1 and "this damage hides its records" in hidden.err
    assert str(scheduled) in hidden.err and str(logged) in hidden.err
    never = in_process("trace", str(stopped.path), "--sequence", "99999")
    assert never.code == 1 and "damage" not in never.err


def test_a_body_that_the_disk_cannot_read_hides_no_evidence(
    stopped: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = str(minute(stopped, "schedule_log"))

    def unreadable(taken: Any, path: str, *arguments: Any) -> dict[str, bytes]:
        if path == bad:
            raise CorruptionError(path, 4096, "the disk cannot read here: Input/output error")
        return read_blobs(taken, path, *arguments)

    monkeypatch.setattr("delayserver.recover.telling.trace.read_blobs", unreadable)
    done = in_process("trace", str(stopped.path), "--receipt", stopped.receipts["delivered"], "--json")
    assert done.code == 0
    assert done.last["state"] == "delivered"
    assert {"accepted", "scheduled", "outcome"} <= {row["what"] for row in done.rows[:-1]}
    assert all(row["body_bytes"] == len(b"body 0007") for row in done.rows if "body_bytes" in row)


# -- interrupted


@pytest.mark.parametrize("interruption", [DiskFullError("no space is left"), KeyboardInterrupt()])
def test_an_interrupted_redispatch_says_how_far_it_came_and_goes_on_there(
    made: Made, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    monkeypatch.setattr(offline_redispatch, "MESSAGES_MAX", 100)
    append = MessageLog.append
    appended: list[int] = []

    def third_fails(log: MessageLog, batches: Any) -> Any:
        appended.append(len(appended))
        if len(appended) == 3:
            raise interruption
        return append(log, batches)

    with monkeypatch.context() as patched:
        patched.setattr(MessageLog, "append", third_fails)
        cut = in_process("redispatch", str(made.path), *EVERYTHING, "--yes")
    assert cut.code in (1, 130) and "200 of 300 messages will be delivered again" in cut.err
    again = in_process("redispatch", str(made.path), *EVERYTHING, "--yes", "--json").last
    assert (again["messages"], again["waiting"]) == (100, 200)
    third = in_process("redispatch", str(made.path), *EVERYTHING, "--yes", "--json").last
    assert (third["messages"], third["waiting"]) == (0, 300)
    with ServerProcess(made.path, *SMALL) as server:
        server.stop()
    assert in_process("check", str(made.path), "--json").last["internal"] == 301


def test_an_interrupted_export_leaves_the_one_before(
    stopped: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out"
    ends_with(in_process("export", str(stopped.path), "--to", str(out)), 0)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    flush = export._RowGroups.flush
    groups = []

    def stops(rows: Any) -> None:
        flush(rows)
        groups.append(rows)
        if len(groups) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(export, "GROUP_ROWS", 1)
    with monkeypatch.context() as patched:
        patched.setattr(export._RowGroups, "flush", stops)
        assert in_process("export", str(stopped.path), "--to", str(out)).code == 130
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    ends_with(in_process("export", str(stopped.path), "--to", str(out)), 0)
    assert sorted(path.name for path in out.iterdir()) == sorted(before)
    assert parquet.read_table(out / "accepted.parquet").num_rows == 398


# -- what repair leaves, and what it could not keep


def test_a_repair_that_leaves_something_does_not_end_with_zero(made: Made) -> None:
    minute(made, "dispatch_log", 1).write_bytes(minute(made, "dispatch_log").read_bytes())
    [line] = ends_with(in_process("repair", str(made.path), "--yes"), 1)
    assert "left as it is" in line


def test_a_range_that_waits_for_names_is_named_and_done_by_the_next_repair(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    first, second, third = sorted((made.path / "message_log").glob("*.log"))[:3]
    damaging.flip(third, records(third)[0][0] + 70)
    damaging.swap(first, second)
    lines = ends_with(in_process("repair", str(made.path), "--yes"), 1)
    assert any(str(third) in line and "run `repair` once more" in line for line in lines)
    assert not (made.path / "quarantine").exists()
    ends_with(in_process("repair", str(made.path), "--yes"), 0)
    assert json.loads((made.path / "quarantine" / "000001.quarantine").read_bytes().partition(b"\n")[0])["file"] == str(
        third
    )


def test_repair_keeps_the_other_segments_and_says_where_the_lost_file_ended(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    segment = sorted((made.path / "message_log").glob("*.log"))[1]
    size = segment.stat().st_size
    segment.unlink()
    lines = ends_with(in_process("repair", str(made.path), "--yes"), 0)
    assert any(f"of bytes {size} to {2 * size} nothing is left" in line for line in lines)
    assert not (made.path / "quarantine").exists()


def test_check_names_retired_windows_of_the_future(made: Made) -> None:
    assert not any("of the future" in line for line in ends_with(in_process("check", str(made.path)), 0))
    identity = DataDirectory.open(RealFileSystem(), str(made.path), random_server_id=lambda: 0)
    ledger = Ledger.open(RealFileSystem(), str(made.path), identity.server_id)
    starts = [4_000_000_000_000 // 60_000 * 60_000 + minutes * 60_000 for minutes in (0, 7)]
    for start in starts:
        ledger.append(LedgerBatch.filled(1, subject=1, start_ms=start))
    ledger.close()
    identity.close()
    lines = ends_with(in_process("check", str(made.path)), 0)
    (told,) = [line for line in lines if "retired windows of the future: 2, from 2096-10-02T07:06" in line]
    assert "are refused (--json names them)" in told
    found = in_process("check", str(made.path), "--json").last
    assert (found["clean"], found["retired_ahead"], found["retired_ahead_ms"]) == (True, 2, starts)
