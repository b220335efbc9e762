"""Requests that name messages, by ids or many at a time: a search may be long, and what is true may change meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from delayserver.runtime.fair_turns import SLICE_ITEMS
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.records.record import HEADER_BYTES, decode_header
from store.records.segment import FILE_HEADER_BYTES
from tests.delayserver.load.test_damage_at_rest import only_file
from tests.fakes.host import Boot, Client, faked_settings


async def send_named(client: Client, count: int, due_ms: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Send messages with ids of their own; their names, and their receipts."""
    names = [{"subject": "s", "message_id": f"id{number}", "due_ms": due_ms} for number in range(count)]
    receipts = [row["receipt"] for row in await client.send(*[name | {"body": "b"} for name in names])]
    return names, receipts


@pytest.mark.parametrize("operation", ["cancel", "lookup"])
async def test_a_name_beside_a_reschedule_to_the_same_time_is_the_one_that_lives(boot: Boot, operation: str) -> None:
    host = await boot.started(faked_settings())
    one, two = await host.client(), await host.client()
    outcomes = set()
    for number in range(20):
        due_ms, name = host.now_ms + 500, f"name{number}"
        receipt = (await one.put("old", due_ms, message_id=name))["receipt"]
        moved = await one.ask("reschedule", {"items": [{"receipt": receipt, "due_ms": due_ms, "body": "new"}]})
        asked = await two.ask(operation, {"messages": [{"subject": "s", "message_id": name, "due_ms": due_ms}]})
        (moved_to,) = (await one.reply(moved))["results"]
        (answer,) = (await two.reply(asked))["results"]
        outcomes.add((moved_to["outcome"], answer["outcome"]))
        await host.sleep_ms(1_000)
        if answer["outcome"] in ("cancelled", "already_cancelled"):
            assert host.fake().texts == [], (moved_to["outcome"], answer["outcome"])
        host.fake().stored.clear()
    assert any(first == "cancelled" for first, _ in outcomes), "in some rounds the reschedule came first"


@pytest.mark.parametrize("rows", [1, 5_000])
async def test_an_id_is_looked_for_beside_the_event_loop_where_its_window_is_large(boot: Boot, rows: int) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_800_000
    ids = b"".join(b"%08d" % number for number in range(rows))
    columns = {"count": rows, "subject": "s", "due_ms": due_ms, "bodies": b"x" * rows, "body_length": 1}
    await client.request("send", columns | {"message_ids": ids, "message_id_length": 8})
    await host.settled()
    in_threads = []

    async def note(name: str, work: Callable[[], Any]) -> Any:
        in_threads.append(name)
        return work()

    host.workers.around = note
    name = {"subject": "s", "message_id": f"{rows - 1:08}", "due_ms": due_ms}
    (found,) = (await client.request("lookup", {"messages": [name]}))["results"]
    assert found["outcome"] == "pending"
    assert ("by_ids" in in_threads) == (rows > 1)


@pytest.mark.parametrize("operation", ["lookup", "cancel", "reschedule"])
async def test_others_run_while_many_messages_are_named(boot: Boot, operation: str) -> None:
    count = 500
    host, client = await boot.connected(faked_settings())
    names, receipts = await send_named(client, count, host.now_ms + 3_600_000)
    await host.settled()
    # To reschedule one takes a commit, which is a pause; what is not there does without.
    moved = [{**name, "message_id": "nobody's", "message_due_ms": name["due_ms"]} for name in names]
    requests: dict[str, list[dict[str, Any]]] = {
        "lookup": [{"receipts": receipts}, {"messages": names}],
        "cancel": [{"messages": names}],
        "reschedule": [{"items": moved}],
    }
    for arguments in requests[operation]:
        passes = 0
        async with trio.open_nursery() as nursery:

            async def count_passes() -> None:
                nonlocal passes
                while True:
                    await trio.lowlevel.checkpoint()
                    passes += 1

            nursery.start_soon(count_passes)
            results = (await client.request(operation, arguments))["results"]
            nursery.cancel_scope.cancel()
        expected = {"lookup": "pending", "cancel": "cancelled", "reschedule": "unknown"}[operation]
        assert [result["outcome"] for result in results] == [expected] * count
        assert passes >= count // SLICE_ITEMS


