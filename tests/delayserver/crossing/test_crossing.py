"""A single server's directory becomes the first one of a shard, and a member's a single server's. Nothing is lost, and what
was delivered does not come again."""

from __future__ import annotations

import pytest

from delayserver.cli.cluster.heal import _heal as heal_member
from delayserver.config.cluster_file import ClusterFile
from delayserver.crossing.founding_on_directories import found_on
from delayserver.crossing.leaving import leave, leave_restored
from delayserver.members.founding import Engines
from delayserver.members.member_map import FORMAT, Announced, Founded
from delayserver.protocol.receipts import parse_receipt
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogTrimmed, LogUnavailable, LogUnusable
from store.errors import CorruptionError, FormatError
from store.shared.envelope import ShardIdentity
from store.tables.member_file import read_owner
from store.tables.stored_tokens import FILE_NAME as TOKENS
from store.tables.stored_tokens import StoredSecret, StoredToken, write_tokens
from tests.delayserver.backup.builders import repository
from tests.delayserver.backup.test_restoring import backed_up, is_clean, restored
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.cluster.test_broker import ack, publish
from tests.delayserver.cluster.test_healing import cause
from tests.delayserver.follow.members import ListLog, Records
from tests.fakes.host import DATA_DIR, Boot, Client, Host, small_settings, texts
from tests.fakes.workers import FakeWorkers

LATER_MS = 120_000


class EmptyLogs:
    """The logs of a cluster, or its map. They give `answers` answers, and then none."""

    topic = "t"

    def __init__(self) -> None:
        self.records = Records()
        self.answers = 1000

    def open(self, shard: int) -> ListLog:
        self.answers -= 1
        if self.answers < 0:
            raise LogUnavailable("no answer")
        return ListLog(self.records)

    async def make_topic(self, shards: int) -> None:
        raise AssertionError("it is there")

    async def grow_topic(self, shards: int) -> None:
        raise AssertionError("it is there")


def runtime_of(host: Host) -> Runtime:
    return Runtime.on(clock=host.clock, workers=FakeWorkers())


async def founded(boot: Boot, host: Host, names: str = "abc") -> Cluster:
    """A cluster of the directory of a host whose server has stopped. The first member has it."""
    logs = EmptyLogs()
    done = await found_on(Engines(logs, EmptyLogs()), host.disk, [DATA_DIR], runtime_of(host))
    identity = ShardIdentity(int(done.founded.cluster_id, 16), int(done.founded.shards[0], 16))
    cluster = Cluster(boot, names, host.settings, records=logs.records, identity=identity)
    for each in cluster.hosts.values():
        each.clock = host.clock
    cluster.hosts[names[0]].disk = host.disk
    return cluster


async def with_messages(host: Host, client: Client) -> list[str]:
    """Two acked, two waiting for consumers, two for their time. Returns the receipts of the last ones."""
    await publish(client, "one", "two", "three")
    await client.put("four", host.now_ms + 500)
    await host.sleep_ms(1_000)
    pulled = await client.pull(max_messages=2)
    assert await ack(client, pulled) == 2
    return [(await client.put(body, host.now_ms + LATER_MS))["receipt"] for body in ("five", "six")]


async def all_once(host: Host, client: Client) -> None:
    """What was not acked comes to consumers, each message once."""
    await host.sleep_ms(LATER_MS + 2_000)
    pulled = await client.pull(max_messages=100)
    assert sorted(texts(pulled)) == ["five", "four", "new", "six", "three"]
    assert await ack(client, pulled) == 5
    await host.sleep_ms(60_000)
    assert await client.pull() == []


