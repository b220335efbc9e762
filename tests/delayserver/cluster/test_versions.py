"""A member never passes over what only a newer program can read: it stops by name, and does not claim."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from delayserver.cli.cluster.heal import _heal as heal_member
from delayserver.config.cluster_file import ClusterFile
from delayserver.crossing.leaving import leave
from delayserver.kafka.client_options import KafkaCluster
from delayserver.members.founding import Engines
from delayserver.members.member_map import FORMAT, Announced, Founded
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import Findings
from delayserver.runtime.shared_log import LogRecord
from ops.audit.capture import CAPTURE_ORDER
from ops.audit.capture import capture as audit_capture
from ops.audit.topic_survey import judged
from ops.audit.topics import TopicShard
from store.errors import UpgradeNeededError
from store.records.batches import I64, OutcomeBatch
from store.records.column_batch import ColumnBatch
from store.shared.envelope import EnvelopeKind, unwrap
from store.shared.followed import FollowedTo, followed_to
from store.shared.payload import LOG_VERSION, BarrierNote, decode_note
from tests.delayserver.backup.builders import repository
from tests.delayserver.backup.test_restoring import backed_up, restored
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.cluster.test_healing import Logs
from tests.delayserver.crossing.test_crossing import runtime_of
from tests.delayserver.follow.members import IDENTITY, Records
from tests.fakes.host import DATA_DIR, Boot, Host


@dataclass(frozen=True, slots=True)
class NewerBatch(ColumnBatch, kind=200, version=1):
    """A kind of record that no program has yet."""

    value: I64
    other: I64


@dataclass(frozen=True, slots=True)
class ChangedBatch(ColumnBatch, kind=OutcomeBatch.schema.kind, version=3, fields_before=(0, 0)):
    """The next version of a kind that this program has."""

    value: I64
    other: I64


assert ChangedBatch.schema.version == OutcomeBatch.schema.version + 1


def append(host: Host, record: BarrierNote | ColumnBatch) -> None:
    """As a newer program does that leads in the place of this one."""
    assert host.server.parts.cluster is not None
    proposals = host.server.parts.cluster.proposals
    if isinstance(record, BarrierNote):
        proposals.note(record, lambda _: None, lambda _: None)
    else:
        proposals.propose([record], lambda _: None, lambda _: None)


def upgrade_needed(host: Host) -> UpgradeNeededError:
    error: BaseException | None = host.died_of
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UpgradeNeededError)
    return error


@pytest.mark.parametrize("record", [BarrierNote(99, "99.0.0"), NewerBatch.filled(1), ChangedBatch.filled(1, value=1)])
async def test_a_standby_stops_where_only_a_newer_program_can_go_on(
    boot: Boot, record: BarrierNote | ColumnBatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.put("known", first.now_ms + 60_000)
    await first.sleep_ms(500)
    append(first, record)
    for _ in range(2):
        await second.wait_down()
        assert "upgrade this member" in str(upgrade_needed(second))
        assert second.server.parts.cluster is not None
        assert second.server.parts.cluster.follower.place.position == upgrade_needed(second).position, "not taken"
        assert second.server.parts.state.balance.accepted == 1
        second.disk.kill()
        second.begin()
    await first.kill()
    await second.wait_down()
    assert second.server.parts.cluster is not None
    assert not second.server.parts.cluster.standing.leads


def barriers(cluster: Cluster) -> list[int]:
    """The versions to which barriers in the log raise it."""
    found = [unwrap(data, IDENTITY, 0) for data in cluster.engine.records.data]
    notes = [decode_note(each.envelope.kind, each.payload, 0) for each in found if each.envelope.kind in NOTES]
    return [note.version for note in notes if isinstance(note, BarrierNote)]


NOTES = {*EnvelopeKind} - {EnvelopeKind.RECORDS}


def version(host: Host) -> int:
    """That of the log, as a member has read it."""
    assert host.server.parts.cluster is not None
    return host.server.parts.cluster.standing.barrier.value


async def test_the_primary_raises_the_version_that_all_members_read(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    cluster.reads = {"a": 8, "b": 7}
    first, second = cluster.hosts.values()
    await cluster.start()
    await first.sleep_ms(500)
    assert barriers(cluster) == [] and version(first) == 0
    cluster.announce(a=8, b=7, older=0)
    await first.sleep_ms(500)
    assert barriers(cluster) == [], "an older member keeps it from rising"
    cluster.announce(a=8, b=7)
    cluster.announce(a=8, b=7, c=8)
    await first.sleep_ms(500)
    assert barriers(cluster) == [7] and version(first) == version(second) == 7
    cluster.announce(a=9, b=9)
    await first.sleep_ms(500)
    assert barriers(cluster) == [7, 8] and version(first) == 8, "no higher than its own program reads"
    await second.wait_down()
    assert "reads up to version 7; delayserver" in str(upgrade_needed(second))


async def test_a_version_stays_with_the_directory(boot: Boot) -> None:
    """Also where the log has no barrier any more, and for the next primary."""
    cluster = Cluster(boot, "ab")
    cluster.reads = dict.fromkeys("ab", 7)
    first, second = cluster.hosts.values()
    client = await cluster.start()
    cluster.announce(a=7, b=7)
    await client.put("one", first.now_ms + 60_000)
    await first.sleep_ms(500)
    await second.kill()
    await first.sleep_ms(500)
    cluster.engine.records.first = len(cluster.engine.records.data) - 1
    cluster.reads["b"] = 6
    opened = len(cluster.engine.logs)
    second.begin()
    await second.wait_down()
    assert "the log has version 7 from here on, and this program reads up to version 6" in str(upgrade_needed(second))
    assert len(cluster.engine.logs) == opened, "it did not read the log"
    second.disk.kill()
    cluster.engine.records.first = 0
    cluster.reads["b"] = 7
    second.begin()
    await first.sleep_ms(500)
    cluster.engine.records.first = len(cluster.engine.records.data) - 1
    assert version(second) == 7
    await first.kill()
    await second.wait_up()
    await second.sleep_ms(500)
    assert version(second) == 7 and barriers(cluster) == [7]
    assert (await second.balanced(pending=1))["accepted"] == 1


async def test_an_idle_member_writes_a_barrier_down(boot: Boot) -> None:
    """Its place is not older than what may stand behind it."""
    cluster = Cluster(boot, "ab")
    cluster.reads = dict.fromkeys("ab", 7)
    first, second = cluster.hosts.values()
    await cluster.start()
    await first.sleep_ms(500)
    cluster.announce(a=7, b=7)
    await first.sleep_ms(1_000)
    log = second.server.parts.files.log
    assert followed_to(log, log.first).barrier == 7


@dataclass(frozen=True, slots=True)
class Later:
    """A stopped member `b` whose log has a later version than this program reads, and the log."""

    cluster: Cluster
    member: Host


async def later(boot: Boot) -> Later:
    cluster = Cluster(boot, "ab")
    cluster.reads = dict.fromkeys("ab", LOG_VERSION + 1)
    first, second = cluster.hosts.values()
    client = await cluster.start()
    cluster.announce(**cluster.reads)
    await client.put("one", first.now_ms + 60_000)
    await first.sleep_ms(1_000)
    for host in (second, first):
        await host.kill()
    return Later(cluster, second)


REFUSED = f"the log has version {LOG_VERSION + 1} from here on, and this program reads up to version {LOG_VERSION}"


async def test_tools_refuse_the_directory_of_a_later_log(boot: Boot) -> None:
    """All of them begin with one of these captures, also those that mend a directory."""
    found = await later(boot)
    disk, before = found.member.disk, contents(found.member)
    with pytest.raises(UpgradeNeededError, match=REFUSED):
        capture(disk, DATA_DIR, Findings())
    for log in CAPTURE_ORDER:
        with pytest.raises(UpgradeNeededError, match=REFUSED):
            audit_capture(disk, [DATA_DIR], log)
    assert contents(found.member) == before
    with pytest.raises(UpgradeNeededError, match=REFUSED):  # it opens the directory as a start does
        await leave(disk, DATA_DIR, runtime_of(found.member))


async def test_an_audit_refuses_the_topic_of_a_later_log(boot: Boot) -> None:
    found = await later(boot)
    shard = TopicShard(KafkaCluster("k:1", "t", {}, 1), 0, IDENTITY)
    records = [LogRecord(position, data) for position, data in enumerate(found.cluster.engine.records.data)]
    with pytest.raises(UpgradeNeededError, match=f"{REFUSED}; delayserver"):
        list(judged(shard, FollowedTo(), records))


async def test_a_later_log_is_not_healed_by_a_program_that_reads_less(boot: Boot) -> None:
    """It says so before it changes anything, and before another member waits for it."""
    found = await later(boot)
    del found.cluster.engine.records.data[5:]
    logs, map_ = Logs(found.cluster.engine.records), Logs(Records())
    engines = Engines(logs, map_)
    founded = Founded(FORMAT, f"{IDENTITY.cluster_id:012x}", (f"{IDENTITY.server_id:012x}",))
    for note in (founded, Announced("b", 0, "h:2", "", "1", "", LOG_VERSION + 1)):
        await engines.note(note)
    log, noted, before = [*logs.records.data], [*map_.records.data], contents(found.member)
    with pytest.raises(UpgradeNeededError, match=REFUSED):
        await heal_member(ClusterFile("k:1", "b"), engines, found.member.disk, DATA_DIR, IDENTITY.server_id)
    assert (logs.records.data, map_.records.data, contents(found.member)) == (log, noted, before)


def contents(host: Host) -> dict[str, bytes]:
    return {path: host.disk.content(path) for path in host.disk.files()}


async def test_a_program_that_reads_less_restores_no_backup(boot: Boot) -> None:
    cluster, place = Cluster(boot, "ab"), repository()
    cluster.reads = dict.fromkeys("ab", LOG_VERSION + 1)
    first, second = cluster.hosts.values()
    await cluster.start()
    cluster.announce(**cluster.reads)
    await first.sleep_ms(1_000)
    await backed_up(second, await second.client(), place)
    with pytest.raises(UpgradeNeededError, match=f"reads up to version {LOG_VERSION};"):
        restored(place, first.clock.now_us())