async def test_files_that_many_named_messages_need_are_read_once(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    names, receipts = await send_named(client, 50, host.now_ms // 60_000 * 60_000 + 3_600_000)
    await host.settled()
    (group,) = server.parts.dispatch.groups
    calls: Counter[str] = Counter()

    def counted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)

    counted(server.parts.files.schedule, "find_ids")
    counted(group.rows.queue, "retries")
    for arguments in ({"receipts": receipts}, {"messages": names}):
        results = (await client.request("lookup", arguments))["results"]
        assert [result["outcome"] for result in results] == ["pending"] * 50
    assert calls == {"find_ids": 1, "retries": 2}
    results = (await client.request("cancel", {"messages": names + names[:5]}))["results"]
    assert sorted(result["outcome"] for result in results) == ["already_cancelled"] * 5 + ["cancelled"] * 50
    assert calls["find_ids"] == 3, "and once more, whether names of what was cancelled already stand for others by now"


async def test_a_long_lookup_gives_only_answers_that_were_true_since_it_began(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads the outcomes of one window, messages of others are delivered, fail and are cancelled."""
    host = boot(faked_settings(dispatch={"workers": 1, "batch_messages_max": 1, "backoff_ms_min": 60_000}))
    server = await host.start()
    client, other = await host.client(), await host.client()
    start_ms = host.now_ms // 60_000 * 60_000
    host.clock.step(start_ms + 60_000 - host.now_ms)
    early, far = [(await client.put("m", due_ms))["receipt"] for due_ms in (start_ms - 60_000, start_ms + 600_000)]
    await host.until(lambda: len(host.fake().stored) == 1)
    await host.settled()
    host.fake().gate = answers = trio.Event()
    fails, waits = [(await client.put("m", start_ms + 60_000))["receipt"] for _ in range(2)]
    await host.until(lambda: len(host.fake().attempts) == 2)
    pinned, reading, go_on = server.parts.state.decided.pinned, trio.Event(), trio.Event()

    @asynccontextmanager
    async def on_a_slow_disk(key: DispatchKey) -> AsyncIterator[OutcomeIndex]:
        if key.start_ms == start_ms - 60_000:
            reading.set()
            await go_on.wait()
        async with pinned(key) as index:
            yield index

    monkeypatch.setattr(server.parts.state.decided, "pinned", on_a_slow_disk)
    asked = await client.ask("lookup", {"receipts": [early, fails, waits, far]})
    await reading.wait()
    assert await other.cancel(far) == ["cancelled"]
    host.fake().up = False
    answers.set()
    await host.until(lambda: not any(group.rows.running for group in server.parts.dispatch.groups))
    go_on.set()
    results = (await client.reply(asked))["results"]
    assert [result["outcome"] for result in results] == ["delivered", "in_flight", "pending", "cancelled"]
    assert (await other.lookup(fails, waits)) == ["retrying", "pending"]


async def test_a_damaged_id_hides_its_own_message_only(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    names, _ = await send_named(client, 3, host.now_ms + 3_600_000)
    await host.settled()
    path = only_file(host, "schedule_log", ".direct.log")
    host.disk.flip_bit(path, host.disk.content(path).index(b"id1"))
    asked = [*names, {**names[0], "message_id": "id3"}]
    results = (await client.request("lookup", {"messages": asked}))["results"]
    answers = [result.get("error") or result["outcome"] for result in results]
    assert answers == ["pending", "message_damaged", "pending", "unknown"]
    assert any(path in text for text in (await client.status())["corruption"])


@pytest.mark.parametrize("operation", ["lookup", "cancel", "reschedule"])
async def test_a_name_whose_newest_message_damage_hides_is_not_answered_by_the_one_before(
    boot: Boot, operation: str
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    (name,), (receipt,) = await send_named(client, 1, due_ms)
    await host.settled()
    await client.request("reschedule", {"items": [{"receipt": receipt, "due_ms": due_ms, "body": "new"}]})
    await host.settled()
    path = only_file(host, "schedule_log", ".direct.log")
    header = decode_header(host.disk.content(path)[FILE_HEADER_BYTES:][:HEADER_BYTES], FILE_HEADER_BYTES)
    host.disk.flip_bit(path, header.end + HEADER_BYTES + 20)
    item = {**name, "message_due_ms": due_ms, "due_ms": due_ms + 60_000}
    asked = {"items": [item]} if operation == "reschedule" else {"messages": [name]}
    (result,) = (await client.request(operation, asked))["results"]
    assert result.get("error") == "message_damaged", "the newest one is not cancelled"
    await host.sleep_ms(95_000)
    assert host.fake().texts == ["new"]