@pytest.mark.parametrize("killed", [False, True])
async def test_a_single_server_becomes_a_cluster(boot: Boot, killed: bool) -> None:
    single = boot(small_settings(), name="single")
    client = await single.start_connected()
    receipts = await with_messages(single, client)
    await (single.kill() if killed else single.stop())
    cluster, place = await founded(boot, single), repository()
    first, second, third = cluster.hosts.values()
    client = await first.start_connected()
    assert await client.lookup(*receipts) == ["pending", "pending"]
    new = await client.put("new", first.now_ms + 1_000)
    assert parse_receipt(new["receipt"]).sequence > max(parse_receipt(each).sequence for each in receipts)
    await backed_up(first, client, place)
    second.disk, done = restored(place, first.clock.now_us())
    assert done.followed is not None
    second.begin()
    await first.sleep_ms(1_000)
    await first.kill()
    await second.wait_up()
    await all_once(second, await second.client())
    third.begin()
    await third.wait_down()
    assert isinstance(cause(third), LogTrimmed), "it lacks what the shard began with"
    await second.stop()
    assert is_clean(second.disk)


async def test_a_member_becomes_a_single_server_and_that_a_cluster_again(boot: Boot) -> None:
    cluster = Cluster(boot, "ab", small_settings())
    first, second = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    receipts = await with_messages(first, client)
    await first.sleep_ms(1_000)
    await second.kill()
    await first.kill()
    following = await leave(second.disk, DATA_DIR, runtime_of(second))
    assert is_clean(second.disk)
    with pytest.raises(FormatError, match="no member's"):
        await leave(second.disk, DATA_DIR, runtime_of(second))
    single = boot(small_settings(), name="single", disk=second.disk, clock=first.clock)
    client = await single.start_connected()
    assert await client.lookup(*receipts) == ["pending", "pending"]
    new = await client.put("new", single.now_ms + 1_000)
    assert parse_receipt(new["receipt"]).sequence >= following > max(parse_receipt(each).sequence for each in receipts)
    await single.kill()
    single.disk.remove(f"{DATA_DIR}/checkpoint")  # all of message_log is replayed: also what the member had followed
    client = await single.start_connected()
    await single.sleep_ms(2_000)
    await single.stop()
    again = await founded(boot, single)
    client = await again.hosts["a"].start_connected()
    await all_once(again.hosts["a"], client)


async def test_a_cluster_of_the_past_delivers_what_waited_then(boot: Boot) -> None:
    cluster, place = Cluster(boot, "ab", small_settings()), repository()
    first, second = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    receipts = await with_messages(first, client)
    await first.sleep_ms(1_000)
    await backed_up(first, client, place)
    await client.put("new", first.now_ms + LATER_MS)
    await first.sleep_ms(1_000)
    moment = first.now_ms
    await first.sleep_ms(1_000)
    assert await client.cancel(receipts[0]) == ["cancelled"]
    await backed_up(first, client, place)
    await first.sleep_ms(2 * LATER_MS)
    for host in (first, second):
        await host.kill()
    disk, done = restored(place, first.clock.now_us(), moment)
    assert done.of_member and done.followed is None
    await leave_restored(disk, DATA_DIR, runtime_of(first))
    assert is_clean(disk)
    first.disk = disk
    past = await founded(boot, first)
    host = past.hosts["a"]
    client = await host.start_connected()
    later = await client.put("later", host.now_ms + 9 * LATER_MS)
    assert parse_receipt(later["receipt"]).sequence >= done.next_sequence
    await all_once(host, client)


