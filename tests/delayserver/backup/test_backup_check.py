"""A check of backups reads all their bytes, and checks the directory that the last one gives."""

from __future__ import annotations

from delayserver.backup.backup_check import CheckedBackup, check_backup
from delayserver.backup.objects import Folder
from delayserver.backup.repository import Repository
from tests.delayserver.backup.builders import PLACE, silent
from tests.delayserver.backup.test_restoring import HOUR_MS, backed_up
from tests.fakes.disk import FakeDisk
from tests.fakes.host import DATA_DIR, Boot


async def two_backups(boot: Boot) -> tuple[FakeDisk, Repository, int]:
    host, client = await boot.connected()
    target = FakeDisk()
    place = Repository(Folder(target, PLACE))
    for _ in range(2):
        for number in range(10):
            await client.put(f"body {number}", host.now_ms + HOUR_MS)
        await backed_up(host, client, place)
    return target, place, host.clock.now_us()


def checked(place: Repository, now_us: int) -> CheckedBackup:
    return check_backup(place, FakeDisk(), DATA_DIR, now_us, silent)


async def test_whole_backups_are_clean(boot: Boot) -> None:
    _, place, now_us = await two_backups(boot)
    found = checked(place, now_us)
    assert found.clean and (found.accepted, found.pending, len(found.names)) == (20, 20, 2)


async def test_damage_of_an_older_backup_is_told_although_the_last_one_is_whole(boot: Boot) -> None:
    target, place, now_us = await two_backups(boot)
    manifest = target.files(f"{PLACE}/snapshots/")[0]
    target.flip_bit(manifest, 200)
    found = checked(place, now_us)
    assert not found.clean and found.findings == ()
    assert [manifest in str(damage) for damage in found.damages] == [True]


async def test_damage_of_the_last_backup_is_told_by_file_and_offset(boot: Boot) -> None:
    target, place, now_us = await two_backups(boot)
    pack = target.files(f"{PLACE}/packs/")[-1]
    target.flip_bit(pack, 10)
    found = checked(place, now_us)
    assert not found.clean and found.findings is None
    assert f"{pack}: corrupt at offset 0: checksum" in str(found.damages[0])
    target.flip_bit(pack, 10)
    target.flip_bit(target.files(f"{PLACE}/snapshots/")[-1], 200)
    assert not checked(place, now_us).clean


async def test_a_backup_of_a_damaged_directory_is_not_clean(boot: Boot) -> None:
    host, client = await boot.connected()
    place = Repository(Folder(FakeDisk(), PLACE))
    for number in range(10):
        await client.put(f"body {number}", host.now_ms + HOUR_MS)
    await host.stop()
    client = await host.start_connected()
    host.disk.flip_bit(f"{DATA_DIR}/message_log/{0:020d}.log", 300)
    await backed_up(host, client, place)
    found = checked(place, host.clock.now_us())
    assert not found.clean and not found.damages and found.findings
