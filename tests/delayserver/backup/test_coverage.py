"""The shared log loses only what two checked backups and all live members have."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from delayserver.backup.coverage import Coverage, find_coverage
from delayserver.backup.repository import BackupError, Repository
from store.errors import CorruptionError
from store.snapshots.manifest import Manifest
from store.snapshots.verified_backup import VerifiedBackup
from tests.delayserver.backup.builders import PLACE, repository
from tests.fakes.disk import FakeDisk

SERVER = 5


def with_backups(positions: Mapping[str, int | None], disk: FakeDisk | None = None) -> Repository:
    """Backups without files, by name. Those with a position are checked."""
    place = repository(disk)
    for name, position in positions.items():
        place.add(name, Manifest(SERVER, "server", 1, 0, "test", ()))
        if position is not None:
            place.verify(name, VerifiedBackup(SERVER, position, 1, 2))
    return place


def covered(positions: Mapping[str, int | None], members: Mapping[str, int], first: int = 0) -> Coverage:
    return find_coverage(with_backups(positions), SERVER, first, 1000, members)


def test_the_older_of_the_last_two_checked_backups_counts() -> None:
    found = covered({"1": 900, "2": 100, "3": 300, "4": None}, {"a": 1000, "b": 990})
    assert (found.covered, found.trims_to, found.refusal) == (100, 100, "")
    assert list(found.backups) == ["2", "3"] and "2 and 3 cover those below 100" in found.text


def test_a_live_member_loses_nothing_that_it_has_not_written_down() -> None:
    found = covered({"1": 500, "2": 600}, {"a": 900, "b": 420})
    assert (found.covered, found.trims_to) == (500, 420)
    assert "member b needs it from 420 on" in found.text


def test_what_is_gone_already_stays_gone() -> None:
    found = covered({"1": 500, "2": 600}, {"a": 900}, first=700)
    assert found.covered == found.trims_to == 700


@pytest.mark.parametrize("positions", [{}, {"1": 500}, {"1": None, "2": 500, "3": None}])
def test_fewer_than_two_checked_backups_cover_nothing(positions: dict[str, int | None]) -> None:
    found = covered(positions, {"a": 900})
    assert found.trims_to == found.covered == 0
    assert "no backup covers the log" in found.text and f"backup check {PLACE}" in found.refusal


def test_a_backup_behind_the_end_is_of_another_log() -> None:
    found = covered({"1": 500, "2": 1001}, {"a": 900})
    assert found.trims_to == 0 and "backup 2 goes on from position 1001" in found.refusal


def test_without_members_nothing_is_trimmed() -> None:
    found = covered({"1": 500, "2": 600}, {})
    assert (found.covered, found.trims_to) == (500, 0)
    assert "no member has said" in found.refusal and "cover those below 500" in found.text


def test_backups_of_another_shard_are_refused() -> None:
    with pytest.raises(BackupError, match="is of server 000000000005, and the shard is 000000000006"):
        find_coverage(with_backups({"1": 5, "2": 6}), SERVER + 1, 0, 10, {"a": 9})


def test_damage_of_a_mark_is_found_and_a_removed_backup_leaves_none() -> None:
    disk = FakeDisk()
    place = with_backups({"1": 5, "2": 6}, disk)
    path = f"{PLACE}/snapshots/2.verified"
    disk.flip_bit(path, disk.size(path) // 2)
    with pytest.raises(CorruptionError, match=r"2\.verified"):
        place.verified()
    assert place.prune(1) == ["1"]
    assert [file.rpartition("/")[2] for file in disk.files(f"{PLACE}/snapshots/")] == ["2.manifest", "2.verified"]
