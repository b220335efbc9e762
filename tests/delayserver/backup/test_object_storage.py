"""Backups in an object storage are those of a folder. It has no locks, so a backup looks whether its packs are there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.environ.get("CI", "").lower() not in ("1", "true", "yes"):
    pytest.importorskip("fsspec", reason="install the extra backup")

from fsspec.implementations.memory import MemoryFileSystem as Bucket

from delayserver.backup.backup_check import check_backup
from delayserver.backup.copying import back_up
from delayserver.backup.object_storage import ObjectStorage
from delayserver.backup.repository import BackupError, Repository
from store.errors import CorruptionError, StoreError
from store.snapshots.taking import list_still
from tests.delayserver.backup.builders import NOW_US, ROOT, SECOND_US, backed_up, contents, silent, stored, write
from tests.delayserver.backup.test_copying import directory, random_bytes
from tests.delayserver.backup.test_restoring import HOUR_MS
from tests.delayserver.backup.test_restoring import backed_up as of_running
from tests.delayserver.cli.conftest import Done, run, serve
from tests.fakes.disk import FakeDisk
from tests.fakes.host import DATA_DIR, Boot


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"memory://bucket/{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/backups"
    Bucket.store.clear()


async def test_a_server_is_backed_up_checked_and_restored_from_there(boot: Boot, url: str) -> None:
    host, client = await boot.connected()
    place = Repository(ObjectStorage(url))
    for number in range(10):
        await client.put(f"body {number}", host.now_ms + HOUR_MS)
    await of_running(host, client, place)
    await client.put("more", host.now_ms + HOUR_MS)
    second = await of_running(host, client, place)
    assert second.copied_bytes < second.size_bytes
    found = check_backup(Repository(ObjectStorage(url)), FakeDisk(), DATA_DIR, host.clock.now_us(), silent)
    assert found.clean and (found.accepted, len(found.names)) == (11, 2)


def test_old_backups_are_pruned(url: str) -> None:
    disk, place = directory(), Repository(ObjectStorage(url))
    for number in range(3):
        write(disk, {f"{number}.log": random_bytes(5_000, number)})
        backed_up(place, disk, NOW_US + number * SECOND_US)
    assert len(place.prune(1)) == 2
    assert stored(place, place.newest()[1]) == contents(disk)


def test_a_backup_whose_packs_another_one_removes_is_not_completed(url: str) -> None:
    disk, place, other = directory(), Repository(ObjectStorage(url)), Repository(ObjectStorage(url))
    backed_up(place, disk)
    write(disk, {"new.log": random_bytes(5_000)})
    listing = list_still(disk, ROOT, NOW_US + SECOND_US)

    def prune_at_the_end(done: int, total: int) -> None:
        if done == total:
            for pack in [pack for pack in other.pack_sizes() if pack not in other.newest()[1].packs()]:
                ObjectStorage(url).remove(f"packs/{pack}")

    class PrunedBeside(Repository):
        def add(self, name: str, manifest: object) -> None:
            prune_at_the_end(1, 1)
            super().add(name, manifest)  # type: ignore[arg-type]

    with pytest.raises(BackupError, match="has gone"):
        back_up(PrunedBeside(ObjectStorage(url)), disk, ROOT, listing, "test", silent)
    assert len(other.names()) == 1


def test_what_is_missing_is_told_by_its_path(url: str) -> None:
    storage = ObjectStorage(url)
    assert storage.sizes("packs") == {}
    with pytest.raises(CorruptionError, match=r"packs/none: .*missing"):
        storage.read("packs/none", 0, 5)
    storage.remove("packs/none")


def test_a_refusal_of_the_storage_is_an_error_of_the_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, place = directory(), Repository(ObjectStorage(url))

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError("access denied")

    monkeypatch.setattr("fsspec.spec.AbstractFileSystem.open", refuse)
    with pytest.raises(StoreError, match="access denied"):
        backed_up(place, disk)
    monkeypatch.undo()
    assert place.names() == []


def test_the_commands_take_a_url(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/backups"
    assert serve(data).stop().code == 0

    def done(*arguments: str) -> Done:
        result = run(*arguments)
        assert result.code == 0, result.err
        return result

    done("backup", "--data-dir", str(data), "--to", url)
    assert len(done("backup", "list", url, "--json").rows) == 1
    done("backup", "check", url)
    done("restore", "--from", url, "--data-dir", str(tmp_path / "new"))
    done("backup", "prune", url, "--keep", "1")
    unknown = run("backup", "list", "nothing://x")
    assert unknown.code == 2 and "nothing" in unknown.err
    bucket = run("backup", "list", "s3://bucket/x")
    assert bucket.code == 1 and "[backup]" in bucket.err
