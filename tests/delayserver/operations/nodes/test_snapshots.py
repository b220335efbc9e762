"""One snapshot is there at a time, as long as its backup keeps it."""

from __future__ import annotations

from delayserver.protocol.schema.snapshots import KEPT_MS
from store.snapshots.snapshot_listing import read_listing
from tests.fakes.host import DATA_DIR, Boot

SNAPSHOTS = f"{DATA_DIR}/snapshot"
TAKE = {"action": "take"}


async def test_a_snapshot_lists_the_files_with_the_bytes_that_are_in_use(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("x", host.now_ms + 1_000)
    taken = await client.request("snapshot", TAKE)
    listing = read_listing(host.disk, taken["path"])
    sizes = {file.path: file.size for file in listing.files}
    log = host.server.parts.files.log
    segment = f"message_log/{0:020d}.log"
    assert listing.log_end == sizes[segment] == log.end < host.disk.size(f"{DATA_DIR}/{segment}")
    assert {"identity", "sequences", "names.log", "days", "broker/progress.log"} <= sizes.keys()
    assert (listing.role, f"{listing.server_id:012x}") == ("server", (await client.status())["server_id"])


async def test_a_second_one_takes_the_place_of_the_first(boot: Boot) -> None:
    host, client = await boot.connected()
    first = await client.request("snapshot", TAKE)
    second = await client.request("snapshot", TAKE)
    assert host.disk.listdir(SNAPSHOTS) == [second["name"]]
    keep = {"action": "keep", "name": first["name"]}
    assert await client.refused("snapshot", keep) == "invalid_argument"
    drop = {"action": "drop", "name": first["name"]}
    assert await client.request("snapshot", drop) == {"dropped": False}
    assert await client.request("snapshot", drop | {"name": second["name"]}) == {"dropped": True}
    assert not host.disk.exists(SNAPSHOTS)
    assert await client.request("snapshot", drop | {"name": ""}) == {"dropped": False}


async def test_the_figures_have_the_moment_of_the_last_complete_backup(boot: Boot) -> None:
    host, client = await boot.connected()

    async def last() -> int | None:
        found: int | None = (await client.status())["storage"]["last_backup_ms"]
        return found

    for complete in (False, True, False):
        before = await last()
        taken_ms = host.now_ms
        taken = await client.request("snapshot", TAKE)
        await host.sleep_ms(5_000)
        dropped = await client.request("snapshot", {"action": "drop", "name": taken["name"], "complete": complete})
        assert dropped == {"dropped": True}
        assert await last() == (taken_ms if complete else before)
    assert await last() is not None
    await host.restart()
    client = await host.client()
    assert await last() is None


async def test_one_that_nobody_keeps_is_dropped(boot: Boot) -> None:
    host, client = await boot.connected()
    taken = await client.request("snapshot", TAKE)
    for _ in range(3):
        await host.sleep_ms(KEPT_MS - 30_000)
        assert (await client.request("snapshot", {"action": "keep", "name": taken["name"]}))["name"] == taken["name"]
    await host.sleep_ms(KEPT_MS + 30_000)
    assert not host.disk.exists(SNAPSHOTS)
    again = await client.request("snapshot", TAKE)
    await host.sleep_ms(KEPT_MS + 30_000)
    assert not host.disk.exists(SNAPSHOTS)
    assert await client.refused("snapshot", {"action": "keep", "name": again["name"]}) == "invalid_argument"


async def test_a_start_drops_what_a_crash_has_left(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.request("snapshot", TAKE)
    await host.restart_killed()
    await host.until(lambda: not host.disk.exists(SNAPSHOTS))


async def test_a_disk_that_gives_no_second_names_is_told(boot: Boot) -> None:
    host, client = await boot.connected()
    host.disk.refuse = lambda operation, _path: 1 if operation == "link" else 0
    assert await client.refused("snapshot", TAKE) == "storage_failed"
    host.disk.refuse = None
    assert not host.disk.exists(SNAPSHOTS)
    assert (await client.request("snapshot", TAKE))["kept_ms"] == KEPT_MS


async def test_what_a_snapshot_holds_is_free_when_it_is_dropped(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("x", host.now_ms + 1_000)
    taken = await client.request("snapshot", TAKE)
    files = host.disk.files(f"{taken['path']}/")
    assert len(files) > 5
    await client.request("snapshot", {"action": "drop", "name": taken["name"]})
    assert host.disk.files(f"{taken['path']}/") == []
    await host.stop()
    host.check_balance()
