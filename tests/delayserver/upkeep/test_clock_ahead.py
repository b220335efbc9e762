"""A clock that is far ahead, or far behind, for seconds: what it delivers is delivered, and nothing else is lasting."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.config.settings import Settings
from delayserver.recover.checking.check import check_directory
from delayserver.recover.checking.retired_ahead import retired_ahead
from store.errors import DiskFullError
from store.records.batches import LedgerBatch
from store.tables.ledger import Ledger
from tests.fakes.host import Boot, Host, small_settings

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def settings(**parts: Any) -> Settings:
    """A clock has to hold for three minutes, which is longer than any excursion here."""
    return small_settings(**parts | {"storage": {"clock_hold_ms": 3 * MINUTE_MS} | parts.pop("storage", {})})


async def ahead_for_seconds(host: Host, by_ms: int = 10 * DAY_MS) -> None:
    host.clock.step(by_ms)
    await host.sleep_ms(12_000)
    host.clock.step(-by_ms)
    await host.sleep_ms(1_000)


async def test_a_clock_that_was_ahead_for_seconds_closes_no_window(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    now_ms = host.now_ms
    for day in range(1, 9):
        await client.put(str(day), now_ms + day * DAY_MS)
    await ahead_for_seconds(host)
    again = [await client.put("again", now_ms + hours * HOUR_MS) for hours in range(1, 192, 5)]
    for day in range(1, 9):
        await client.put("beside", now_ms + day * DAY_MS)
    assert len(host.server.parts.files.ledger) == 0
    await host.restart()
    client = await host.client()
    await client.put("after a restart", now_ms + 5 * DAY_MS)
    assert set(await client.lookup(*[result["receipt"] for result in again])) == {"pending"}
    host.check_balance(pending=len(again) + 9)


async def test_windows_in_the_ledger_are_closed_each_for_itself(boot: Boot) -> None:
    host, client = await boot.connected(settings(storage={"clock_hold_ms": 1_000}))
    now_ms = host.now_ms
    retired = [now_ms + day * DAY_MS for day in range(1, 9)]
    for due_ms in retired:
        await client.put("m", due_ms)
    await ahead_for_seconds(host)
    assert len(host.server.parts.files.ledger) == 8
    for _ in range(2):
        beside = [due_ms + minutes * MINUTE_MS for due_ms in retired for minutes in (-1, 1)]
        results = await client.send(*[{"subject": "s", "body": "m", "due_ms": due} for due in sorted(beside + retired)])
        assert [result.get("error", "") for result in results] == ["", "too_old", ""] * 8
        column = b"".join(due_ms.to_bytes(8, "little") for due_ms in sorted(beside + retired))
        lengths = (1).to_bytes(4, "little") * 24
        reply = await client.request(
            "send", {"count": 24, "subject": "s", "due_ms": column, "bodies": b"m" * 24, "body_length": lengths}
        )
        assert reply["accepted"] == 16
        assert [(index, error) for index, error, *_ in reply["rejected"]] == [(3 * k + 1, "too_old") for k in range(8)]
        await host.restart()
        client = await host.client()
    assert (await client.request("status"))["storage"]["retired_windows_ahead"] == 8
    host.server.parts.upkeep.retention.closed.check_invariants()
    await host.kill()
    taken, checked = check_directory(host.disk, "/data")
    ahead = retired_ahead(taken, host.now_ms)
    taken.close()
    assert checked.findings.clean
    assert ahead.starts_ms == [due_ms // MINUTE_MS * MINUTE_MS for due_ms in retired]


async def test_a_window_that_could_not_be_retired_is_open_again(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(_ledger: Ledger, rows: LedgerBatch) -> None:
        tries.append(int(rows.start_ms[0]))
        raise DiskFullError("full")

    monkeypatch.setattr(Ledger, "append", full)
    host, client = await boot.connected(settings(storage={"clock_hold_ms": 1_000}))
    due_ms = host.now_ms + 2 * DAY_MS
    await client.put("m", due_ms)
    await ahead_for_seconds(host)
    assert set(tries) == {due_ms // MINUTE_MS * MINUTE_MS}
    await client.put("beside", due_ms)
    host.check_balance(pending=1)


async def test_a_start_with_a_clock_that_is_ahead_removes_nothing_until_it_has_held(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    receipt = (await client.put("m", host.now_ms))["receipt"]
    await host.sleep_ms(2_000)
    await host.kill()
    host.clock.step(10 * DAY_MS)
    await host.start()
    await host.sleep_ms(2 * MINUTE_MS)
    client = await host.client()
    assert await client.lookup(receipt) == ["delivered"]
    await host.sleep_ms(2 * MINUTE_MS)
    client = await host.client()
    assert await client.lookup(receipt) == ["retired"]


async def test_retention_goes_on_by_the_believed_time_through_starts_and_small_steps(boot: Boot) -> None:
    """Neither stops it: a server that is started every two minutes, on a clock that is stepped all the time."""
    host, client = await boot.connected(settings(storage={"retention_ms": 2 * MINUTE_MS}))
    receipt = (await client.put("m", host.now_ms))["receipt"]
    for _ in range(4):
        for _ in range(4):
            await host.sleep_ms(MINUTE_MS // 2)
            host.clock.step(200)
        await host.restart()
    client = await host.client()
    assert await client.lookup(receipt) == ["retired"]


def small_broker(**more: object) -> dict[str, object]:
    return {"segment_bytes": 4096, "retention_ms": MINUTE_MS, "unconsumed_retention_ms": 2 * HOUR_MS} | more


async def fill_store(host: Host) -> None:
    client = await host.client()
    for number in range(6):
        await client.put(f"{number}" * 1_500, host.now_ms)
    await host.sleep_ms(7_000)


async def pull_all(host: Host) -> int:
    return len(await (await host.client()).pull())


async def test_unconsumed_messages_outlive_a_clock_that_is_ahead_for_seconds(boot: Boot) -> None:
    host = await boot.started(settings(broker=small_broker()))
    await host.sleep_ms(70_000)
    await fill_store(host)
    await ahead_for_seconds(host)
    assert await pull_all(host) == 6


async def test_unconsumed_messages_outlive_a_clock_that_is_behind_for_seconds(boot: Boot) -> None:
    """Its segments took the time of then for that of their last message, and were days old when it was right again."""
    host = await boot.started(settings(broker=small_broker()))
    await fill_store(host)
    host.clock.step(-10 * DAY_MS)
    await fill_store(host)
    host.clock.step(10 * DAY_MS)
    await host.sleep_ms(5 * MINUTE_MS)
    assert await pull_all(host) == 12


async def test_unconsumed_messages_go_after_their_time(boot: Boot) -> None:
    host = await boot.started(settings(broker=small_broker()))
    await fill_store(host)
    host.clock.step(3 * HOUR_MS)
    await host.sleep_ms(5 * MINUTE_MS)
    assert await pull_all(host) < 6
