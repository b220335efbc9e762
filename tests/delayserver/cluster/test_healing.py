"""A log that lost acknowledged records is made whole by the member that has most. All go on where they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import click
import pytest
import trio

from delayserver.cli.cluster.heal import _heal as heal_member
from delayserver.config.cluster_file import ClusterFile
from delayserver.members.founding import Engines
from delayserver.members.healing import Healing, HealingRefusedError, look, require_part_of, who_heals
from delayserver.members.member_map import FORMAT, Announced, Founded, Healed, HealingBegun, Stranded, encode_note
from delayserver.runtime.shared_log import LogLost, LogTrimmed, LogUnavailable, LogUnusable
from delayserver.server.joining import join
from delayserver.startup.directory_opening import OpeningMember
from store.logs.log_scan import LogScan
from store.records.batches import FollowedBatch, KeptBatch
from store.records.column_batch import ColumnBatch
from store.records.segment import Appendable, encode_appendable
from store.shared.copied import CopiedPiece, log_records, pieces_in
from store.shared.envelope import EnvelopeKind, LogWriter, unwrap
from store.shared.followed import FollowedTo, followed_to
from store.shared.payload import BarrierNote, decode_note
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.follow.members import IDENTITY, ListLog, Records
from tests.fakes.host import DATA_DIR, Boot, Host

MINUTE_MS = 60_000
FOLDER = f"{DATA_DIR}/message_log"


def pieces(host: Host) -> Iterator[CopiedPiece]:
    paths = [f"{FOLDER}/{name}" for name in sorted(host.disk.listdir(FOLDER)) if name.endswith(".log")]
    return pieces_in(log_records(host.disk, paths, IDENTITY.server_id), whole=True)


async def heal(cluster: Cluster) -> str:
    """As the command does on the machines of all members. Returns who healed."""
    looked = {name: look(Announced(name, 0, "h:1", "", "1", ""), pieces(host)) for name, host in cluster.hosts.items()}
    stranded = [mine for mine, _ in looked.values()]
    healer = who_heals(stranded)
    host = cluster.hosts[healer.name]
    require_part_of(pieces(host), healer, stranded)
    own = Announced(healer.name, 0, "h:1", "", "1", "")
    healing = Healing(lambda: ListLog(cluster.engine.records), IDENTITY, own, LogWriter(0, 1))
    await healing.require_lost(looked[healer.name][1])
    cluster.healed = await healing.write(pieces(host), stranded, 0)
    await healing.remove_before(cluster.healed)
    return healer.name


def contents(host: Host) -> list[bytes]:
    """The records of the shared log that a member has."""
    log = host.server.parts.files.log
    batches = [entry.batch for entry in LogScan(log, log.first, log.end)]
    return [_encoded(batch) for batch in batches if not isinstance(batch, FollowedBatch)]


def _encoded(record: Appendable) -> bytes:
    return b"".join(encode_appendable(record, 0, 0).buffers)


@pytest.mark.parametrize("left", [0, 40, -10])
async def test_what_the_log_lost_is_made_whole_and_nobody_loses_anything(boot: Boot, left: int) -> None:
    cluster = Cluster(boot, "abc")
    a, b, c = cluster.hosts.values()
    client = await cluster.start()
    for number in range(10):
        await client.put(f"{number}", a.now_ms + 5 * MINUTE_MS)
    await a.sleep_ms(2_000)
    await c.kill()
    for number in range(10, 20):
        await client.put(f"{number}", a.now_ms + 5 * MINUTE_MS)
    await a.sleep_ms(2_000)
    await a.kill()
    await b.wait_up()
    other = await b.client()
    for number in range(20, 25):
        await other.put(f"{number}", b.now_ms + 5 * MINUTE_MS)
    await b.kill()
    del cluster.engine.records.data[left:]
    b.begin()
    await b.wait_down()
    assert isinstance(cause(b), LogLost)
    b.disk.kill()
    assert await heal(cluster) == "b"
    for host in (c, a, b):
        host.begin()
    await a.sleep_ms(MINUTE_MS)
    assert cluster.healed is not None
    for host in (a, b, c):  # from now on its positions are those of the healed log, also for its backups
        log = host.server.parts.files.log
        assert followed_to(log, log.first).epoch > cluster.healed.until
    await a.sleep_ms(5 * MINUTE_MS)
    assert sorted(map(int, cluster.delivered)) == list(range(25))
    assert contents(a) == contents(b) == contents(c)


class Logs:
    """The logs of a cluster, or its map. The first `refused` calls of `trim` get no answer. `takes`: so many records of each
    log are appended, and the others not."""

    topic = "t"

    def __init__(self, records: Records, refused: int = 0, takes: int | None = None) -> None:
        self.records = records
        self.refused = refused
        self.takes = takes

    def open(self, shard: int) -> ListLog:
        log = UntrimmedLog(self)
        if self.takes is not None:
            log.lose_from(self.takes)
        return log

    async def make_topic(self, shards: int) -> None:
        raise AssertionError("it is there")

    async def grow_topic(self, shards: int) -> None:
        raise AssertionError("it is there")


class UntrimmedLog(ListLog):
    """Is not trimmed while its logs refuse it."""

    def __init__(self, logs: Logs) -> None:
        super().__init__(logs.records)
        self._logs = logs

    async def trim(self, position: int) -> None:
        if self._logs.refused:
            self._logs.refused -= 1
            raise LogUnavailable("no answer")
        await super().trim(position)


async def broken(boot: Boot) -> tuple[Cluster, Logs]:
    """A cluster whose log has lost five records that member a has and b, which waits to be healed, has not; and its map."""
    cluster = Cluster(boot, "ab")
    a, b = cluster.hosts.values()
    client = await cluster.start()
    await client.put("one", a.now_ms + MINUTE_MS)
    await a.sleep_ms(1_000)
    await b.kill()
    for number in range(10):
        await client.put(f"{number}", a.now_ms + MINUTE_MS)
    await a.kill()
    del cluster.engine.records.data[-5:]
    logs = Logs(Records())
    engines = Engines(logs, logs)
    founded = Founded(FORMAT, f"{IDENTITY.cluster_id:012x}", (f"{IDENTITY.server_id:012x}",))
    for note in (founded, Announced("a", 0, "h:1", "", "1", ""), Announced("b", 0, "h:2", "", "1", "")):
        await engines.note(note)
    other, _ = look(Announced("b", 0, "h:2", "", "1", ""), pieces(b))
    await engines.note(other)
    return cluster, logs


FILE = ClusterFile("k:1", "a")


def pass_over(_: OpeningMember) -> None:
    """The directory is not what these tests are about."""


async def test_members_do_not_start_on_a_log_that_is_healed_in_part(boot: Boot) -> None:
    """The part may look whole to each of them."""
    cluster, map_ = await broken(boot)
    a = cluster.hosts["a"]
    with trio.move_on_after(60):
        half = Engines(Logs(cluster.engine.records, takes=8), map_)
        await heal_member(FILE, half, a.disk, DATA_DIR, IDENTITY.server_id)
    engines = Engines(Logs(cluster.engine.records), map_)
    for name in "ab":
        with pytest.raises(LogUnusable, match=r"shard 0 is being healed by a, .*call it again"):
            await join(ClusterFile("k:1", name), engines, "h:1", "", 60_000, Random(1), pass_over)
    assert (await engines.read_map()).members["b"].address == "h:2", "it did not become a member"
    cluster.healed = await heal_member(FILE, engines, a.disk, DATA_DIR, IDENTITY.server_id)
    assert await join(FILE, engines, "h:1", "", 60_000, Random(1), pass_over)
    await require_whole(cluster)


async def test_a_member_that_starts_as_the_healing_begins_is_waited_for(boot: Boot) -> None:
    cluster, map_ = await broken(boot)
    engines = Engines(Logs(cluster.engine.records), map_)
    known = Announced("b", 0, "h:2", "", "1", "")
    before = len(cluster.engine.records.data)
    add = map_.records.add

    def started_meanwhile(record: bytes) -> None:
        if record == encode_note(HealingBegun(0, "a")):
            map_.records.add = add  # type: ignore[method-assign]
            add(encode_note(known))
        add(record)

    map_.records.add = started_meanwhile  # type: ignore[method-assign]
    with trio.move_on_after(60):
        await heal_member(FILE, engines, cluster.hosts["a"].disk, DATA_DIR, IDENTITY.server_id)
    assert len(cluster.engine.records.data) == before, "nothing is written while a member works"
    await engines.note(look(known, pieces(cluster.hosts["b"]))[0])
    cluster.healed = await heal_member(FILE, engines, cluster.hosts["a"].disk, DATA_DIR, IDENTITY.server_id)
    await require_whole(cluster)


async def test_a_member_that_is_started_while_its_heal_waits_is_named(boot: Boot) -> None:
    cluster, map_ = await broken(boot)
    engines = Engines(Logs(cluster.engine.records), map_)
    await engines.note(Announced("b", 0, "h:2", "", "1", ""))  # so that a waits for it
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_once_stranded, engines)
            with pytest.raises(click.ClickException, match=r"a was started .*Stop it, and call"):
                await heal_member(FILE, engines, cluster.hosts["a"].disk, DATA_DIR, IDENTITY.server_id)


async def start_once_stranded(engines: Engines) -> None:
    while "a" not in (await engines.read_map()).stranded:
        await trio.sleep(0.1)
    await engines.note(Announced("a", 0, "h:1", "", "1", "again"))


async def require_whole(cluster: Cluster) -> None:
    """Both members go on, and nothing is lost."""
    a, b = cluster.hosts.values()
    a.begin()
    b.begin()
    await b.sleep_ms(2 * MINUTE_MS)
    assert sorted(cluster.delivered) == [*map(str, range(10)), "one"]
    assert contents(a) == contents(b)


async def test_a_healing_that_was_interrupted_is_ended_by_the_next_call(boot: Boot) -> None:
    cluster, map_ = await broken(boot)
    a = cluster.hosts["a"]
    engines = Engines(Logs(cluster.engine.records, refused=1), map_)
    with pytest.raises(LogUnavailable):
        await heal_member(FILE, engines, a.disk, DATA_DIR, IDENTITY.server_id)
    cluster.healed = await heal_member(FILE, engines, a.disk, DATA_DIR, IDENTITY.server_id)
    found = await engines.read_map()
    assert found.healed == {0: cluster.healed} and found.stranded == {}
    assert cluster.engine.records.first == cluster.healed.position
    await require_whole(cluster)


async def test_a_log_that_lost_nothing_is_not_healed(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    a, b = cluster.hosts.values()
    client = await cluster.start()
    await client.put("one", a.now_ms + MINUTE_MS)
    await a.sleep_ms(1_000)
    await b.kill()
    await client.put("only a knows it", a.now_ms + MINUTE_MS)
    await a.kill()
    end = len(cluster.engine.records.data)
    with pytest.raises(HealingRefusedError, match="nothing is to be healed"):
        await heal(cluster)
    assert (cluster.engine.records.first, len(cluster.engine.records.data)) == (0, end)


async def test_a_log_that_went_on_without_what_it_lost_is_not_healed(boot: Boot) -> None:
    """Messages of both would have the same sequences."""
    cluster = Cluster(boot, "ab")
    a, b = cluster.hosts.values()
    client = await cluster.start()
    await client.put("one", a.now_ms + MINUTE_MS)
    await a.sleep_ms(1_000)
    await b.kill()
    end = len(cluster.engine.records.data)
    await client.put("lost", a.now_ms + MINUTE_MS)
    await a.kill()
    del cluster.engine.records.data[end:]
    b.begin()
    await b.wait_up()
    await (await b.client()).put("instead of it", b.now_ms + MINUTE_MS)
    await b.kill()
    with pytest.raises(HealingRefusedError, match=r"a has records .* that b does not have"):
        await heal(cluster)


async def test_a_member_that_was_not_healed_with_the_others_needs_a_backup(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    a, b = cluster.hosts.values()
    client = await a.start_connected()
    await client.put("one", a.now_ms + MINUTE_MS)
    await a.kill()
    cluster.engine.records.data.clear()
    assert cluster.hosts.pop("b") is b
    assert await heal(cluster) == "a"
    b.begin()
    await b.wait_down()
    assert isinstance(cause(b), LogTrimmed)


ONE, TWO, THREE = LogWriter(1, 1), LogWriter(2, 2), LogWriter(3, 3)
BATCH = FollowedBatch.filled(1)


def had(epoch: int, index: int, writer: LogWriter, records: int = 0) -> CopiedPiece:
    batches: list[ColumnBatch] = [BATCH] * records
    return CopiedPiece(FollowedTo(9, epoch, index, writer), batches)


def stranded(name: str, *had: CopiedPiece) -> Stranded:
    return look(Announced(name, 0, "h:1", "", "1", ""), iter(had))[0]


WHOLE = [had(1, 2, ONE, 1), had(1, 5, ONE, 2), had(2, 1, TWO, 1), had(2, 4, TWO)]
YOUNG = [had(1, 5, ONE), *WHOLE[2:]]
AHEAD = CopiedPiece(None, [BATCH])


@pytest.mark.parametrize(
    ("healer", "other", "refused"),
    [
        (WHOLE, [], ""),
        (WHOLE, WHOLE, ""),
        (WHOLE, WHOLE[:1], ""),
        (WHOLE, [*WHOLE, had(2, 9, TWO)], ""),  # beats
        (WHOLE, [*WHOLE, had(3, 2, THREE)], ""),  # an epoch of beats
        (WHOLE, [*WHOLE[:2], had(1, 7, ONE, 1)], "does not have"),
        (WHOLE, [*WHOLE[:1], had(1, 4, ONE, 1)], "does not have"),
        (WHOLE, [*WHOLE[:2], had(2, 1, THREE)], "does not have"),
        (YOUNG, WHOLE[:2], ""),
        (YOUNG, [*WHOLE[:2], had(1, 6, ONE)], ""),
        (YOUNG, WHOLE[:1], "no longer what came next"),
        (YOUNG, [], "no longer what came next"),
    ],
)
def test_members_are_healed_together_whose_logs_are_one(
    healer: list[CopiedPiece], other: list[CopiedPiece], refused: str
) -> None:
    mine, others = stranded("a", *healer), stranded("b", *other)
    assert who_heals([mine, others]) in (mine, others)
    if not refused:
        require_part_of(iter(healer), mine, [mine, others])
        return
    with pytest.raises(HealingRefusedError, match=refused):
        require_part_of(iter(healer), mine, [mine, others])


def test_the_member_heals_that_has_most() -> None:
    names = [
        stranded("a", *WHOLE[:2], had(3, 9, ONE)),
        stranded("b", *WHOLE),
        stranded("c", *WHOLE, AHEAD),
        stranded("d", *WHOLE, had(2, 9, TWO)),
    ]
    assert who_heals(names).name == "c"
    assert who_heals(names[:2]).name == "b"


async def test_the_healed_log_is_in_order() -> None:
    """Beats stand where notes were, and records without a place come in an epoch of their own."""
    records = Records()
    records.add(b"what is left of the log")
    own = Announced("a", 0, "h:1", "", "1", "")
    healing = Healing(lambda: ListLog(records), IDENTITY, own, THREE)
    laggard = stranded("b", had(1, 2, ONE, 1))
    members = [stranded("a", *WHOLE, AHEAD), laggard]
    healed = await healing.write(iter([*WHOLE, AHEAD]), members, 7)
    assert await healing.remove_before(healed) and not await healing.remove_before(healed)
    assert healed == Healed(0, 1, 1, 2, 3)
    assert records.first == 1
    found = [unwrap(data, IDENTITY, 0).envelope for data in records.data[1:]]
    kinds = [(each.kind.name, each.epoch, each.index, each.writer.member) for each in found]
    assert kinds == [
        ("BEAT", 1, 3, 1), ("BEAT", 1, 4, 1), ("RECORDS", 1, 5, 1),
        ("CLAIM", 2, 0, 2), ("RECORDS", 2, 1, 2), ("BEAT", 2, 2, 2), ("BEAT", 2, 3, 2), ("BEAT", 2, 4, 2),
        ("CLAIM", 3, 0, 3), ("RECORDS", 3, 1, 3),
    ]  # fmt: skip


async def test_a_healed_log_has_the_barriers_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of each, also in front of members that have not read it."""
    monkeypatch.setattr("delayserver.members.healing.LOG_VERSION", 2)
    records = Records()
    before, behind = FollowedTo(9, 1, 4, ONE), FollowedTo(9, 1, 5, ONE, barrier=1)
    later = FollowedTo(9, 2, 6, TWO, barrier=2)
    had = [
        CopiedPiece(before, [BATCH]), CopiedPiece(behind, []), CopiedPiece(replace(behind, index=6), [BATCH]),
        CopiedPiece(replace(behind, index=8), []), CopiedPiece(replace(later, index=2, barrier=1), [BATCH]),
        CopiedPiece(later, []),
    ]  # fmt: skip
    own = Announced("a", 0, "h:1", "", "2.0", "1")
    healing = Healing(lambda: ListLog(records), IDENTITY, own, THREE)
    behind_one = had[:3]
    for other, barriers in ((had[:1], [(1, 5, 1), (2, 6, 2)]), (behind_one, [(2, 6, 2)]), (had, [])):
        records.data.clear()
        await healing.write(iter(had), [stranded("a", *had), stranded("b", *other)], 7)
        found = [unwrap(data, IDENTITY, 0) for data in records.data]
        notes = [each for each in found if each.envelope.kind is EnvelopeKind.BARRIER]
        read = [decode_note(EnvelopeKind.BARRIER, each.payload, 0) for each in notes]
        places = [(each.envelope.epoch, each.envelope.index) for each in notes]
        assert read == [BarrierNote(version, "2.0") for *_, version in barriers]
        assert places == [place[:2] for place in barriers]


async def test_records_behind_a_barrier_that_a_crash_has_cut_off_have_one_again() -> None:
    records = Records()
    had = [CopiedPiece(FollowedTo(9, 1, 4, ONE), [BATCH]), CopiedPiece(None, [KeptBatch.filled(1)])]
    own = Announced("a", 0, "h:1", "", "2.0", "1")
    healing = Healing(lambda: ListLog(records), IDENTITY, own, THREE)
    await healing.write(iter(had), [stranded("a", *had), stranded("b", had[0])], 7)
    found = [unwrap(data, IDENTITY, 0) for data in records.data]
    places = [(each.envelope.kind.name, each.envelope.epoch, each.envelope.index) for each in found]
    assert places == [("CLAIM", 2, 0), ("BARRIER", 2, 1), ("RECORDS", 2, 2)]
    assert decode_note(EnvelopeKind.BARRIER, found[1].payload, 0) == BarrierNote(1, "2.0")


def cause(host: Host) -> BaseException | None:
    error: BaseException | None = host.died_of
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
