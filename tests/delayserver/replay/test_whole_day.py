"""A day that is overdue as a whole when its turn comes is delivered from its own file, and never split into minutes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.checking.check import check_directory
from delayserver.recover.mending.mender import carry_out
from delayserver.recover.mending.rebuild_plan import plan_rebuild
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import Findings
from delayserver.recover.reading.subject_balances import ACCEPTED, PENDING
from delayserver.replay import day_sealing
from delayserver.state.decisions import decided
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64, OutcomeBatch
from store.records.membership import is_member
from tests.fakes.host import Boot, Client, Host, faked_settings

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


def settings(**parts: dict[str, Any]):  # type: ignore[no-untyped-def]
    storage = {"fine_horizon_ms": 2 * HOUR_MS, "retention_ms": 2 * HOUR_MS} | parts.pop("storage", {})
    return faked_settings(storage=storage, **parts)


def far_day(host: Host) -> int:
    return day_of(host.now_ms) + 4 * DAY_MS


async def put_over_day(client: Client, day_ms: int, count: int, body: str = "old") -> list[str]:
    """Receipts of messages due over the minutes of a day, in no order."""
    results = [
        await client.put(f"{body} {number}", day_ms + number * 7919 % 1440 * MINUTE_MS + number)
        for number in range(count)
    ]
    return [result["receipt"] for result in results]


async def go_to(host: Host, now_ms: int, *, crash: Callable[[Host], Any] = Host.stop) -> None:
    """End the server, and start it when it is later."""
    await host.settled()
    await crash(host)
    host.clock.step(now_ms - host.now_ms)
    await host.start()


async def out(host: Host, count: int, within_ms: int = 60_000) -> None:
    await host.until(lambda: len(host.fake().stored) >= count, within_ms=within_ms)
    await host.settled()
    assert sorted(host.fake().stored) == sorted(set(host.fake().stored))


def minutes(host: Host) -> int:
    return sum(key.source != ScheduleSource.DAY for key in host.server.parts.files.schedule.keys())


def check(host: Host) -> tuple[int, int]:
    """What `recover check` finds in the files as they are: nothing wrong; accepted and pending messages."""
    taken, checked = check_directory(host.disk, "/data")
    taken.close()
    assert [*checked.findings] == []
    totals = checked.balance.totals()
    return int(totals[ACCEPTED]), int(totals[PENDING])


async def test_an_overdue_day_leaves_from_its_own_file_in_due_order(boot: Boot) -> None:
    host = await boot.started(settings())
    day_ms = far_day(host)
    await put_over_day(await host.client(), day_ms, 40)
    await go_to(host, day_ms + 2 * DAY_MS)
    await out(host, 40)
    due = [host.fake().due_ms[sequence] for sequence in host.fake().stored]
    assert due == sorted(due)
    opened = host.server.parts.opened
    assert opened.files.days.is_whole(day_ms) and not opened.files.days.draining()
    assert minutes(host) == 0
    assert opened.files.dispatch.rows(DispatchKey(day_ms, True)) == 40
    assert [key for key in opened.files.dispatch.keys() if not key.coarse] == []
    host.check_balance(pending=0)
    assert check(host) == (40, 0)


async def test_a_day_that_is_not_over_or_not_small_is_split_into_minutes(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_sealing, "WHOLE_ROWS_MAX", 10)
    host = await boot.started(settings())
    day_ms = far_day(host)
    client = await host.client()
    await put_over_day(client, day_ms, 11)
    await put_over_day(client, day_ms + DAY_MS, 10)
    await go_to(host, day_ms + 2 * DAY_MS - MINUTE_MS)
    await out(host, 21)
    assert not host.server.parts.files.days.whole()
    assert minutes(host) == 21
    host.check_balance()


async def test_the_day_is_retired_with_the_counts_of_each_of_its_minutes(boot: Boot) -> None:
    host = await boot.started(settings())
    day_ms = far_day(host)
    receipts = await put_over_day(await host.client(), day_ms, 10)
    assert await (await host.client()).cancel(receipts[3]) == ["cancelled"]
    await go_to(host, day_ms + 2 * DAY_MS)
    await out(host, 9)
    await host.sleep_ms(30_000)
    opened = host.server.parts.opened
    assert ScheduleKey(day_ms, ScheduleSource.DAY) not in opened.files.schedule
    assert DispatchKey(day_ms, True) not in opened.files.dispatch
    assert len(opened.files.ledger) == 10
    assert opened.files.ledger.window(day_ms).delivered.tolist() == [1]
    assert opened.files.ledger.totals().cancelled.sum() == 1
    client = await host.client()
    assert set(await client.lookup(*receipts)) == {"retired"}
    assert set(await client.cancel(*receipts)) == {"retired"}
    host.check_balance(pending=0)
    assert check(host) == (10, 0)
    for lost in (False, True):
        await host.kill()
        if lost:  # then all of message_log is replayed
            host.disk.remove("/data/checkpoint")
        await host.start()
        await host.sleep_ms(3_000)
        assert ScheduleKey(day_ms, ScheduleSource.DAY) not in host.server.parts.files.schedule
        host.check_balance(pending=0)
        assert len(host.fake().stored) == 9
        assert check(host) == (10, 0)


async def test_cancel_lookup_copy_and_reschedule_meet_messages_of_the_day_as_any_others(boot: Boot) -> None:
    host = await boot.started(settings(dispatch={"backoff_ms_min": 100, "backoff_ms_max": 200}))
    day_ms = far_day(host)
    client = await host.client()
    first = await client.put("named", day_ms + HOUR_MS, message_id="n")
    receipts = await put_over_day(client, day_ms, 8)
    assert await client.cancel(receipts[0]) == ["cancelled"]
    host.fake().up = False
    await host.settled()
    await host.stop()
    host.clock.step(day_ms + DAY_MS + HOUR_MS - host.now_ms)
    await host.start()
    await host.until(lambda: host.server.parts.files.days.is_whole(day_ms))
    client = await host.client()
    assert await client.cancel(receipts[0]) == ["already_cancelled"]
    assert await client.lookup(receipts[0]) == ["cancelled"]
    late = await client.put("late", day_ms + DAY_MS - MINUTE_MS)
    again = await client.put("late copy", day_ms + DAY_MS - MINUTE_MS, message_id="l")
    twice = await client.put("late copy", day_ms + DAY_MS - MINUTE_MS, message_id="l")
    host.fake().up = True
    await out(host, 1 + 7 + 2)
    assert await client.lookup(first["receipt"], late["receipt"], again["receipt"]) == ["delivered"] * 3
    assert await client.lookup(twice["receipt"]) == ["deduplicated"]
    assert set(await client.cancel(*receipts[1:])) == {"delivered"}
    assert minutes(host) == 0, "a message that comes later lies in the file of the day as well"
    host.check_balance(pending=0)
    check(host)


async def test_a_clock_that_was_ahead_delivers_nothing_of_the_day_early(boot: Boot) -> None:
    host = await boot.started(settings(storage={"clock_hold_ms": 600_000}))
    day_ms = far_day(host)
    await put_over_day(await host.client(), day_ms, 30)
    host.fake().up = False
    await host.settled()
    now_ms = host.now_ms
    host.clock.step(10 * DAY_MS)
    await host.until(lambda: host.server.parts.files.days.is_whole(day_ms))
    await host.sleep_ms(2_000)
    host.clock.step(now_ms - host.now_ms)
    host.fake().up = True
    await host.sleep_ms(5_000)
    assert not host.fake().stored
    host.clock.step(day_ms + 12 * HOUR_MS - host.now_ms)
    await host.sleep_ms(5_000)
    assert 0 < len(host.fake().stored) < 30
    client = await host.client()
    await client.put("new", day_ms + 18 * HOUR_MS)
    host.clock.step(day_ms + DAY_MS - host.now_ms)
    await out(host, 31)
    assert all(host.fake().at_us[sequence] >= host.fake().due_ms[sequence] * 1000 for sequence in host.fake().stored)
    host.check_balance(pending=0)
    await host.restart_killed()
    await host.sleep_ms(2_000)
    assert len(host.fake().stored) == 31


def rebuild(host: Host) -> None:
    findings = Findings()
    taken = capture(host.disk, "/data", findings)
    carry_out(taken, plan_rebuild(taken, findings))
    taken.close()


@pytest.mark.parametrize("lost", ["days", "schedule_log"])
async def test_a_lost_file_of_a_day_is_rebuilt_and_nothing_is_delivered_again(boot: Boot, lost: str) -> None:
    host = await boot.started(settings(storage={"retention_ms": 30 * DAY_MS}))
    day_ms = far_day(host)
    await put_over_day(await host.client(), day_ms, 20)
    await go_to(host, day_ms + 2 * DAY_MS)
    await out(host, 20)
    path = host.server.parts.files.schedule.path(ScheduleKey(day_ms, ScheduleSource.DAY))
    await host.stop()
    host.disk.remove("/data/days" if lost == "days" else path)
    rebuild(host)
    assert check(host) == (20, 0)
    await host.start()
    await host.sleep_ms(10_000)
    assert len(host.fake().stored) == 20
    assert not host.server.parts.files.days.draining()
    host.check_balance(pending=0)
    assert check(host) == (20, 0)


async def test_a_day_whose_outcomes_were_lost_is_held_back_and_reported(boot: Boot) -> None:
    host = await boot.started(settings(storage={"retention_ms": 30 * DAY_MS}))
    day_ms = far_day(host)
    await put_over_day(await host.client(), day_ms, 20)
    await go_to(host, day_ms + 2 * DAY_MS)
    await out(host, 20)
    path = host.server.parts.files.dispatch.path(DispatchKey(day_ms, True))
    await host.stop()
    host.disk.remove(path)
    await host.start()
    await host.sleep_ms(10_000)
    assert len(host.fake().stored) == 20


async def test_a_message_that_comes_while_the_day_is_retired_keeps_its_files_and_counts_once(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await boot.started(settings())
    day_ms = far_day(host)
    await put_over_day(await host.client(), day_ms, 10)
    await go_to(host, day_ms + DAY_MS + HOUR_MS)
    await out(host, 10)
    late = await (await host.client()).put("late", day_ms + DAY_MS - 1)
    await out(host, 11)

    async def without_late(name: str, work: Any) -> Any:
        if name != "_enter":
            return work()
        return work.func({start: sequence - (start == day_ms) for start, sequence in work.args[0].items()})

    host.workers.around = without_late
    host.clock.step(4 * HOUR_MS)
    await host.sleep_ms(8_000)
    opened = host.server.parts.opened
    assert ScheduleKey(day_ms, ScheduleSource.DAY) in opened.files.schedule and opened.files.ledger.has_between(
        day_ms, day_ms + DAY_MS
    )
    host.check_balance(pending=0)
    assert check(host) == (11, 0)
    await host.kill()
    host.workers.around = None
    await host.start()
    host.check_balance(pending=0)
    assert check(host) == (11, 0)
    assert len(host.fake().stored) == 11
    await host.sleep_ms(12_000)
    assert not host.server.parts.files.schedule.keys()
    assert await (await host.client()).lookup(late["receipt"]) == ["retired"]
    host.check_balance(pending=0)
    assert check(host) == (11, 0)


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
async def test_a_file_that_a_retired_day_got_again_is_missed_when_it_is_lost(boot: Boot, log: str) -> None:
    host = await boot.started(settings())
    day_ms, now_ms = far_day(host), host.now_ms
    await put_over_day(await host.client(), day_ms, 5)
    await go_to(host, day_ms + 2 * DAY_MS)
    await out(host, 5)
    await host.sleep_ms(20_000)
    assert ScheduleKey(day_ms, ScheduleSource.DAY) not in host.server.parts.files.schedule
    host.clock.step(now_ms - host.now_ms)
    client = await host.client()
    await client.put("again", day_ms + 77 * MINUTE_MS)
    cancelled = await client.put("cancelled", day_ms + 78 * MINUTE_MS)
    assert await client.cancel(cancelled["receipt"]) == ["cancelled"]
    await host.settled()
    opened = host.server.parts.opened
    paths = {
        "schedule_log": opened.files.schedule.path(ScheduleKey(day_ms, ScheduleSource.DAY)),
        "dispatch_log": opened.files.dispatch.path(DispatchKey(day_ms, True)),
    }
    await host.stop()
    host.disk.remove(paths[log])
    taken, checked = check_directory(host.disk, "/data")
    taken.close()
    assert paths[log] in {finding.file for finding in checked.findings}
    await host.start()
    files = host.server.parts.files.schedule if log == "schedule_log" else host.server.parts.files.dispatch
    assert [*files.newly_lost] or not files.lost, "cancels that message_log still has are restored at once"
    assert await (await host.client()).lookup(cancelled["receipt"]) != ["pending"]


async def test_a_redispatch_finds_the_delivered_messages_of_a_day(boot: Boot) -> None:
    host = await boot.started(settings(storage={"retention_ms": 30 * DAY_MS}))
    day_ms = far_day(host)
    await put_over_day(await host.client(), day_ms, 10)
    await go_to(host, day_ms + 2 * DAY_MS)
    await out(host, 10)
    asked = {"from_ms": day_ms + MINUTE_MS, "to_ms": day_ms + DAY_MS, "dry_run": True}
    reply = await (await host.client()).request("redispatch", asked)
    assert reply["messages"] == 9


@pytest.mark.parametrize("seed", range(40))
async def test_every_message_leaves_once_over_crashes_and_cancels_at_any_moment(boot: Boot, seed: int) -> None:
    chance = Random(seed)
    host = await boot.started(settings(dispatch={"batch_messages_max": 7}))
    day_ms = far_day(host)
    client = await host.client()
    receipts = await put_over_day(client, day_ms, 25)
    receipts += await put_over_day(client, day_ms + DAY_MS, 25, "next")
    await client.put("a", day_ms + 5, message_id="x")
    await client.put("a", day_ms + 5, message_id="x")
    cancelled = set(chance.sample(receipts, 3))
    assert set(await client.cancel(*cancelled)) == {"cancelled"}
    await host.settled()
    await chance.choice([host.stop, host.kill, host.lose_power])()
    host.clock.step(day_ms + 2 * DAY_MS + chance.randrange(HOUR_MS) - host.now_ms)
    host.fake().delay_ms = chance.choice([0, 5, 20])
    for _ in range(6):
        await host.start()
        await host.sleep_ms(chance.choice([1, 10, 100, 1_000, 8_000]))
        if chance.random() < 0.7 and host.server.readiness.ready:
            client = await host.client()
            some = chance.sample(receipts, 4)
            answers = await client.cancel(*some)
            cancelled |= {one for one, answer in zip(some, answers, strict=True) if answer == "cancelled"}
        if chance.random() < 0.5:
            await host.sleep_ms(chance.choice([1, 100, 3_000]))
        end = chance.choice([host.stop, host.kill, host.lose_power])
        await (host.lose_power(chance.randrange(1 << 30)) if end == host.lose_power else end())
    host.fake().delay_ms = 0
    await host.start()
    wanted = 51 - len(cancelled)
    with trio.fail_after(200):
        while len(set(host.fake().stored)) < wanted:
            await host.sleep_ms(50)
    await host.sleep_ms(3_000)
    await host.settled()
    twice = sorted(sequence for sequence in set(host.fake().stored) if host.fake().stored.count(sequence) > 1)
    assert set(twice) <= host.fake().uncertain, "handed over again only where a crash left the result unknown"
    assert len(set(host.fake().stored)) == wanted
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["cancelled"], status["deduplicated"]) == (52, len(cancelled), 1)
    assert check(host) == (52, 0)
    host.clock.step(4 * HOUR_MS)
    await host.sleep_ms(30_000)
    host.check_balance(pending=0)
    assert not host.server.parts.files.schedule.keys()
    assert check(host) == (52, 0)


async def test_a_load_of_overdue_windows_is_compared_with_unwritten_outcomes_of_its_own_times_alone(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = boot(settings())
    known = (await host.start()).parts.state.decided
    now_ms = host.now_ms
    due_ms = now_ms - np.arange(1_000) * 1_000
    known.add(OutcomeBatch.filled(1_000, sequence=np.arange(1, 1_001), due_ms=due_ms, outcome=int(Outcome.DELIVERED)))
    compared: list[int] = []

    def counting(sequence: I64, others: I64) -> Any:
        compared.append(len(others))
        return is_member(sequence, others)

    monkeypatch.setattr(decided, "is_member", counting)
    asked = np.array([now_ms - 5_000, now_ms - 2_500, now_ms - 3_000])
    assert known.is_unknown(asked, np.array([6, 2_000, 4])).tolist() == [False, True, False]
    assert compared == [3]


async def test_a_whole_day_whose_file_is_empty_is_retired(boot: Boot) -> None:
    host = boot(settings())
    server = await host.start()
    day_ms = far_day(host)
    server.parts.files.schedule.prepare([ScheduleKey(day_ms, ScheduleSource.DAY)])  # as a loss of power leaves it
    await go_to(host, day_ms + DAY_MS + HOUR_MS, crash=Host.kill)
    await host.until(lambda: host.server.parts.files.days.is_whole(day_ms))
    host.clock.step(4 * HOUR_MS)
    await host.until(
        lambda: ScheduleKey(day_ms, ScheduleSource.DAY) not in host.server.parts.files.schedule, within_ms=60_000
    )
    host.check_balance(pending=0)
    check(host)
