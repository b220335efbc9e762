"""The corruption table: each kind of file, each named damage, and what `check` answers.

The last columns say what becomes of the directory: `repair` and `rebuild` make it clean where anything can.
"""

from __future__ import annotations

from pathlib import Path

import pytest

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
    """One of each kind that is a log."""
    near, far = sorted(path for path in (root / "schedule_log").iterdir())
    return {
        "message_log": sorted((root / "message_log").iterdir())[0],
        "schedule_log minute": sorted(near.iterdir())[1],
        "schedule_log day": far / "day.log",
        "dispatch_log minute": sorted((root / "dispatch_log" / near.name).iterdir())[0],
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
        # Nothing but the file itself could tell that the last record was whole once: FORMAT.md, "Not covered".
        return {"torn"}
    if kind in RESTORABLE and damage != "bit in the file header":
        return {"corrupt", "missing"}
    return {"corrupt"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", [
    "message_log", "schedule_log minute", "schedule_log day", "dispatch_log minute", "dispatch_log day", "names.log",
    "broker store", "broker progress",
])  # fmt: skip
def test_check_names_the_damage_and_repair_ends_it(stopped: Made, tmp_path: Path, kind: str, damage: str) -> None:
    made = copy(stopped, tmp_path / "data")
    path = files(made.path)[kind]
    DAMAGES[damage](path)
    done = in_process("check", str(made.path), "--json")
    kinds = set(done.kinds())
    assert kinds == expected(kind, damage), done.last["findings"]
    assert done.code == (0 if kinds == {"torn"} else 1)
    about = [finding for finding in done.last["findings"] if finding["file"].endswith(path.name)]
    assert about or damage == "missing"
    if kinds & {"corrupt", "torn"}:
        assert done.last["accepted"] == stopped.accepted
    _repaired(made, kind, damage)


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


@pytest.mark.parametrize("name", ["checkpoint", "identity", "sequences", "days"])
@pytest.mark.parametrize("damage", ["flipped bit", "cut off", "missing"])
def test_a_lost_table_is_named_and_rebuilt(stopped: Made, tmp_path: Path, name: str, damage: str) -> None:
    made = copy(stopped, tmp_path / "data")
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
    assert (after.last["accepted"], after.last["pending"]) == (stopped.accepted, done.last["pending"])


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
def test_swapped_files_are_misplaced_and_get_their_names_back(stopped: Made, tmp_path: Path, log: str) -> None:
    made = copy(stopped, tmp_path / "data")
    near = sorted((made.path / log).iterdir())[0]
    first, second = sorted(near.glob("*.log"))[:2]
    damaging.swap(first, second)
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.kinds()) == (1, ["misplaced"])
    assert {finding["file"] for finding in done.last["findings"]} == {str(first), str(second)}
    assert in_process("repair", str(made.path), "--yes").code == 0
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.last["findings"]) == (0, [])


def test_every_bit_of_a_file_header_is_guarded(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    path = files(made.path)["schedule_log minute"]
    whole = path.read_bytes()
    for place in range(64):
        damaging.flip(path, place)
        assert in_process("check", str(made.path), "--json").code == 1, f"byte {place}"
        path.write_bytes(whole)


def test_the_table_can_fail(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    assert in_process("check", str(made.path), "--json").last["findings"] == []
