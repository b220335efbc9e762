"""Whole servers as members of a shard: a standby goes on where the primary was."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from delayserver.names.names_of_tokens import STEP
from delayserver.protocol.errors import InDoubt
from delayserver.runtime.acting import act_for
from delayserver.server.delay_server import LeadershipLost
from store.records.batches import OutcomeBatch
from store.shared.envelope import Envelope, EnvelopeKind, LogWriter, unwrap, wrap
from store.shared.payload import ClaimNote, decode_records, encode_note
from store.tables.names import OWN, SUBJECT
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.follow.members import IDENTITY
from tests.fakes.host import Boot, with_settings


async def test_a_standby_serves_what_the_dead_primary_accepted(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.put("early", first.now_ms + 500)
    receipt = (await client.put("late", first.now_ms + 60_000))["receipt"]
    (cancelled,) = await client.cancel((await client.put("never", first.now_ms + 60_000))["receipt"])
    assert cancelled == "cancelled"
    await first.sleep_ms(1_000)
    assert cluster.delivered == ["early"]
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert await other.lookup(receipt) == ["pending"]
    await other.put("new", second.now_ms + 30_000)
    await second.sleep_ms(70_000)
    assert cluster.delivered == ["early", "new", "late"]
    status = await second.balanced(pending=0)
    assert (status["delivered"], status["cancelled"]) == (3, 1)


async def test_a_primary_that_was_superseded_ends_and_follows_in_its_next_life(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.put("one", first.now_ms + 60_000)
    cluster.engine.logs[0].connect(False)
    asked = await client.ask("send", {"messages": [{"subject": "s", "body": "lost", "due_ms": first.now_ms + 60_000}]})
    await second.wait_up()
    cluster.engine.logs[0].connect(True)
    await first.wait_down()
    assert isinstance(first.died_of, LeadershipLost)
    with pytest.raises(InDoubt):  # nobody knows whether it counts
        await client.reply(asked)
    first.disk.kill()
    first.begin()
    other = await second.client()
    await other.put("two", second.now_ms + 60_000)
    await second.sleep_ms(5_000)
    await second.kill()
    await first.wait_up()
    await first.sleep_ms(70_000)
    assert cluster.delivered == ["one", "two"]
    status = await first.balanced(pending=0)
    assert status["delivered"] == 2


async def test_a_name_that_only_a_superseded_primary_knew_may_be_another_one_for_its_successor(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.put("one", first.now_ms + 60_000)
    cluster.engine.logs[0].connect(False)
    message = {"subject": "its own", "body": "lost", "due_ms": first.now_ms + 60_000}
    await client.ask("send", {"messages": [message]})
    await second.wait_up()
    other = await second.client()
    await other.put("two", second.now_ms + 60_000, subject="another")
    cluster.engine.logs[0].connect(True)
    await first.wait_down()
    assert isinstance(first.died_of, LeadershipLost)
    first.disk.kill()
    first.begin()
    await first.sleep_ms(1_000)
    await second.kill()
    await first.wait_up()
    await first.sleep_ms(70_000)
    assert cluster.delivered == ["one", "two"]


async def test_copies_that_a_killed_member_had_placed_count_as_such_in_its_next_life(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    due_ms = host.now_ms + 3_600_000
    for _ in range(3):
        await client.put("same", due_ms, message_id="id")
    await host.balanced(pending=1)
    await host.kill()
    for path in host.disk.files("/data/dispatch_log"):
        host.disk.remove(path)  # the kill came before its outcomes were written
    host.begin()
    await host.wait_up()
    status = await host.balanced(pending=1)
    assert status["deduplicated"] == 2


async def test_what_a_dead_primary_may_have_handed_over_is_asked_for(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    known = await client.put("known", first.now_ms + 1_000)
    unknown = await client.put("unknown", first.now_ms + 2_500)
    await first.sleep_ms(2_000)
    cluster.engine.logs[0].connect(False)  # the outcome of the next one never comes into the log
    await first.sleep_ms(1_100)
    assert cluster.delivered == ["known", "unknown"]
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert await other.lookup(known["receipt"]) == ["delivered"]
    assert await other.cancel(unknown["receipt"]) != ["cancelled"], "it was delivered"
    await second.sleep_ms(5_000)
    assert cluster.delivered == ["known", "unknown", "unknown"]
    assert cluster.node.uncertain == {2}, "the node is told that it may have it"
    status = await second.balanced(pending=0)
    assert status["delivered"] == 2


async def test_a_member_replays_its_own_log_and_goes_on_from_there(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    for number in range(5):
        await client.put(f"{number}", first.now_ms + 500 + number, subject=f"s{number}")
        await first.sleep_ms(500)
        await second.lose_power(number)
        second.begin()
    await first.sleep_ms(2_000)
    await client.put("last", first.now_ms + 30_000, subject="new")
    await first.sleep_ms(500)
    await first.kill()
    await second.wait_up()
    status = await second.balanced(pending=1)
    assert status["delivered"] == 5
    await second.sleep_ms(40_000)
    assert cluster.delivered == ["0", "1", "2", "3", "4", "last"]


async def test_a_primary_that_hears_nothing_of_the_log_attempts_nothing(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    await client.put("before", host.now_ms + 1_000)
    await client.put("behind", host.now_ms + 4_000)
    await host.sleep_ms(500)
    cluster.engine.logs[0].connect(False)
    await host.sleep_ms(10_000)
    assert cluster.delivered == ["before"], "its lease had not ended"
    cluster.engine.logs[0].connect(True)
    await host.sleep_ms(1_000)
    assert cluster.delivered == ["before", "behind"]


async def test_nothing_is_attempted_before_a_beat_that_allows_it(boot: Boot) -> None:
    """The clock of a primary steps forward. What became due by that waits for the next beat."""
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    await client.put("ahead", host.now_ms + 60_000)
    await host.sleep_ms(500)
    cluster.engine.logs[0].connect(False)
    host.clock.step(60_000)
    await host.sleep_ms(600)
    assert cluster.delivered == []
    cluster.engine.logs[0].connect(True)
    await host.sleep_ms(1_000)
    assert cluster.delivered == ["ahead"]


async def test_sequences_go_on_where_the_log_ends_whatever_a_member_had_before(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    for number in range(3):
        sent = await client.put(f"{number}", first.now_ms + 60_000)
        assert sent["sequence"] == 1 + number
        await second.sleep_ms(500)
        await second.kill()
        second.begin()
    await second.sleep_ms(500)
    await first.kill()
    await second.wait_up()
    assert (await (await second.client()).put("next", second.now_ms + 60_000))["sequence"] == 4


async def test_the_next_primary_goes_on_with_how_many_names_a_client_has_added(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    await first.start()
    second.begin()
    await second.sleep_ms(500)
    counted = []
    for number, host in enumerate((first, second)):
        names = host.server.parts.receive.names
        act_for("client")
        names.intern(SUBJECT, [f"{number}-{name}" for name in range(STEP)])
        act_for("")
        table = host.server.parts.ground.names
        counted.append(table.names_of(table.codes(OWN))[-1])
        await (await host.client()).put("message", host.now_ms)
        if host is first:
            await first.sleep_ms(500)
            await first.kill()
            await second.wait_up()
    assert counted == [f"added {SUBJECT} {STEP} client", f"added {SUBJECT} {2 * STEP} client"]


async def test_a_claimant_decides_nothing_before_it_has_replayed_what_came_before_its_claim(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    old, log = cluster.engine.logs
    on_their_way: list[bytes] = []
    monkeypatch.setattr(old, "append", on_their_way.append)
    due_ms = first.now_ms + 10_000
    await client.ask("send", {"messages": [{"subject": "s", "body": "last", "due_ms": due_ms}]})
    await first.sleep_ms(50)
    await first.kill()

    def claim(record: bytes) -> None:
        """The last records of the dead primary land in front, and the disk is full."""
        monkeypatch.undo()
        for each in on_their_way:
            cluster.engine.records.add(each)
        second.disk.refuse = full
        log.append(record)

    def full(operation: str, path: str) -> int:
        return errno.ENOSPC if "schedule_log" in path and operation != "pread" else 0

    monkeypatch.setattr(log, "append", claim)
    await second.sleep_ms(5_000)
    parts = second.server.parts.cluster
    assert parts is not None and second.server.replay_room.waiting
    assert (parts.standing.epoch.value, parts.standing.role) == (2, "taking_over")
    second.disk.refuse = lambda _operation, _path: 0
    await second.wait_up()
    await second.sleep_ms(20_000)
    assert cluster.delivered == ["last"]


async def test_a_new_primary_says_no_outcome_that_the_log_has_already(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    # Its outcomes gather for ten seconds, so at the takeover some still wait.
    second.settings = with_settings(
        second.settings, dispatch={"outcome_flush_ms": 10_000}, storage={"checkpoint_interval_ms": 60_000}
    )
    client = await cluster.start()
    for body in ("one", "two", "three"):
        await client.put(body, first.now_ms + 500)
        await first.sleep_ms(1_000)
    await first.kill()
    await second.wait_up()
    await second.sleep_ms(20_000)
    assert Counter(outcomes_of(cluster)) == {1: 1, 2: 1, 3: 1}


def outcomes_of(cluster: Cluster) -> list[int]:
    """The sequences of all outcomes in the log, in order."""
    found = [unwrap(data, IDENTITY, place) for place, data in enumerate(cluster.engine.records.data)]
    batches = [
        image.to_batch()
        for each in found
        if each.envelope.kind is EnvelopeKind.RECORDS
        for image in decode_records(each.payload, 0)
    ]
    return [sequence for batch in batches if isinstance(batch, OutcomeBatch) for sequence in batch.sequence.tolist()]


async def test_a_member_that_is_superseded_when_its_first_beat_comes_back_has_never_led(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    await cluster.start()
    await first.sleep_ms(1_000)
    records, log = cluster.engine.records, cluster.engine.logs[1]
    other = LogWriter(2, 99)

    def append(record: bytes) -> None:
        """Behind its first beat stands the claim of a third member."""
        if unwrap(record, IDENTITY, 0).envelope.kind is EnvelopeKind.BEAT:
            monkeypatch.undo()
            claim = ClaimNote("c", "c:1", "1", len(records.data), "test")
            records.data.append(record)
            record = wrap(Envelope(EnvelopeKind.CLAIM, IDENTITY, 3, 0, other, 0), [encode_note(claim)])
        records.add(record)

    await first.kill()
    monkeypatch.setattr(log, "append", append)
    await second.wait_down()
    assert isinstance(second.died_of, LeadershipLost)
    assert cluster.maps["b"].led.value == 0
