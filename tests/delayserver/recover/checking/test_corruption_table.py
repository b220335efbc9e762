"""The corruption table: each kind of file, each named damage, and what `check` answers.

The last columns say what becomes of the directory: `repair` and `rebuild` make it clean where anything can.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgpack
import numpy as np
import pytest

from delayserver.broker.files.policies_file import PolicyRow, encode_policies
from delayserver.broker.policy import ConsumerPolicy
from tests.delayserver.recover import damaging
from tests.delayserver.recover.damaging import Damage
from tests.delayserver.recover.directories import Made, copy, in_process

DAMAGES: dict[str, Damage] = {
    "bit in the magic": damaging.flip_in_record(0),
    "bit in the header checksum": damaging.flip_in_record(4),
    "bit in the kind": damaging.flip_in_record(8),
    "bit in the count": damaging.flip_in_record(12),
    "bit in the length": damaging.flip_in_record(16),
    "bit in the checksum": damaging.flip_in_record(20),
    "bit in a column": damaging.flip_in_columns,
    "bit in the body": damaging.flip_in_body,
    "bit in the file header": damaging.flip_file_header,
    "zeroed page": damaging.zero_page,
    "batch written twice": damaging.repeat_batch,
    "torn within the magic": damaging.cut_at("magic"),
    "torn within the header": damaging.cut_at("header"),
    "torn within the columns": damaging.cut_at("columns"),
    "torn at the last byte": damaging.cut_at("end"),
    "half a record more": damaging.append_torn,
    "missing": damaging.remove,
    "foreign cluster id": damaging.foreign_cluster,
    "newer version": damaging.newer_version,
}
TORN_BY_A_CRASH = {"batch written twice", "half a record more"}
CUT = {name for name in DAMAGES if name.startswith("torn ")}
NOT_OURS = {"foreign cluster id", "newer version"}
# Files of which the checkpoint says how far they were durable: cut off below it is no torn tail but damage.
LOGS = {
    "message_log",
    "schedule_log minute",
    "schedule_log day",
    "dispatch_log minute",
    "dispatch_log day",
    "broker store",
}
# What message_log still holds, it gives back: messages, and the cancels whose outcome is lost.
RESTORABLE = {"schedule_log minute", "schedule_log day"}
REBUILT = RESTORABLE | {"dispatch_log day"}


def files(root: Path) -> dict[str, Path]:
    """One of each kind that is a log. What is due in an hour may lie in the folder of tomorrow."""
    *near, far = sorted((root / "schedule_log").iterdir())
    due_at_once, due_in_an_hour, *_ = sorted(path for day in near for path in day.iterdir())
    return {
        "message_log": sorted((root / "message_log").iterdir())[0],
        "schedule_log minute": due_in_an_hour,
        "schedule_log day": far / "day.log",
        "dispatch_log minute": sorted((root / "dispatch_log" / due_at_once.parent.name).iterdir())[0],
        "dispatch_log day": root / "dispatch_log" / far.name / "day.log",
        "names.log": root / "names.log",
        "broker store": sorted((root / "broker" / "store").iterdir())[0],
        "broker progress": root / "broker" / "progress.log",
    }


def expected(kind: str, damage: str) -> set[str]:
    """The kinds of findings."""
    if damage in TORN_BY_A_CRASH:
        return {"torn"}
    if damage == "missing":
        return {"missing"}
    if damage in NOT_OURS:
        return {"unreadable"}
    if damage in CUT and kind not in LOGS:
        # Only the file itself could show that the last record was whole once: FORMAT.md, "Not covered".
        return {"torn"}
    if kind in RESTORABLE and damage != "bit in the file header":
        return {"corrupt", "missing"}
    return {"corrupt"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", [
    "message_log", "schedule_log minute", "schedule_log day", "dispatch_log minute", "dispatch_log day", "names.log",
    "broker store", "broker progress",
])  # fmt: skip
def test_check_names_the_damage_and_repair_ends_it(made: Made, kind: str, damage: str) -> None:
    path = files(made.path)[kind]
    DAMAGES[damage](path)
    done = in_process("check", str(made.path), "--json")
    kinds = set(done.kinds())
    assert kinds == expected(kind, damage), done.last["findings"]
    assert done.code == (0 if kinds == {"torn"} else 1)
    about = [finding for finding in done.last["findings"] if finding["file"].endswith(path.name)]
    assert about or damage == "missing"
    if kinds & {"corrupt", "torn"}:
        assert done.last["accepted"] == made.accepted
    _repaired(made, kind, damage)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("message_log", {"corrupt", "orphaned"}),
        ("schedule_log minute", {"corrupt", "missing"}),
        ("schedule_log day", {"corrupt", "missing"}),
        ("dispatch_log minute", {"corrupt"}),
        ("dispatch_log day", {"corrupt", "missing"}),
        ("broker store", {"corrupt"}),
        ("broker progress", set()),
    ],
)
def test_check_finds_a_cut_behind_a_whole_record_by_the_counts_of_the_checkpoint(
    made: Made, kind: str, told: set[str]
) -> None:
    """The list in FORMAT.md, "Not covered"."""
    damaging.cut_before_last_record(files(made.path)[kind])
    done = in_process("check", str(made.path), "--json")
    assert (set(done.kinds()), done.code) == (told, 1 if told else 0), done.last["findings"]


@pytest.mark.parametrize("kept", ["message_log is kept", "message_log is retired"])
def test_check_finds_a_cut_of_the_ledger_by_messages_or_by_their_number(aged: Made, tmp_path: Path, kept: str) -> None:
    made = copy(aged, tmp_path / "data")
    if kept == "message_log is retired":
        for path in sorted((made.path / "message_log").iterdir())[:-1]:
            path.unlink()
    assert in_process("check", str(made.path)).code == 0
    damaging.cut_before_last_record(made.path / "ledger.log")
    assert in_process("check", str(made.path), "--json").kinds() == [
        "missing" if kept == "message_log is kept" else "contradictory"
    ]


def test_names_that_are_used_and_cut_off_are_missed(made: Made) -> None:
    path = made.path / "names.log"
    path.write_bytes(path.read_bytes()[: damaging.records(path)[1][0]])
    done = in_process("check", str(made.path), "--json")
    assert done.kinds() == ["missing"]
    assert "is used, but only 1 names are known" in done.last["findings"][0]["detail"]


def _repaired(made: Made, kind: str, damage: str) -> None:
    if damage in NOT_OURS:
        before = {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file() and path.name != "lock"}
        in_process("repair", str(made.path), "--yes")
        assert {path: path.read_bytes() for path in before} == before, "what cannot be read is never touched"
        return
    assert in_process("repair", str(made.path), "--yes").code == 0
    if (kind, damage) == ("broker store", "missing"):
        return  # its checkpoint is moved aside, and the broker begins anew: `redispatch` brings the messages back
    after = in_process("check", str(made.path), "--json")
    if damage == "missing" or (kind in REBUILT and not after.last["clean"]):
        assert set(after.kinds()) == {"missing"}
        assert in_process("rebuild", str(made.path), "--yes").code == 0
        after = in_process("check", str(made.path), "--json")
    if kind.startswith("broker") and (damage == "missing" or "bit" in damage or damage == "zeroed page"):
        return  # the broker's own: a start goes on without what is lost, and says so
    assert (after.code, after.kinds()) == (0, []), after.last["findings"]
    assert after.last["accepted"] == made.accepted


# -- what a directory has only after a while: sealed segments, a ledger, spilled index rows


def aged_files(root: Path) -> dict[str, Path]:
    """One of each kind."""
    return {
        "sealed segment": sorted((root / "message_log").iterdir())[1],
        "ledger.log": root / "ledger.log",
        "broker queue": sorted((root / "broker" / "queue").iterdir())[0],
    }


def expected_aged(kind: str, damage: str) -> set[str]:
    """The kinds of findings. A ledger that is short of windows leaves messages without an account: `missing`."""
    if kind == "sealed segment":
        if damage in CUT:
            return {"corrupt", "missing"}  # the bytes that do not verify, and those that are not there
        named = {"missing": {"missing"}, "foreign cluster id": {"unreadable"}, "newer version": {"unreadable"}}
        return named.get(damage, {"corrupt"})  # what stands behind its end as well: it was whole before its successor
    found = {"torn"} if damage in TORN_BY_A_CRASH | CUT else {"unreadable"} if damage in NOT_OURS else {"corrupt"}
    if kind == "broker queue":
        return set() if damage == "missing" else found  # the checkpoint names none of its blocks
    if damage == "missing":
        return {"missing"}
    return found if damage in TORN_BY_A_CRASH else found | {"missing"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["sealed segment", "ledger.log", "broker queue"])
def test_damage_of_an_aged_directory_is_named_and_ended(aged: Made, tmp_path: Path, kind: str, damage: str) -> None:
    made = copy(aged, tmp_path / "data")
    path = aged_files(made.path)[kind]
    DAMAGES[damage](path)
    done = in_process("check", str(made.path), "--json")
    kinds = set(done.kinds())
    assert kinds == expected_aged(kind, damage), done.last["findings"]
    assert done.code == (0 if kinds <= {"torn"} else 1)
    assert done.last["accepted"] == aged.accepted
    before = path.read_bytes() if path.exists() else b""
    assert in_process("repair", str(made.path), "--yes").code == (1 if damage in NOT_OURS else 0)
    if damage in NOT_OURS:
        assert path.read_bytes() == before, "what cannot be read is never touched"
        return
    if (kind, damage) == ("sealed segment", "missing"):
        return  # its messages are in schedule_log or have their outcome; nothing can bring the record of their arrival back
    after = in_process("check", str(made.path), "--json")
    if set(after.kinds()) == {"missing"}:
        assert in_process("rebuild", str(made.path), "--yes").code == 0
        after = in_process("check", str(made.path), "--json")
    if kind == "broker queue" and ("bit" in damage or damage == "zeroed page"):
        # The broker passes over it; a file header alone can be written anew.
        assert after.kinds() == ([] if damage == "bit in the file header" else ["corrupt"])
        return
    assert (after.code, after.kinds()) == (0, []), after.last["findings"]
    assert after.last["accepted"] == aged.accepted


def test_the_oldest_sealed_segment_may_be_gone_as_retention_takes_it(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    sorted((made.path / "message_log").iterdir())[0].unlink()
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.kinds(), done.last["accepted"]) == (0, [], aged.accepted)


def broker_checkpoint(path: Path, **changed: Any) -> None:
    """Written anew with other fields and a right checksum."""
    content = msgpack.unpackb(path.read_bytes()[12:]) | changed
    body: bytes = msgpack.packb(content)
    crc: int = google_crc32c.value(body)
    path.write_bytes(b"DELAYBCP" + crc.to_bytes(4, "little") + body)


def overwrite(change: Callable[[bytes], bytes]) -> Damage:
    """The content of the file as this makes it."""

    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


BROKER_CHECKPOINT: dict[str, Damage] = {
    "bit in the magic": lambda path: damaging.flip(path, 0),
    "bit in the checksum": lambda path: damaging.flip(path, 9),
    "bit in the body": lambda path: damaging.flip(path, path.stat().st_size // 2),
    "torn within the magic": overwrite(lambda data: data[:5]),
    "torn within the checksum": overwrite(lambda data: data[:10]),
    "torn within the body": overwrite(lambda data: data[:-3]),
    "empty": overwrite(lambda data: b""),
    "zeroed page": overwrite(lambda data: bytes(len(data))),
    "half of it once more": overwrite(lambda data: data + data[:20]),
    "foreign cluster id": lambda path: broker_checkpoint(path, server_id=0xABCDEF),
    "newer version": lambda path: broker_checkpoint(path, version=99),
    "nothing in it": overwrite(lambda data: b"DELAYBCP" + bytes(4)),
    "swapped with the server's": lambda path: damaging.swap(path, path.parents[1] / "checkpoint"),
}


@pytest.mark.parametrize("damage", BROKER_CHECKPOINT)
def test_a_checkpoint_of_the_broker_that_does_not_verify_is_named_and_moved_aside(
    aged: Made, tmp_path: Path, damage: str
) -> None:
    made = copy(aged, tmp_path / "data")
    BROKER_CHECKPOINT[damage](made.path / "broker" / "checkpoint")
    done = in_process("check", str(made.path), "--json")
    about = {finding["kind"] for finding in done.last["findings"] if finding["file"].endswith("broker/checkpoint")}
    assert (done.code, about) == (1, {"corrupt"}), done.last["findings"]
    assert in_process("repair", str(made.path), "--yes").code == 0
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.kinds(), after.last["accepted"]) == (0, [], aged.accepted), after.last["findings"]


@pytest.mark.parametrize("damage", ["torn within the body", "empty", "foreign cluster id"])
def test_a_table_of_policies_that_does_not_verify_is_named_and_moved_aside(
    aged: Made, tmp_path: Path, damage: str
) -> None:
    made = copy(aged, tmp_path / "data")
    path = made.path / "broker" / "groups"
    path.write_bytes(encode_policies({(1, 2): PolicyRow(ConsumerPolicy(attempts=3), 4)}, int(made.server_id, 16)))
    assert in_process("check", str(made.path), "--json").kinds() == []
    if damage == "foreign cluster id":
        path.write_bytes(encode_policies({}, 0xABCDEF))
    else:
        BROKER_CHECKPOINT[damage](path)
    done = in_process("check", str(made.path), "--json")
    about = {finding["kind"] for finding in done.last["findings"] if finding["file"].endswith("broker/groups")}
    assert (done.code, about) == (1, {"corrupt"}), done.last["findings"]
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert in_process("check", str(made.path), "--json").kinds() == []
    (made.path / "broker" / "groups.damaged").write_bytes(b"kept")
    assert in_process("check", str(made.path), "--json").kinds() == ["orphaned"]


def test_a_missing_checkpoint_of_the_broker_is_as_good_as_none(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    (made.path / "broker" / "checkpoint").unlink()
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.kinds()) == (0, []), "the store alone rebuilds everything in it"


def test_spilled_index_rows_that_the_checkpoint_names_must_be_there(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    queue = aged_files(made.path)["broker queue"]
    checkpoint = made.path / "broker" / "checkpoint"
    rows = np.zeros(0, np.int64).tobytes()
    queues = [(1, 0, 0, 0, [(0, 64, 64, 64)], rows, rows, rows, rows)]
    broker_checkpoint(checkpoint, version=1, blocks_offset=queue.stat().st_size, queues=queues)
    assert in_process("check", str(made.path), "--json").kinds() == []
    queue.unlink()
    assert in_process("check", str(made.path), "--json").kinds() == ["missing"]


@pytest.mark.parametrize("room", ["message_log", "broker/store"])
def test_swapped_segments_are_misplaced(aged: Made, tmp_path: Path, room: str) -> None:
    made = copy(aged, tmp_path / "data")
    first, second = sorted((made.path / room).iterdir())[:2]
    damaging.swap(first, second)
    done = in_process("check", str(made.path), "--json")
    misplaced = {finding["file"] for finding in done.last["findings"] if finding["kind"] == "misplaced"}
    assert done.code == 1 and misplaced == {str(first), str(second)}
    assert in_process("repair", str(made.path), "--yes").code == (0 if room == "message_log" else 1)
    if room == "message_log":
        after = in_process("check", str(made.path), "--json")
        assert (after.code, after.last["findings"]) == (0, [])


@pytest.mark.parametrize("pair", [("ledger.log", "names.log"), ("ledger.log", "broker/progress.log")])
def test_tables_that_changed_places_are_named(aged: Made, tmp_path: Path, pair: tuple[str, str]) -> None:
    made = copy(aged, tmp_path / "data")
    damaging.swap(made.path / pair[0], made.path / pair[1])
    done = in_process("check", str(made.path), "--json")
    named = {finding["file"] for finding in done.last["findings"] if finding["kind"] in ("misplaced", "unreadable")}
    assert done.code == 1 and named == {str(made.path / name) for name in pair}, done.last["findings"]


@pytest.mark.parametrize("name", ["checkpoint", "identity", "sequences", "days"])
@pytest.mark.parametrize("damage", ["flipped bit", "cut off", "missing"])
def test_a_lost_table_is_named_and_rebuilt(made: Made, name: str, damage: str) -> None:
    path = made.path / name
    if damage == "flipped bit":
        damaging.flip(path, path.stat().st_size // 2)
    elif damage == "cut off":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    done = in_process("check", str(made.path), "--json")
    if (name, damage) == ("checkpoint", "missing"):
        assert done.code == 0, "a directory without a checkpoint is as good as one whose server never wrote it"
    else:
        assert done.code == 1
        assert done.kinds() == ["missing" if damage == "missing" else "corrupt"]
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.last["findings"]) == (0, [])
    assert (after.last["accepted"], after.last["pending"]) == (made.accepted, done.last["pending"])


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
def test_swapped_files_are_misplaced_and_get_their_names_back(made: Made, log: str) -> None:
    first, second, *_ = sorted((made.path / log).glob("*/*.log"))
    damaging.swap(first, second)
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.kinds()) == (1, ["misplaced"])
    assert {finding["file"] for finding in done.last["findings"]} == {str(first), str(second)}
    assert in_process("repair", str(made.path), "--yes").code == 0
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.last["findings"]) == (0, [])


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
def test_a_day_and_a_minute_that_changed_places_get_their_names_back(made: Made, log: str) -> None:
    minute, day = files(made.path)[f"{log} minute"], files(made.path)[f"{log} day"]
    damaging.swap(minute, day)
    assert in_process("check", str(made.path), "--json").kinds() == ["misplaced"]
    done = in_process("repair", str(made.path), "--yes")
    assert done.code == 0, done.out
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.last["findings"], after.last["accepted"]) == (0, [], made.accepted)


def test_repair_leaves_a_minute_under_the_name_of_a_day_whose_own_files_are_there(made: Made) -> None:
    minute, day = files(made.path)["schedule_log minute"], files(made.path)["schedule_log day"]
    day.write_bytes(minute.read_bytes())  # twice, and its own place is taken
    done = in_process("repair", str(made.path), "--yes")
    assert done.code == 1
    assert "the files of that minute are there already" in done.out + done.err


def test_every_bit_of_a_file_header_is_guarded(made: Made) -> None:
    path = files(made.path)["schedule_log minute"]
    whole = path.read_bytes()
    for place in range(64):
        damaging.flip(path, place)
        assert in_process("check", str(made.path), "--json").code == 1, f"byte {place}"
        path.write_bytes(whole)


def test_a_sound_directory_has_no_finding_of_the_table(made: Made) -> None:
    assert in_process("check", str(made.path), "--json").last["findings"] == []
