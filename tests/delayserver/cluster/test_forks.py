"""A log that lost records and has grown since, or that was made anew, is never followed or led in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delayserver.protocol.schema.shard_map import OPEN, ShardMap, ShardPlace
from delayserver.runtime.shared_log import LogLost
from store.shared.envelope import EnvelopeKind, unwrap, wrap
from store.shared.payload import BeatNote, encode_note
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.follow.members import IDENTITY
from tests.fakes.host import Boot, Host

FAR_MS = 3_600_000


def lost(host: Host) -> LogLost:
    error: BaseException | None = host.died_of
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LogLost)
    return error


def led(epoch: int) -> ShardMap:
    """A map whose shard somebody led in an epoch."""
    return ShardMap(1, [[0, 1023, 0]], [ShardPlace(0, "000000000005", OPEN, epoch, "", [])])


async def test_a_member_that_has_what_the_claimant_lacks_stops_where_the_log_has_grown_over_it(boot: Boot) -> None:
    cluster = Cluster(boot, "abc")
    first, second, third = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    cluster.engine.logs[2].connect(False)
    data = cluster.engine.records.data
    whole = len(data)
    await client.put("known to two", first.now_ms + FAR_MS)
    await first.sleep_ms(1_000)
    await second.kill()
    assert second.server.parts.cluster is not None
    kept = second.server.parts.cluster.standing.kept.value
    await first.kill()
    del data[whole:]  # an unclean election
    data.extend([b"void"] * (kept + 20 - whole))  # which only counts positions
    cluster.engine.logs[2].connect(True)
    await third.wait_up()
    second.begin()
    await second.wait_down()
    error = lost(second)
    assert "c claims behind record" in str(error) and error.stop >= kept


async def test_a_claim_that_a_record_came_before_is_followed(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(boot, "abc")
    first, second, third = cluster.hosts.values()
    await cluster.start()
    await first.sleep_ms(500)
    await first.kill()
    log, records = cluster.engine.logs[1], cluster.engine.records
    last = unwrap(records.data[-1], IDENTITY, 0).envelope

    def claim(record: bytes) -> None:
        """The last beat of the dead primary lands in front."""
        beat = BeatNote(horizon_ms=0, lease_ms=0, digest=b"", position=0)
        records.add(wrap(replace(last, kind=EnvelopeKind.BEAT, index=last.index + 1), [encode_note(beat)]))
        monkeypatch.undo()
        log.append(record)

    monkeypatch.setattr(log, "append", claim)
    await second.wait_up()
    await second.sleep_ms(2_000)
    assert third.died_of is None and third.server.parts.cluster is not None
    assert third.server.parts.cluster.standing.epoch.value == 2


async def test_an_empty_member_does_not_lead_on_a_log_that_was_made_anew(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    cluster.maps["a"].take(led(7))
    host.begin()
    await host.wait_down()
    assert "a member has led in epoch 7" in str(lost(host))
    assert not cluster.engine.records.data


async def test_a_member_leads_where_the_map_knows_the_epochs_of_the_log(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await cluster.start()
    await first.sleep_ms(500)
    cluster.maps["b"].take(led(1))
    await first.kill()
    await second.wait_up()
