"""The list of pending messages has each that waits once, in the order of due times, at a bounded cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delayserver.operations.listing import list_scan, pending_messages, shown_messages
from store.logs.schedule_log import ScheduleSource
from tests.delayserver.operations.messages.test_transactions import prepare
from tests.delayserver.replay.test_day_tier import coarse_settings, drain_slowly, sources
from tests.fakes.host import Boot, Client, Host, faked_settings, small_settings

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


async def page_of(client: Client, **arguments: Any) -> dict[str, Any]:
    return await client.request("pending", {"by": "message"} | arguments)


async def listed(client: Client, page: int = 100, after: str | None = None, **arguments: Any) -> list[dict[str, Any]]:
    """All pages behind a place together."""
    rows: list[dict[str, Any]] = []
    while True:
        reply = await page_of(client, max=page, after=after, **arguments)
        assert len(reply["messages"]) <= page
        rows += reply["messages"]
        after = reply["next"]
        if after is None:
            return rows


async def receipts(client: Client, page: int = 100, **arguments: Any) -> list[str]:
    return [row["receipt"] for row in await listed(client, page, **arguments)]


async def test_a_message_is_listed_with_what_it_is_until_it_has_an_outcome(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    assert await page_of(client, count=True) == {"messages": [], "next": None, "matching": 0}
    now_ms = host.now_ms
    due_ms = now_ms + HOUR_MS
    first = await client.put("body", due_ms, message_id="m", tag="t", expires_ms=due_ms + 5, properties={"a": "b"})
    other = await client.put("", due_ms + 1)
    reply = await page_of(client, bodies=True, count=True)
    assert (reply["next"], reply["matching"]) == (None, 2)
    row, second = reply["messages"]
    assert now_ms * 1_000 <= row.pop("accepted_us") <= host.now_ms * 1_000
    assert row == {
        "receipt": first["receipt"], "message_id": "m", "subject": "s", "due_ms": due_ms, "body_bytes": 4, "tag": "t",
        "expires_ms": due_ms + 5, "properties": {"a": "b"}, "body": b"body",
    }  # fmt: skip
    assert (second["receipt"], second["message_id"]) == (other["receipt"], other["message_id"])
    assert (second["properties"], second["body"]) == ({}, b"")
    assert "body" not in (await listed(client))[0]
    await client.cancel(first["receipt"])
    assert await receipts(client) == [other["receipt"]]
    host.clock.step(HOUR_MS)
    await host.sleep_ms(2_000)
    assert await receipts(client) == []


async def test_only_messages_of_clients_are_listed(boot: Boot) -> None:
    """No copies, no transactions and their timers, no redeliveries."""
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms + HOUR_MS
    mine = (await client.put("m", due_ms, message_id="m"))["receipt"]
    await client.put("m", due_ms, message_id="m")
    await prepare(client, "p", due_ms=due_ms, check_after_ms=30 * MINUTE_MS)
    await client.put("now", host.now_ms)
    await host.sleep_ms(500)
    (pulled,) = await client.pull()
    await client.request(
        "nack", {"subject": "s", "group": "g", "count": 1, "deliveries": pulled["delivery"], "delay_ms": HOUR_MS}
    )
    await host.settled()
    assert await receipts(client) == [mine]


async def put_some(host: Host, client: Client, count: int = 40) -> list[dict[str, Any]]:
    """Messages in some minutes and far days, in no order of due times, in records of several."""
    sent: list[dict[str, Any]] = []
    for number in range(count):
        due_ms = host.now_ms + HOUR_MS + number * 7_919 % 11 * 13_000 + number % 3 * (2 * DAY_MS + HOUR_MS)
        message = {"subject": f"s.{number % 4}", "due_ms": due_ms, "tag": f"t{number % 2}", "body": str(number)}
        sent += await client.send(message | {"properties": {"number": str(number)}}, message)
    await host.settled()
    return sent


def in_order(sent: list[dict[str, Any]], latest: bool = False) -> list[str]:
    return [row["receipt"] for row in sorted(sent, key=lambda row: (row["due_ms"], row["sequence"]), reverse=latest)]


@pytest.mark.parametrize("latest", [False, True])
async def test_pages_of_any_size_have_each_message_once_in_order(boot: Boot, latest: bool) -> None:
    host, client = await boot.connected(faked_settings(storage={"fine_horizon_ms": HOUR_MS}))
    sent = await put_some(host, client)
    for page in (1, 3, 7, 79, 80, 81):
        assert await receipts(client, page, latest_first=latest) == in_order(sent, latest), page
    await host.restart_killed()
    client = await host.client()
    assert await receipts(client, latest_first=latest) == in_order(sent, latest)
    rows = (await page_of(client, places=True, latest_first=latest))["messages"]
    behind = await receipts(client, after=rows[30]["place"], latest_first=latest)
    assert behind == in_order(sent, latest)[31:]


async def test_a_selection_is_listed(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    sent = await put_some(host, client)

    async def check(wanted: Callable[[dict[str, Any], int], bool], **selection: Any) -> None:
        expected = [row for place, row in enumerate(sent) if wanted(row, place)]
        assert await receipts(client, 7, **selection) == in_order(expected), selection
        counted = await page_of(client, max=1, count=True, **selection)
        assert (counted.get("matching"), "at_least" in counted) == (len(expected), False)

    await check(lambda row, _: row["subject"] == "s.1", subject="s.1")
    await check(lambda row, _: row["subject"] in ("s.1", "s.2"), subject="s.[12]")
    await check(lambda _row, _: True, subject="s*")
    await check(lambda _row, _: False, subject="nothing")
    await check(lambda _row, _: False, subject="S.*")
    await check(lambda _row, place: place // 2 % 2 == 1, tag="t1")
    await check(lambda _row, _: False, tag="no such tag")
    await check(lambda _row, place: place % 2 == 0 and place >= 60, where="number >= 30")
    await check(lambda row, place: place % 2 == 0 and row["subject"] == "s.0", where="number >= 0", subject="s.0")
    middle = sorted(row["due_ms"] for row in sent)[40]
    await check(lambda row, _: row["due_ms"] >= middle, from_ms=middle)
    await check(lambda row, _: row["due_ms"] < middle, to_ms=middle)
    await check(lambda row, _: row["due_ms"] == middle, from_ms=middle, to_ms=middle + 1)
    await check(lambda _row, _: False, from_ms=middle, to_ms=middle)


async def test_a_wrong_request_is_refused(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await put_some(host, client)
    after = (await page_of(client, max=1))["next"]
    for wrong in ({"after": "no place"}, {"after": after, "subject": "s.*"}, {"after": after, "latest_first": True}):
        assert await client.refused("pending", {"by": "message"} | wrong) == "invalid_argument"
    assert await client.refused("pending", {"by": "message", "where": "a ="}) == "filter_invalid"


@pytest.mark.parametrize("latest", [False, True])
async def test_a_large_window_comes_in_parts(boot: Boot, monkeypatch: pytest.MonkeyPatch, latest: bool) -> None:
    """Each message comes once, also where others are sent to the same window and leave it meanwhile."""
    monkeypatch.setattr(list_scan, "PART_ROWS", 16)
    host, client = await boot.connected(small_settings())
    start_ms = (host.now_ms // MINUTE_MS + 60) * MINUTE_MS
    waiting = []
    for number in range(60):
        waiting.append((await client.put("m", start_ms + number * 7_919 % 1_000))["receipt"])
        await host.sleep_ms(5)  # a record each
    came = [(await client.put("m", start_ms + 500))["receipt"]]
    gone = waiting[::7]
    await host.settled()
    rows: list[dict[str, Any]] = []
    after = None
    while True:
        page = await page_of(client, max=3, after=after, latest_first=latest)
        rows += page["messages"]
        after = page["next"]
        if after is None:
            break
        came.append((await client.put("m", start_ms + len(rows) * 13 % 1_000))["receipt"])
        if gone:
            await client.cancel(gone.pop())
        await host.settled()
    found = [row["receipt"] for row in rows]
    assert len(found) == len(set(found))
    assert set(waiting) - set(waiting[::7]) <= set(found) <= set(waiting) | set(came)
    first = [row["due_ms"] for row in rows[:16]]
    assert first == sorted(first, reverse=latest)


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("part_rows", [4, 1_000])
async def test_a_day_may_move_to_minutes_between_two_pages(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, latest: bool, part_rows: int
) -> None:
    monkeypatch.setattr(list_scan, "PART_ROWS", part_rows)
    monkeypatch.setattr(pending_messages, "FILE_ROWS", 0)
    for pages_before in range(8):
        await list_while_a_day_moves(boot(coarse_settings()), latest, part_rows, pages_before)


async def list_while_a_day_moves(host: Host, latest: bool, part_rows: int, pages_before: int) -> None:
    drain_slowly(host, 3_000)
    client = await host.start_connected()
    day = (host.now_ms // DAY_MS + 2) * DAY_MS
    sent = [await client.put("m", day + 6 * HOUR_MS + i * 7_919 % 30 * 40_000) for i in range(30)]
    found: list[str] = []
    after, pages, stepped = None, 0, False
    while True:
        if pages == pages_before:
            host.clock.step(day - 30 * MINUTE_MS - host.now_ms)
            await host.until(lambda: bool(host.server.parts.files.days.draining()), within_ms=60_000)
            stepped = True
        elif stepped:
            await host.sleep_ms(1_000)
        reply = await page_of(client, max=4, after=after, latest_first=latest)
        found += [row["receipt"] for row in reply["messages"]]
        after, pages = reply["next"], pages + 1
        if after is None:
            break
    assert sorted(found) == sorted(row["receipt"] for row in sent), pages_before
    await host.until(lambda: not sources(host)[ScheduleSource.DAY], within_ms=120_000)
    assert await receipts(client, 4, latest_first=latest) == in_order(sent, latest) or part_rows == 4
    await host.stop()


async def test_an_overdue_message_is_listed_while_its_node_is_down(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    host.fake().up = False
    sent = [(await client.put("m", host.now_ms + i * 30_000))["receipt"] for i in range(6)]
    await host.sleep_ms(200_000)
    assert await receipts(client, 4) == sent
    host.fake().up = True
    await host.sleep_ms(120_000)
    assert await receipts(client) == []


async def test_a_page_ends_when_it_has_read_enough(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_messages, "ROWS_SCANNED_MAX", 30)
    monkeypatch.setattr(pending_messages, "FILE_ROWS", 1)
    host, client = await boot.connected(small_settings())
    for minute in range(10):
        await client.send(*[{"subject": "s", "body": "m", "due_ms": host.now_ms + minute * MINUTE_MS + HOUR_MS}] * 10)
    last = await client.put("m", host.now_ms + 2 * HOUR_MS, "other")
    pages, after = 0, None
    found: list[str] = []
    while True:
        reply = await page_of(client, subject="o*", after=after, count=True)
        assert reply.get("at_least", False) is (reply["next"] is not None)
        found += [row["receipt"] for row in reply["messages"]]
        pages, after = pages + 1, reply["next"]
        if after is None:
            break
    assert (found, pages) == ([last["receipt"]], 4)
    counted = await page_of(client, max=2, count=True)
    assert (counted["matching"], counted["at_least"]) == (30, True)


async def test_a_page_reads_no_minute_that_it_does_not_need(boot: Boot) -> None:
    host = boot(small_settings())
    client = await host.start_connected()
    await client.send(*[{"subject": "s", "body": "m", "due_ms": host.now_ms + i * MINUTE_MS} for i in range(3, 90)])
    await host.settled()
    schedule = host.server.parts.files.schedule
    read: list[int] = []
    part = schedule.part

    def noted(key: Any, *arguments: Any, **rest: Any) -> Any:
        read.append(key.start_ms)
        return part(key, *arguments, **rest)

    schedule.part = noted  # type: ignore[method-assign]
    from_ms = (host.now_ms // MINUTE_MS + 50) * MINUTE_MS
    await page_of(client, from_ms=from_ms, to_ms=from_ms + 2 * MINUTE_MS)
    assert sorted(read) == [from_ms, from_ms + MINUTE_MS]
    read.clear()
    await page_of(client, subject="unknown")
    await page_of(client, tag="unknown")
    assert read == []


async def test_bodies_end_a_page_where_the_reply_has_no_room(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_messages, "CONTENTS_BYTES_MAX", 1_000)
    host, client = await boot.connected(small_settings())
    sent = [(await client.put("x" * 400, host.now_ms + HOUR_MS + i * 20_000))["receipt"] for i in range(7)]
    sizes, after = [], None
    found: list[str] = []
    while True:
        reply = await page_of(client, bodies=True, after=after)
        assert all(row["body"] == b"x" * 400 for row in reply["messages"])
        sizes.append(len(reply["messages"]))
        found += [row["receipt"] for row in reply["messages"]]
        after = reply["next"]
        if after is None:
            break
    assert found == sent
    assert max(sizes) <= 3