async def test_a_founding_that_was_interrupted_goes_on(boot: Boot) -> None:
    single = boot(small_settings(), name="single")
    client = await single.start_connected()
    receipts = await with_messages(single, client)
    await single.stop()
    tokens = (StoredToken("0" * 12, "shop", ("send",), ("*",), (StoredSecret(b"a" * 32),), 1),)
    server_id = single.server.parts.opened.directory.server_id
    write_tokens(single.disk, DATA_DIR, server_id, tokens)
    logs, map_ = EmptyLogs(), EmptyLogs()
    engines, runtime = Engines(logs, map_), runtime_of(single)
    for answers in range(20):
        logs.answers = answers
        try:
            done = await found_on(engines, single.disk, [DATA_DIR], runtime)
        except LogUnavailable:
            assert (await engines.read_map()).founded is None, "the map comes last"
        else:
            break
    else:
        raise AssertionError("it never ended")
    assert answers > 3
    assert (await engines.read_map()).token_table() == tokens
    single.disk.remove(f"{DATA_DIR}/{TOKENS}")  # the client below has none
    again = await found_on(engines, single.disk, [DATA_DIR], runtime)
    assert (again.founded, again.made) == (done.founded, ())
    assert (logs.records.first, len(logs.records.data)) == (1, 1)
    stranger = boot(small_settings(), name="stranger")
    await stranger.start()
    await stranger.stop()
    with pytest.raises(LogUnusable, match="has a cluster already"):
        await found_on(engines, stranger.disk, [DATA_DIR], runtime)
    identity = ShardIdentity(int(done.founded.cluster_id, 16), int(done.founded.shards[0], 16))
    host = Cluster(boot, "a", single.settings, records=logs.records, identity=identity).hosts["a"]
    host.disk, host.clock = single.disk, single.clock
    assert await (await host.start_connected()).lookup(*receipts) == ["pending", "pending"]


def damage(host: Host, folder: str) -> None:
    """A bit of a file, or the loss of all files of a folder."""
    if folder == "checkpoint":
        host.disk.flip_bit(f"{DATA_DIR}/checkpoint", 80)
    else:
        for path in host.disk.files(f"{DATA_DIR}/{folder}/"):
            host.disk.remove(path)


@pytest.mark.parametrize("damaged", ["checkpoint", "schedule_log"])
async def test_a_damaged_directory_founds_no_cluster_and_no_directory_is_given(boot: Boot, damaged: str) -> None:
    single = boot(small_settings(), name="single")
    await with_messages(single, await single.start_connected())
    await single.stop()
    settings = small_settings(storage={"data_dir": "/whole"})
    whole = boot(settings, name="whole", disk=single.disk, clock=single.clock, seed=2)
    await whole.start()
    await whole.stop()
    damage(single, damaged)
    logs = EmptyLogs()
    for _ in range(2):
        with pytest.raises(CorruptionError):
            await found_on(Engines(logs, EmptyLogs()), single.disk, ["/whole", DATA_DIR], runtime_of(single))
    assert read_owner(single.disk, "/whole") is None and read_owner(single.disk, DATA_DIR) is None
    assert not logs.records.data
    client = await single.start_connected()
    assert single.server.damage.corruption
    if damaged == "checkpoint":  # which was made anew
        await client.put("new", single.now_ms + LATER_MS)
        await all_once(single, client)
        await single.stop()
        await founded(boot, single)


async def test_a_member_s_directory_founds_no_cluster_before_it_left(boot: Boot) -> None:
    (host,) = Cluster(boot, "a", small_settings()).hosts.values()
    await host.start_connected()
    await host.kill()
    with pytest.raises(FormatError, match="delayserver cluster leave"):
        await founded(boot, host)


async def test_the_log_of_a_shard_that_began_with_a_directory_is_healed(boot: Boot) -> None:
    single = boot(small_settings(), name="single")
    client = await single.start_connected()
    await with_messages(single, client)
    await single.kill()
    cluster = await founded(boot, single, "a")
    (host,) = cluster.hosts.values()
    client = await host.start_connected()
    await client.put("new", host.now_ms + 1_000)
    await host.sleep_ms(2_000)
    await host.kill()
    del cluster.engine.records.data[1:]
    map_ = EmptyLogs()
    logs = EmptyLogs()
    logs.records = cluster.engine.records
    engines, identity = Engines(logs, map_), cluster.identity
    await engines.note(Founded(FORMAT, f"{identity.cluster_id:012x}", (f"{identity.server_id:012x}",)))
    await engines.note(Announced("a", 0, "h:1", "", "1", ""))
    file = ClusterFile("k:1", "a")
    cluster.healed = await heal_member(file, engines, host.disk, DATA_DIR, identity.server_id)
    await all_once(host, await host.start_connected())
