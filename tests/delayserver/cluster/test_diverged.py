"""A member that decides something else than the primary, from the same log, stops by name and never leads."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.replay.deduplication import Deduplication
from store.errors import DivergedError
from store.shared.envelope import Envelope, EnvelopeKind, unwrap
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.follow.members import IDENTITY
from tests.fakes.host import Boot, Host, small_settings, with_settings

FAR_MS = 3_600_000


def compared(host: Host) -> int:
    digest = host.server.parts.state.digest
    assert digest is not None and digest.since == 0
    return digest.compared


def diverged(host: Host) -> DivergedError:
    error: BaseException | None = host.died_of
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, DivergedError)
    return error


async def send_copies(host: Host, name: str) -> None:
    """Two messages, a copy, and a cancel."""
    client = await host.client()
    due_ms = host.now_ms + FAR_MS
    for body in ("first", "copy"):
        await client.put(body, due_ms, message_id=name)
    await client.cancel((await client.put("gone", due_ms))["receipt"])


def drop_copies(host: Host, monkeypatch: pytest.MonkeyPatch, *, met_damage: bool = False) -> None:
    """The replay of this member sees no copies. `met_damage`: it knows why."""
    mark = Deduplication.mark
    schedule = host.server.parts.files.schedule

    def forgetful(self: Any, key: Any, rows: Any, *, may_read: bool) -> Any:
        if self._schedule is not schedule:
            return mark(self, key, rows, may_read=may_read)
        self.met_damage = met_damage
        return rows

    monkeypatch.setattr(Deduplication, "mark", forgetful)


def claims(cluster: Cluster) -> list[Envelope]:
    found = [unwrap(data, IDENTITY, place).envelope for place, data in enumerate(cluster.engine.records.data)]
    return [each for each in found if each.kind is EnvelopeKind.CLAIM]


async def test_members_of_one_log_have_one_digest_over_restarts_and_takeovers(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await cluster.start()
    for number in range(4):
        await send_copies(first, f"one-{number}")
        await first.sleep_ms(1_300)
        if number % 2:
            await second.lose_power(number)
        else:
            await second.kill()
        second.begin()
    await first.sleep_ms(3_000)
    assert compared(second) > 0
    await first.kill()
    await second.wait_up()
    first.begin()
    await send_copies(second, "two")
    await second.sleep_ms(3_000)
    assert compared(first) > 0


async def test_a_member_that_drops_a_duplicate_stops_and_never_claims(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await cluster.start()
    await send_copies(first, "one")
    await first.sleep_ms(3_000)
    same = compared(second)
    drop_copies(second, monkeypatch)
    await send_copies(first, "two")
    await second.wait_down()
    assert diverged(second).position > same > 0
    await first.kill()
    second.disk.kill()
    second.begin()
    await second.wait_down()
    assert diverged(second).position > same
    assert [each.epoch for each in claims(cluster)] == [1]


async def test_a_diverged_member_is_found_again_after_its_power_was_lost(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await cluster.start()
    await first.sleep_ms(2_000)
    drop_copies(second, monkeypatch)
    await send_copies(first, "one")
    sent = first.server.parts.state.positions.accepted_sequence.value
    await second.server.parts.state.positions.replayed_sequence.reached(sent)
    for log in cluster.engine.logs[1:]:
        log.pause()  # it does not hear what the primary says
    await second.server.parts.upkeep.checkpointing.write()
    await second.lose_power(1)
    monkeypatch.undo()
    second.begin()
    await second.wait_down()
    diverged(second)


async def test_a_member_that_lost_its_checkpoint_compares_from_then_on(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await cluster.start()
    await send_copies(first, "one")
    await first.sleep_ms(2_000)
    digest = second.server.parts.state.digest
    assert digest is not None
    digest.distrust()
    await send_copies(first, "two")
    await first.sleep_ms(2_000)
    assert compared(second) > 0
    digest = first.server.parts.state.digest
    assert digest is not None
    digest.distrust()
    await first.sleep_ms(2_000)
    await send_copies(first, "three")
    await first.sleep_ms(2_000)
    ours = second.server.parts.state.digest
    assert ours is not None and ours.since == digest.since and ours.since
    assert ours.counters == digest.counters


async def test_a_primary_that_goes_around_damage_leaves_its_standbys_alone(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await cluster.start()
    await first.sleep_ms(3_000)
    drop_copies(first, monkeypatch, met_damage=True)
    await send_copies(first, "one")
    await first.sleep_ms(3_000)
    for digest in [host.server.parts.state.digest for host in (first, second)]:
        assert digest is not None and digest.since


async def test_a_beat_that_is_on_its_way_gives_no_sum_its_trust_back(boot: Boot) -> None:
    host = Cluster(boot, "a").hosts["a"]
    await host.start_connected()
    await host.sleep_ms(2_000)
    digest = host.server.parts.state.digest
    assert digest is not None
    told = digest.last
    digest.distrust()
    digest.compare(*told)
    assert (digest.since, digest.last) == (None, (0, b""))


async def test_a_standby_with_other_settings_decides_the_same(boot: Boot) -> None:
    """But for the length of windows, which a start compares."""
    cluster = Cluster(boot, "ab", small_settings())
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    second.settings = with_settings(
        second.settings,
        message={"subjects_max": 1, "tags_max": 1, "body_bytes_max": 1, "delay_ms_max": 1, "delay_levels": "9s"},
        storage={"fine_horizon_ms": 48 * FAR_MS, "retention_ms": FAR_MS, "message_log_retention_ms": 1_000},
        broker={"groups_max": 1, "retention_ms": 1_000, "unconsumed_retention_ms": 1_000, "redelivery_first_ms": 1},
        dispatch={"dead_letter_attempts": 1},
        transactions={"check_after_ms": 1_000, "checks_max": 1},
    )
    client = await cluster.start()
    for number in range(4):
        due_ms = first.now_ms + 30_000
        for each_ms in (due_ms, due_ms, due_ms + 30 * FAR_MS, due_ms + 30 * FAR_MS):
            await client.put("body", each_ms, message_id=f"{number}", subject=f"s{number}")
        await client.request("publish", {"messages": [{"subject": "s", "body": f"{number}"}]})
        for group in ("one", "two"):
            message = (await client.pull(group=group))[-1]
            asked = {"subject": "s", "group": group, "count": 1, "deliveries": message["delivery"]}
            await client.request("ack" if group == "one" else "nack", asked)
        await first.sleep_ms(60_000)
    assert compared(second) > 400
