"""`pending` by subject: counters that go on over crashes, and are true for every way in which a message ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from delayserver.protocol.errors import InvalidArgument, NotReady
from delayserver.replay.placing import Placing
from delayserver.server.delay_server import DelayServer
from delayserver.state.replay_round import Round
from store.logs.schedule_key import ScheduleSource
from store.records.batches import MessageBatch
from store.tables import checkpoint
from tests.fakes.host import DATA_DIR, Boot, Client, Host, faked_settings, small_settings

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


async def ask(client: Client, **arguments: Any) -> dict[str, Any]:
    return await client.request("pending", {"by": "subject"} | arguments)


async def counts(host: Host, client: Client) -> dict[str, int]:
    """By subject; they add up to what `status` counts."""
    await host.until(lambda: host.server.parts.state.balance.subjects.is_counted)
    host.server.parts.state.balance.check_invariants()
    found = {row["subject"]: row["pending"] for row in (await ask(client))["subjects"]}
    assert sum(found.values()) == (await client.status())["pending"]
    return found


async def started(boot: Boot, **parts: Any) -> tuple[Host, Client]:
    host = await boot.started(small_settings(**parts))
    return host, await host.client()


async def test_every_way_in_which_a_message_ends_counts_for_its_subject(boot: Boot) -> None:
    host, client = await started(boot)
    far = host.now_ms + HOUR_MS
    await client.send(*[{"subject": name, "body": "", "due_ms": far} for name in ("a", "b", "b", "c")])
    assert await counts(host, client) == {"a": 1, "b": 2, "c": 1}
    receipt = (await client.put("", far, "cancelled"))["receipt"]
    await client.put("", far, "copied", message_id="m")
    await client.put("", far, "copied", message_id="m")
    await client.put("", host.now_ms, "delivered")
    await client.put("", host.now_ms + 500, "expired", expires_ms=host.now_ms + 400)
    moved = (await client.put("", far, "moved"))["receipt"]
    await client.request("reschedule", {"items": [{"receipt": moved, "due_ms": far + MINUTE_MS}]})
    before = await counts(host, client)
    assert before["delivered"] == before["expired"] == 1 and before["moved"] in (1, 2)
    await client.cancel(receipt)
    await host.sleep_ms(2_000)
    await host.settled()
    assert await counts(host, client) == {"a": 1, "b": 2, "c": 1, "copied": 1, "moved": 1}


async def test_a_transaction_counts_once_and_a_redelivery_never(boot: Boot) -> None:
    host, client = await started(boot)
    due = {"due_ms": host.now_ms + HOUR_MS, "subject": "paid", "body": ""}
    prepared = (await client.request("prepare", {"group": "p", "messages": [due] * 3}))["results"]
    assert await counts(host, client) == {"paid": 3}
    await client.request("commit", {"receipts": [prepared[0]["receipt"]]})
    await client.request("rollback", {"receipts": [prepared[1]["receipt"]]})
    await client.put("", host.now_ms, "s")
    await host.sleep_ms(500)
    [message] = await client.pull("s")
    nack = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"], "delay_ms": 60_000}
    await client.request("nack", nack)
    await host.settled()
    assert await counts(host, client) == {"paid": 2}


@pytest.mark.parametrize("end", ["stop", "kill", "lose_power"])
async def test_the_counters_go_on_over_restarts(boot: Boot, end: str) -> None:
    host, client = await started(boot, storage={"checkpoint_interval_ms": 500})
    expected: Counter[str] = Counter()
    for life in range(4):
        far = host.now_ms + HOUR_MS
        receipts = []
        for i in range(6):
            receipts.append((await client.put("", far + i * MINUTE_MS, f"s{i % 3}"))["receipt"])
            expected[f"s{i % 3}"] += 1
            await host.sleep_ms(150)
        await client.put("", host.now_ms, "gone")
        await client.cancel(*receipts[:2])
        expected["s0"] -= 1
        expected["s1"] -= 1
        if life % 2:
            await host.sleep_ms(1_000)
        await getattr(host, end)()
        await host.start()
        assert host.server.parts.state.balance.subjects.is_counted, (
            "the checkpoint has the counts, and the start adds what came behind it"
        )
        client = await host.client()
        await host.sleep_ms(500)
        await host.settled()
        assert await counts(host, client) == expected


async def test_a_far_day_goes_to_its_minutes_and_over_a_crash(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"fine_horizon_ms": HOUR_MS}))
    day = (host.now_ms // DAY_MS + 2) * DAY_MS
    receipts = [(await client.put(f"{i}", day + i * HOUR_MS, f"s{i % 2}"))["receipt"] for i in range(12)]
    await client.cancel(*receipts[:4])
    await host.restart_killed()
    client = await host.client()
    assert await counts(host, client) == {"s0": 4, "s1": 4}
    host.clock.step(day - HOUR_MS - host.now_ms + 1_000)
    await host.sleep_ms(50)
    await host.restart_killed()
    client = await host.client()
    assert await counts(host, client) == {"s0": 4, "s1": 4}
    await host.sleep_ms(5_000)
    await host.restart_killed()
    client = await host.client()
    assert await counts(host, client) == {"s0": 4, "s1": 4}
    host.clock.step(day + DAY_MS - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 8, within_ms=60_000)
    await host.settled()
    assert await counts(host, client) == {}


async def test_pages_hold_every_subject_once_and_a_time_range_is_refused(boot: Boot) -> None:
    host, client = await started(boot)
    names = [f"s{number:04}" for number in range(2_500)]
    await client.send(*[{"subject": name, "body": "", "due_ms": host.now_ms + HOUR_MS} for name in names])
    assert await counts(host, client) == dict.fromkeys(names, 1)
    found, page = [], await ask(client, max=1_000)
    while page["next"] is not None:
        found += page["subjects"]
        page = await ask(client, max=1_000, after=page["next"])
    assert [row["subject"] for row in found + page["subjects"]] == names
    assert await ask(client, after=1 << 20) == {"subjects": [], "next": None}
    with pytest.raises(InvalidArgument, match="from_ms does not go with"):
        await ask(client, from_ms=5)


async def test_metrics_have_the_subjects_with_the_most_pending_messages(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await started(boot)
    rows = [
        {"subject": f"s{size}", "body": "", "due_ms": host.now_ms + HOUR_MS}
        for size in range(1, 9)
        for _ in range(size)
    ]
    await client.send(*rows)
    await host.until(lambda: host.server.parts.state.balance.subjects.is_counted)
    monkeypatch.setattr("delayserver.operations.figures.metrics.SUBJECTS_MAX", 3)
    figures = await client.request("metrics")
    assert figures["subjects_counted"] is True
    assert figures["subjects"] == [{"subject": f"s{size}", "pending": size} for size in (8, 7, 6)]


def without_counts(host: Host) -> None:
    """Make the checkpoint one of an older program, which did not count."""
    path = f"{DATA_DIR}/checkpoint"
    found = checkpoint.read(host.disk, path)
    assert found is not None and found.pending is not None
    checkpoint.write(host.disk, path, replace(found, pending=None))


@pytest.mark.parametrize("step", ["_units", "_pending_in"])
async def test_a_day_that_goes_to_its_minutes_while_it_is_counted_counts_once(
    boot: Boot, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its files are listed it is sealed and in two places; behind that it is drained."""
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_FILES", 1)
    monkeypatch.setattr("delayserver.replay.day_drain.PIECES_MAX", 1)
    host, client = await boot.connected(faked_settings(storage={"fine_horizon_ms": HOUR_MS}))
    day = (host.now_ms // DAY_MS + 2) * DAY_MS
    for number in range(12):
        await client.put("", day + number * HOUR_MS, f"s{number % 2}")
    await host.stop()
    without_counts(host)
    reached, gate = trio.Event(), trio.Event()

    async def later(name: str, work: Callable[[], Any]) -> Any:
        if name == step and not reached.is_set():
            reached.set()
            with trio.move_on_after(120):
                await gate.wait()
        return work()

    host.workers.around = later
    await host.start()
    await reached.wait()
    schedule = host.server.parts.files.schedule
    [key] = [key for key in schedule.keys() if key.source == ScheduleSource.DAY]
    placed = Placing.place_drained

    async def placed_one(placing: Placing, batch: MessageBatch) -> Round:
        done = await placed(placing, batch)
        if step == "_units":
            gate.set()
        return done

    monkeypatch.setattr(Placing, "place_drained", placed_one)
    host.clock.step(day - HOUR_MS - host.now_ms + 1_000)
    await host.until(lambda: schedule.rows(key) == 0, within_ms=60_000)
    gate.set()
    assert await counts(host, await host.client()) == {"s0": 6, "s1": 6}


async def test_a_directory_of_an_older_program_is_counted_once(boot: Boot) -> None:
    """Its checkpoint has no counts."""
    host, client = await started(boot)
    await client.send(*[{"subject": name, "body": "", "due_ms": host.now_ms + HOUR_MS} for name in ("a", "b", "b")])
    await host.stop()
    without_counts(host)
    gate = trio.Event()

    def held(server: DelayServer) -> None:
        run = server.parts.upkeep.subject_counting.run

        async def later() -> None:
            await gate.wait()
            await run()

        server.parts.upkeep.subject_counting.run = later  # type: ignore[method-assign]

    host.before_run = held
    client = await host.start_connected()
    with pytest.raises(NotReady, match="being counted"):
        await ask(client)
    assert (await client.request("metrics"))["subjects_counted"] is False
    gate.set()
    client = await host.client()
    await client.put("", host.now_ms + HOUR_MS, "c")
    assert await counts(host, client) == {"a": 1, "b": 2, "c": 1}
    await host.stop()
    after = checkpoint.read(host.disk, f"{DATA_DIR}/checkpoint")
    assert after is not None and after.pending is not None
    assert after.pending.rows.tolist() == [1, 2, 1]
