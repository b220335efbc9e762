"""The list of open transactions has each once, whatever restarts and drained days there were, at a bounded cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delayserver.operations.messages import open_transactions
from tests.delayserver.operations.messages.test_transactions import end, prepare
from tests.delayserver.replay.test_day_tier import DAY_MS, coarse_settings, drain_slowly
from tests.fakes.host import DATA_DIR, Boot, Client, small_settings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def listed(client: Client, page: int = 1_024) -> list[dict[str, Any]]:
    """All pages together."""
    rows: list[dict[str, Any]] = []
    after = None
    while True:
        reply = await client.request("transactions", {"max": page, "after": after})
        assert len(reply["transactions"]) <= page
        rows += reply["transactions"]
        after = reply["next"]
        if after is None:
            return rows


async def receipts(client: Client, page: int = 1_024) -> list[str]:
    return [row["receipt"] for row in await listed(client, page)]


async def test_a_transaction_is_listed_with_its_terms_until_it_ends(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    assert await listed(client) == []
    now_ms = host.now_ms
    due_ms = now_ms + HOUR_MS
    kept, gone, visible = [
        each["receipt"] for each in await prepare(client, *"abc", due_ms=due_ms, check_after_ms=2_000, checks_max=3)
    ]
    rows = await listed(client)
    assert [row["receipt"] for row in rows] == [kept, gone, visible]
    row = rows[0]
    assert now_ms * 1_000 <= row.pop("accepted_us") <= host.now_ms * 1_000
    assert now_ms + 2_000 <= row.pop("next_check_ms") <= host.now_ms + 2_001
    assert row == {
        "receipt": kept, "subject": "s", "due_ms": due_ms, "group": "p", "checks": 0, "checks_max": 3, "policy": "rollback",
    }  # fmt: skip
    await end(client, "rollback", gone)
    await end(client, "commit", visible)
    assert await receipts(client) == [kept]
    await host.sleep_ms(5_000)
    (row,) = await listed(client)
    assert (row["receipt"], row["checks"]) == (kept, 2)
    assert row["accepted_us"] < (now_ms + 1_000) * 1_000, "the time of the prepare, not of a check-back"
    await host.sleep_ms(5_000)
    assert await listed(client) == [], "its policy has ended it"


@pytest.mark.parametrize("stop", ["stop", "kill"])
async def test_open_transactions_are_listed_after_a_restart(boot: Boot, stop: str) -> None:
    host, client = await boot.connected(small_settings(storage={"checkpoint_interval_ms": 500}))
    prepared = [
        (await prepare(client, "m", due_ms=host.now_ms + HOUR_MS, check_after_ms=after_ms))[0]["receipt"]
        for after_ms in (1_500, 30_000, 40 * MINUTE_MS)
    ]
    await end(client, "commit", (await prepare(client, "m", due_ms=host.now_ms + HOUR_MS))[0]["receipt"])
    await host.sleep_ms(4_000)
    until_ms = host.server.parts.state.balance.timers_until_ms
    for _ in range(2):
        await (host.kill() if stop == "kill" else host.stop())
        client = await host.start_connected()
        assert sorted(await receipts(client)) == sorted(prepared)
        assert host.server.parts.state.balance.timers_until_ms == until_ms, "the checkpoint says how far timers may lie"


async def test_without_a_checkpoint_timers_may_lie_anywhere(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    (far,) = await prepare(client, "m", due_ms=host.now_ms, check_after_ms=20 * MINUTE_MS)
    await host.stop()
    host.disk.remove(f"{DATA_DIR}/checkpoint")
    await host.start()
    assert await receipts(await host.client()) == [far["receipt"]]


async def test_pages_of_any_size_have_each_transaction_once(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    prepared: list[str] = []
    for after_ms in (5_000, 70_000, 5_000, 10 * MINUTE_MS):
        rows = await prepare(client, *["m"] * 5, due_ms=host.now_ms + HOUR_MS, check_after_ms=after_ms)
        prepared += [row["receipt"] for row in rows]
    for page in (1, 3, 7, 20, 21):
        found = await receipts(client, page)
        assert sorted(found) == sorted(prepared), page
    assert await client.refused("transactions", {"after": "no place"}) == "invalid_argument"


async def test_timers_of_far_days_are_listed_before_their_day_moves_to_minutes_and_meanwhile(boot: Boot) -> None:
    host = boot(coarse_settings())
    drain_slowly(host, 10_000)
    server = await host.start()
    client = await host.client()
    prepared = [
        (await prepare(client, "m", due_ms=host.now_ms + HOUR_MS, check_after_ms=after_ms))[0]["receipt"]
        for after_ms in (2 * DAY_MS, 3 * DAY_MS)
    ]
    assert await receipts(client, 1) == prepared
    host.clock.step(2 * DAY_MS - 6 * HOUR_MS)
    for draining in (True, False):
        await host.until(lambda: bool(server.parts.files.days.draining()) == draining, within_ms=60_000)  # noqa: B023
        assert await receipts(client) == prepared


async def test_a_list_reads_no_file_behind_the_latest_timer(boot: Boot) -> None:
    host = boot(small_settings())
    read = 0

    async def around(name: str, work: Callable[[], Any]) -> Any:
        nonlocal read
        read += name == "_timers"
        return work()

    host.workers.around = around
    client = await host.start_connected()
    await client.send(
        *[{"subject": "s", "body": "m", "due_ms": host.now_ms + minute * MINUTE_MS} for minute in range(3, 50)]
    )
    await prepare(client, "m", due_ms=host.now_ms + HOUR_MS, check_after_ms=1_000)
    assert len(await listed(client)) == 1
    assert read <= 2


async def test_a_page_ends_when_it_has_read_enough(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "ROWS_SCANNED_MAX", 100)
    monkeypatch.setattr(open_transactions, "FILE_ROWS", 0)
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms + 1_500
    for _ in range(10):
        await client.send(*[{"subject": "s", "body": "m", "due_ms": due_ms} for _ in range(100)])
    (prepared,) = await prepare(client, "m", due_ms=due_ms, check_after_ms=1_400)
    pages, after = 0, None
    found: list[str] = []
    while True:
        reply = await client.request("transactions", {"after": after})
        found += [row["receipt"] for row in reply["transactions"]]
        pages, after = pages + 1, reply["next"]
        if after is None:
            break
    assert found == [prepared["receipt"]]
    assert pages > 1
