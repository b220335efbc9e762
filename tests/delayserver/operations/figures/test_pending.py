"""The operation `pending` adds up counters: by minute and hour, over days in every state, as `status` counts them."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import InvalidArgument
from store.logs.schedule_log import ScheduleSource
from tests.delayserver.replay.test_day_tier import sources
from tests.fakes.host import Boot, Client, Host, faked_settings, small_settings

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


async def ask(client: Client, by: str = "minute", **arguments: Any) -> dict[str, Any]:
    return await client.request("pending", {"by": by} | arguments)


def counts(reply: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(row["start_ms"], row["width_ms"], row["pending"]) for row in reply["buckets"]]


async def same_as_status(host: Host, client: Client) -> int:
    """Let all be placed and written; then the buckets add up to what `status` says."""
    await host.settled()
    pending = int((await client.status())["pending"])
    for by in ("minute", "hour"):
        reply = await ask(client, by)
        assert (sum(row["pending"] for row in reply["buckets"]), reply["unplaced"]) == (pending, 0)
    return pending


async def test_messages_are_counted_in_the_minutes_and_hours_of_their_due_times(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    hour = (host.now_ms // HOUR_MS + 1) * HOUR_MS
    for due_ms, count in ((hour, 2), (hour + MINUTE_MS - 1, 1), (hour + 7 * MINUTE_MS, 3), (hour + HOUR_MS, 4)):
        await client.send(*[{"subject": "s", "body": "", "due_ms": due_ms} for _ in range(count)])
    await host.settled()
    assert counts(await ask(client)) == [
        (hour, MINUTE_MS, 3),
        (hour + 7 * MINUTE_MS, MINUTE_MS, 3),
        (hour + HOUR_MS, MINUTE_MS, 4),
    ]
    assert counts(await ask(client, "hour")) == [(hour, HOUR_MS, 6), (hour + HOUR_MS, HOUR_MS, 4)]
    between = await ask(client, from_ms=hour + 1, to_ms=hour + HOUR_MS)
    assert counts(between) == [(hour + 7 * MINUTE_MS, MINUTE_MS, 3)]


async def test_delivered_and_cancelled_messages_are_pending_no_more(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    receipts = [(await client.put(f"{i}", host.now_ms + 2 * HOUR_MS))["receipt"] for i in range(5)]
    await client.put("now", host.now_ms)
    await host.sleep_ms(500)
    assert await same_as_status(host, client) == 5
    assert await client.cancel(*receipts[:2]) == ["cancelled"] * 2
    assert await same_as_status(host, client) == 3
    host.clock.step(2 * HOUR_MS)
    await host.sleep_ms(2_000)
    assert await same_as_status(host, client) == 0
    assert counts(await ask(client)) == []


async def test_pages_hold_every_bucket_once(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    first = (host.now_ms // HOUR_MS + 1) * HOUR_MS
    for i in range(5):
        for seconds in range(2):
            await client.put("", first + i * 3 * MINUTE_MS + seconds)
    await client.put("", (host.now_ms // DAY_MS + 9) * DAY_MS + HOUR_MS)
    await host.settled()
    found, page = [], await ask(client, max=2)
    while page["next_ms"] is not None:
        assert len(page["buckets"]) == 2
        found += counts(page)
        page = await ask(client, from_ms=page["next_ms"], max=2)
    found += counts(page)
    assert found == counts(await ask(client))
    assert [pending for _, _, pending in found] == [2, 2, 2, 2, 2, 1]


async def test_a_far_day_is_one_bucket_and_stays_right_while_it_goes_to_its_minutes(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"fine_horizon_ms": HOUR_MS}))
    day = (host.now_ms // DAY_MS + 2) * DAY_MS
    receipts = [(await client.put(f"{i}", day + i * HOUR_MS, message_id=f"m{i}"))["receipt"] for i in range(12)]
    await client.put("copy", day + HOUR_MS, message_id="m1")
    await client.cancel(*receipts[:4])
    assert await same_as_status(host, client) == 8
    assert counts(await ask(client, "hour")) == [(day, DAY_MS, 8)]
    await host.restart_killed()
    client = await host.client()
    assert await same_as_status(host, client) == 8
    tier = host.server.parts.replay.tier
    step, seen = tier.step, []

    async def looked_at() -> None:
        rows = sources(host)
        if rows[ScheduleSource.DAY] and rows[ScheduleSource.FROM_DAY] == rows[ScheduleSource.DAY]:
            seen.append(counts(await ask(client, "hour")))
        await step()

    tier.step = looked_at  # type: ignore[method-assign]
    host.clock.step(day - HOUR_MS - host.now_ms + 1_000)
    await host.until(lambda: bool(seen), within_ms=60_000)
    await host.sleep_ms(1_000)
    assert seen == [[(day, DAY_MS, 8)]], "the day is still one bucket, although its minutes have all rows"
    assert await same_as_status(host, client) == 8
    assert counts(await ask(client, "hour")) == [(day + i * HOUR_MS, HOUR_MS, 1) for i in range(4, 12)]
    host.clock.step(8 * HOUR_MS)
    await host.sleep_ms(2_000)
    assert await same_as_status(host, client) == 4


async def test_other_units_are_refused(boot: Boot) -> None:
    host = await boot.started(small_settings())
    with pytest.raises(InvalidArgument, match="by must be"):
        await ask(await host.client(), "week")


@pytest.mark.parametrize(("window_ms", "by"), [(90_000, "minute"), (5_400_000, "hour")])
async def test_pages_hold_every_window_that_is_wider_than_their_buckets(boot: Boot, window_ms: int, by: str) -> None:
    host, client = await boot.connected(small_settings(storage={"window_ms": window_ms}))
    starts = [(host.now_ms // window_ms + n) * window_ms for n in range(1, 5)]
    for start in starts:
        await client.put("", start + 7)
    await host.settled()
    page = await ask(client, by, max=1)
    found = counts(page)
    while page["next_ms"] is not None:
        page = await ask(client, by, from_ms=page["next_ms"], max=1)
        found += counts(page)
    assert found == [(start, window_ms, 1) for start in starts] == counts(await ask(client, by))
    between = await ask(client, by, from_ms=starts[1], to_ms=starts[3])
    assert [row["start_ms"] for row in between["buckets"]] == starts[1:3]
