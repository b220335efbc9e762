"""A restored directory serves what the backup has, and gives out nothing that the old server gave out since."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from delayserver.backup.copying import BackedUp, back_up
from delayserver.backup.objects import Folder
from delayserver.backup.point_in_time import plan_restore
from delayserver.backup.repository import BackupError, Repository
from delayserver.backup.restoring import CLOCK_BEHIND_US, Restored, restore
from delayserver.protocol.receipts import parse_receipt
from delayserver.recover.checking.check import check_directory
from store.errors import CorruptionError, DiskFullError, FormatError
from store.snapshots.snapshot_listing import read_listing
from store.snapshots.taking import FILES
from store.tables.identity import read_identity
from tests.delayserver.backup.builders import PLACE, SECOND_US, repository, silent
from tests.fakes.disk import FakeDisk
from tests.fakes.host import DATA_DIR, Boot, Client, Host, texts

HOUR_MS = 3_600_000


async def backed_up(host: Host, client: Client, place: Repository) -> BackedUp:
    """As the command does it, beside the running server."""
    taken = await client.request("snapshot", {"action": "take"})
    listing = read_listing(host.disk, taken["path"])
    place.hold()
    try:
        return back_up(place, host.disk, f"{taken['path']}/{FILES}", listing, "test", silent)
    finally:
        place.close()
        await client.request("snapshot", {"action": "drop", "name": taken["name"]})


def restored(
    place: Repository, now_us: int, to_ms: int | None = None, disk: FakeDisk | None = None, *, alone: bool = False
) -> tuple[FakeDisk, Restored]:
    disk = disk or FakeDisk()
    return disk, restore(place, plan_restore(place, to_ms, alone=alone), disk, DATA_DIR, now_us, silent)


def is_clean(disk: FakeDisk) -> bool:
    taken, checked = check_directory(disk, DATA_DIR)
    taken.close()
    return checked.findings.clean


async def reborn(boot: Boot, old: Host, disk: FakeDisk) -> tuple[Host, Client]:
    """A server on the restored directory, after the old one's time."""
    await old.kill()
    host = boot(old.settings, disk=disk, clock=old.clock, name="restored")
    return host, await host.start_connected()


def sequences(sent: list[dict[str, Any]]) -> set[int]:
    return {parse_receipt(row["receipt"]).sequence for row in sent}


async def test_all_that_was_acknowledged_before_the_backup_is_served(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    sent = [await client.put(f"b{number}", host.now_ms + HOUR_MS + number) for number in range(50)]
    gone = await client.put("gone", host.now_ms + HOUR_MS)
    assert await client.cancel(gone["receipt"]) == ["cancelled"]
    await backed_up(host, client, place)
    later = await client.put("later", host.now_ms + HOUR_MS)
    disk, done = restored(place, host.clock.now_us())
    assert done.server_id == read_identity(disk, DATA_DIR) and is_clean(disk)
    new, other = await reborn(boot, host, disk)
    assert await other.lookup(*[row["receipt"] for row in sent]) == ["pending"] * 50
    assert await other.lookup(gone["receipt"], later["receipt"]) == ["cancelled", "unknown"]
    assert await other.cancel(sent[0]["receipt"]) == ["cancelled"]
    await new.sleep_ms(HOUR_MS + 1_000)
    pulled = await other.pull(max_messages=100)
    assert sorted(texts(pulled)) == sorted(f"b{number}" for number in range(1, 50))
    await new.stop()
    assert is_clean(disk)


async def test_a_sequence_is_never_used_twice_also_after_two_restores(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    await backed_up(host, client, place)
    await host.restart_killed()  # goes on behind what it has reserved, as a restored one would
    client = await host.client()
    used = sequences([await client.put("old", host.now_ms + HOUR_MS) for _ in range(20)])
    for _ in range(2):
        await host.sleep_ms(5_000)
        disk, done = restored(place, host.clock.now_us())
        host, client = await reborn(boot, host, disk)
        new = sequences([await client.put("new", host.now_ms + HOUR_MS) for _ in range(20)])
        assert not new & used and min(new) == done.next_sequence > max(used)
        used |= new


async def test_what_was_delivered_since_the_backup_comes_again_and_old_acks_are_refused(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    await client.put("again", host.now_ms + 2_000)
    await backed_up(host, client, place)
    await host.restart_killed()  # begins the epoch that a restored one would begin
    client = await host.client()
    await host.sleep_ms(3_000)
    (old,) = await client.pull()
    disk, _ = restored(place, host.clock.now_us())
    new, other = await reborn(boot, host, disk)
    await new.sleep_ms(1_000)
    (delivered,) = await other.pull()
    assert delivered["body"] == b"again" and delivered["delivery"] != old["delivery"]
    asked = {"subject": "s", "group": "g", "count": 1}
    assert (await other.request("ack", asked | {"deliveries": old["delivery"]}))["unknown"] == 1
    assert (await other.request("ack", asked | {"deliveries": delivered["delivery"]}))["acked"] == 1


async def test_a_message_that_may_have_been_delivered_since_cannot_be_cancelled(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    sent = await client.put("due meanwhile", host.now_ms + 2_000)
    await host.stop()
    client = await host.start_connected()
    await backed_up(host, client, place)
    await host.sleep_ms(3_000)
    disk, _ = restored(place, host.clock.now_us())
    _, other = await reborn(boot, host, disk)
    assert await other.cancel(sent["receipt"]) in (["too_late"], ["delivered"])


async def test_a_full_disk_or_a_crash_leaves_a_directory_that_no_server_opens(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    await client.put("x" * 50_000, host.now_ms + HOUR_MS)
    await backed_up(host, client, place)
    disk = FakeDisk(capacity_bytes=20_000)
    with pytest.raises(DiskFullError):
        restored(place, host.clock.now_us(), disk=disk)
    with pytest.raises(FormatError, match="not a data directory"):
        read_identity(disk, DATA_DIR)
    disk.capacity_bytes = None
    with pytest.raises(BackupError, match="earlier restore was interrupted"):
        restored(place, host.clock.now_us(), disk=disk)
    with pytest.raises(BackupError, match="not empty"):
        restored(place, host.clock.now_us(), disk=host.disk)
    done = FakeDisk()
    restored(place, host.clock.now_us(), disk=done)
    done.crash(Random(1))
    assert is_clean(done), "all of it was durable"


async def test_damage_of_a_backup_ends_the_restore_by_its_file_and_offset(boot: Boot) -> None:
    host, client = await boot.connected()
    target = FakeDisk()
    target.make_directory(PLACE)
    place = Repository(Folder(target, PLACE))
    await client.put("body", host.now_ms + HOUR_MS)
    await backed_up(host, client, place)
    (pack,) = target.files(f"{PLACE}/packs/")
    target.flip_bit(pack, target.size(pack) // 2)
    disk = FakeDisk()
    with pytest.raises(CorruptionError, match=r"packs/.*checksum"):
        restored(place, host.clock.now_us(), disk=disk)
    assert not disk.exists(f"{DATA_DIR}/identity")


async def test_a_clock_far_behind_the_backup_is_refused(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    await backed_up(host, client, place)
    with pytest.raises(BackupError, match="clock"):
        restored(place, host.clock.now_us() - CLOCK_BEHIND_US - 60 * SECOND_US)


def test_an_empty_place_has_nothing_to_restore() -> None:
    with pytest.raises(BackupError, match="no backup here"):
        restored(repository(), SECOND_US)
