"""A directory belongs to one member of one shard of one cluster, or to a server of its own: nothing else starts on it."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.config.cluster_file import ClusterFile
from delayserver.members.founding import Engines
from delayserver.members.member_map import FORMAT, Announced, Founded
from delayserver.server.joining import join
from delayserver.startup.directory_opening import OpeningMember, require_openable
from store.errors import DiskFullError, FormatError, LockedError
from store.shared.envelope import ShardIdentity
from store.tables.member_file import FILE_NAME, MemberOf, read_owner, write_owner
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.cluster.test_healing import Logs
from tests.delayserver.follow.members import IDENTITY, Records
from tests.fakes.disk import FakeDisk
from tests.fakes.host import DATA_DIR, Boot, Host, faked_settings

HOUR_MS = 3_600_000
FILE = f"{DATA_DIR}/{FILE_NAME}"


async def refused(host: Host, disk: FakeDisk) -> str:
    """What a server says that does not start on this disk. The file stays as it was."""
    host.disk = disk
    before = disk.content(FILE) if disk.exists(FILE) else b""
    host.begin()
    await host.wait_down()
    found = host.died_of
    while isinstance(found, BaseExceptionGroup):
        (found,) = found.exceptions
    assert isinstance(found, FormatError), found
    assert (disk.content(FILE) if disk.exists(FILE) else b"") == before
    return str(found)


async def left_by_member(boot: Boot) -> FakeDisk:
    """The disk of member a, which has a message."""
    (host,) = Cluster(boot, "a").hosts.values()
    client = await host.start_connected()
    await client.put("one", host.now_ms + HOUR_MS)
    await host.kill()
    return host.disk


async def test_a_member_names_itself_in_its_directory(boot: Boot) -> None:
    disk = await left_by_member(boot)
    assert read_owner(disk, DATA_DIR, IDENTITY.server_id) == MemberOf(IDENTITY.cluster_id, 0, "a")


@pytest.mark.parametrize(
    ("identity", "name"),
    [(ShardIdentity(IDENTITY.cluster_id + 1, IDENTITY.server_id), "a"), (IDENTITY, "b")],
    ids=["another cluster with the same server id", "another member"],
)
async def test_a_directory_of_a_member_is_refused_by_another(boot: Boot, identity: ShardIdentity, name: str) -> None:
    disk = await left_by_member(boot)
    host = Cluster(boot, name, identity=identity).hosts[name]
    said = await refused(host, disk)
    assert "the directory of member a of shard 0 of cluster 00000000004d, and this is member" in said


@pytest.mark.parametrize("runs", [True, False], ids=["a runs on it", "a left it"])
async def test_a_start_that_its_directory_refuses_takes_the_place_of_no_member(boot: Boot, *, runs: bool) -> None:
    """The map would name an address where nobody is, for a member that runs elsewhere."""
    logs = Logs(Records())
    engines = Engines(logs, logs)
    await engines.note(Founded(FORMAT, f"{IDENTITY.cluster_id:012x}", (f"{IDENTITY.server_id:012x}",)))
    (host,) = Cluster(boot, "a").hosts.values()
    await host.start_connected()
    if not runs:
        await host.kill()
    disk, name = host.disk, "a" if runs else "b"

    def look(member: OpeningMember) -> None:
        require_openable(disk, DATA_DIR, member, "the second", "server")

    for announced in ("a", "b"):
        await engines.note(Announced(announced, 0, "h:1", "", "1", ""))
    with pytest.raises(
        LockedError if runs else FormatError, match="in use by" if runs else "the directory of member a"
    ):
        await join(ClusterFile("k:1", name), engines, "h:2", "", 60_000, Random(1), look)
    assert {each.address for each in (await engines.read_map()).members.values()} == {"h:1"}
    if not runs:
        assert (await join(ClusterFile("k:1", "a"), engines, "h:2", "", 60_000, Random(1), look)).own.address == "h:2"


@pytest.mark.parametrize("made", [True, False], ids=["empty", "not there"])
async def test_a_look_before_the_start_makes_no_directory(*, made: bool) -> None:
    disk = FakeDisk()
    if made:
        disk.make_directory(DATA_DIR)
    owner = MemberOf(IDENTITY.cluster_id, 0, "a")
    require_openable(disk, DATA_DIR, OpeningMember(IDENTITY.server_id, owner), "it", "server")
    assert (disk.exists(DATA_DIR), set(disk.listdir(DATA_DIR)) - {"lock"}) == (made, set())


async def test_a_look_before_the_start_leaves_a_full_disk_to_the_start(boot: Boot) -> None:
    disk = await left_by_member(boot)
    disk.remove(f"{DATA_DIR}/lock")
    disk.capacity_bytes = 1
    with pytest.raises(DiskFullError):
        disk.lock(f"{DATA_DIR}/lock", b"another")
    owner = MemberOf(IDENTITY.cluster_id, 0, "a")
    require_openable(disk, DATA_DIR, OpeningMember(IDENTITY.server_id, owner), "it", "server")


async def test_a_single_server_does_not_start_in_the_directory_of_a_member(boot: Boot) -> None:
    disk = await left_by_member(boot)
    said = await refused(boot(faked_settings(), name="alone"), disk)
    assert "the directory of member a of shard 0 of cluster 00000000004d. Start it with the file of its cluster" in said


async def test_a_single_server_does_not_take_a_member_s_directory_that_a_crash_left_half_made(boot: Boot) -> None:
    disk = FakeDisk()
    disk.make_directory(DATA_DIR)
    write_owner(disk, DATA_DIR, IDENTITY.server_id, MemberOf(IDENTITY.cluster_id, 0, "a"))
    said = await refused(boot(faked_settings(), name="alone"), disk)
    assert "the directory of member a" in said


async def test_a_member_does_not_start_in_the_directory_of_a_single_server(boot: Boot) -> None:
    single = boot(faked_settings(), name="alone")
    client = await single.start_connected()
    await client.put("one", single.now_ms + HOUR_MS)
    server_id = single.server.parts.opened.directory.server_id
    await single.kill()
    (stranger,) = Cluster(boot, "a").hosts.values()
    assert f"belongs to server {server_id:012x}" in await refused(stranger, single.disk)
    same = Cluster(boot, "a", identity=ShardIdentity(77, server_id)).hosts["a"]
    assert "of a server that was no member of a cluster. To make a cluster of it" in await refused(same, single.disk)


async def test_a_directory_of_before_this_file_gets_it(boot: Boot) -> None:
    disk = await left_by_member(boot)
    disk.remove(FILE)
    host = Cluster(boot, "a").hosts["a"]
    host.disk = disk
    host.begin()
    await host.until(lambda: disk.exists(FILE))
    assert read_owner(disk, DATA_DIR) == MemberOf(IDENTITY.cluster_id, 0, "a")
    await host.kill()
