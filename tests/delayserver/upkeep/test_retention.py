"""Rule 10: nothing is removed by age alone, and what is removed stays in the balance."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import trio

from delayserver.operations.messages.locator import Located
from delayserver.recover.checking.check import check_directory
from delayserver.recover.reading.subject_balances import ACCEPTED
from delayserver.state.replay_round import Round
from delayserver.upkeep.on_their_way import OnTheirWay
from delayserver.upkeep.window_removal import WindowRemoval
from store.errors import DiskError, DiskFullError, StoreError
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64, MessageBatch
from store.records.file_header import FILE_DISPATCH, FILE_SCHEDULE, FileHeader
from store.tables.ledger import Ledger
from tests.fakes.host import Boot, Host, faked_settings

MINUTE_MS = 60_000


def settings(**parts: dict[str, object]):  # type: ignore[no-untyped-def]
    storage = {"retention_ms": 2 * MINUTE_MS, "message_log_retention_ms": 10_000} | parts.pop("storage", {})
    return faked_settings(storage=storage, **parts)


async def test_complete_windows_go_after_their_time_and_incomplete_ones_never(boot: Boot) -> None:
    host, client = await boot.connected(settings(dispatch={"backoff_ms_min": 100, "backoff_ms_max": 1_000}))
    host.fake().refuse = lambda batch: batch.sequence == 1
    stuck = (await client.put("stuck", host.now_ms))["receipt"]
    done = (await client.put("done", host.now_ms + MINUTE_MS))["receipt"]
    host.clock.step(MINUTE_MS)
    await host.sleep_ms(1_000)
    assert await client.lookup(stuck, done) == ["retrying", "delivered"]
    host.clock.step(60 * MINUTE_MS)
    await host.sleep_ms(12_000)
    assert await client.lookup(stuck, done) == ["retrying", "retired"]
    status = host.check_balance(pending=1)
    assert (status["accepted"], status["delivered"]) == (2, 1)
    host.fake().refuse = None
    await host.sleep_ms(12_000)
    assert await client.lookup(stuck, done) == ["retired", "retired"]
    assert host.fake().texts == ["done", "stuck"]
    host.check_balance(pending=0)
    assert not host.server.parts.files.schedule.keys()
    assert host.server.parts.files.dispatch.keys() == []


async def test_windows_within_retention_stay(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    receipt = (await client.put("m", host.now_ms))["receipt"]
    host.clock.step(2 * MINUTE_MS - 20_000)
    await host.sleep_ms(12_000)
    assert await client.lookup(receipt) == ["delivered"]


async def held_replay(host: Host) -> trio.Event:
    """Let replay place nothing until the event is set."""
    free, held = trio.Event(), trio.Event()

    async def wait() -> None:
        held.set()
        await free.wait()
        host.server.parts.replay.tier.is_due = False

    host.server.parts.replay.tier.step, host.server.parts.replay.tier.is_due = wait, True  # type: ignore[method-assign]
    host.server.parts.state.log_queue.arrived.ring()
    await held.wait()
    return free


@pytest.mark.parametrize("where", ["in the log", "in the commit"])
async def test_a_window_stays_while_a_message_for_it_is_on_its_way(boot: Boot, where: str) -> None:
    """Its files show that the message is a copy of one that was delivered."""
    host, client = await boot.connected(
        settings(storage={"replay_lag_bytes_max": 1 if where == "in the commit" else 1 << 20})
    )
    due_ms = host.now_ms
    await client.put("first", due_ms, message_id="id")
    await host.settled()
    free = await held_replay(host)
    await client.put("other", due_ms + 1_000 * MINUTE_MS)  # the log is ahead of the replay
    copy = {"subject": "s", "due_ms": due_ms, "body": "copy", "message_id": "id"}
    number = await client.ask("send", {"messages": [copy]})
    await host.sleep_ms(100)
    host.clock.step(30 * MINUTE_MS)
    await host.sleep_ms(12_000)
    assert host.server.parts.files.schedule.keys()
    other = await host.client()
    (late,) = await other.send({"subject": "s", "due_ms": due_ms, "body": "late"})
    assert late["error"] == "too_old"
    positions = host.server.parts.state.positions
    assert (positions.accepted_sequence.value == 2) == (where == "in the commit")
    free.set()
    assert "receipt" in (await client.reply(number))["results"][0]
    await host.settled()
    assert host.fake().texts == ["first"]
    assert host.check_balance(pending=1)["deduplicated"] == 1
    await host.sleep_ms(12_000)
    assert [key.start_ms > due_ms for key in host.server.parts.files.schedule.keys()] == [True], "the other message's"
    host.check_balance(pending=1)


async def test_a_reschedule_that_waited_is_refused_where_its_window_was_closed_meanwhile(boot: Boot) -> None:
    host = await boot.started(settings())
    client, other = await host.client(), await host.client()
    free = await held_replay(host)
    receipt = (await client.put("m", host.now_ms + 120 * MINUTE_MS))["receipt"]
    number = await other.ask("reschedule", {"items": [{"receipt": receipt, "due_ms": host.now_ms - 30_000}]})
    await host.sleep_ms(100)
    host.clock.step(30 * MINUTE_MS)
    free.set()
    (result,) = (await other.reply(number))["results"]
    assert result["error"] == "too_old"
    assert await client.lookup(receipt) == ["pending"]
    host.check_balance(pending=1)


async def test_the_balance_holds_at_every_crash_while_a_window_is_retired(boot: Boot) -> None:
    for operations in range(1, 24, 4):
        host, client = await boot.connected(settings(), name=f"host{operations}")
        due_ms = host.now_ms
        receipts = [(await client.put(str(i), due_ms, message_id=f"id{i}"))["receipt"] for i in range(4)]
        await client.put("copy", due_ms, message_id="id1")
        far = (await client.put("far", due_ms + 90 * MINUTE_MS))["receipt"]
        await host.sleep_ms(2_000)
        host.clock.step(30 * MINUTE_MS)
        host.disk.crash_after(operations)
        await host.sleep_ms(12_000)
        await host.restart_unpowered(operations)
        await host.sleep_ms(12_000)
        client = await host.client()
        assert set(await client.lookup(*receipts)) == {"retired"}, operations
        assert await client.lookup(far) == ["pending"]
        status = host.check_balance(pending=1)
        assert (status["accepted"], status["delivered"], status["deduplicated"]) == (6, 4, 1), operations
        assert not status["corruption"]
        await host.kill()


@pytest.mark.parametrize("operation", ["cancel", "lookup"])
async def test_a_window_that_goes_between_the_search_and_the_answer_is_retired_and_a_cancel_of_it_is_no_new_one(
    boot: Boot, operation: str
) -> None:
    host, client = await boot.connected(settings())
    server = host.server
    receipts = [(await client.put(str(number), host.now_ms + 500))["receipt"] for number in range(3)]
    assert await client.cancel(receipts[0]) == ["cancelled"]
    await host.sleep_ms(1_000)
    locate = server.parts.messages.cancellation.locate

    async def locate_and_retire(sequence: I64, due_ms: I64) -> Located:
        found = await locate(sequence, due_ms)
        await server.parts.upkeep.retention.retire_windows()
        return found

    server.parts.messages.cancellation.locate = locate_and_retire  # type: ignore[method-assign]
    host.clock.step(30 * MINUTE_MS)
    server.parts.opened.believable.now_us()
    await host.sleep_ms(2_000)
    assert server.parts.opened.believable.now_ms() == host.now_ms
    ask = client.cancel if operation == "cancel" else client.lookup
    assert await ask(*receipts) == ["retired"] * 3
    assert (await host.balanced(pending=0))["cancelled"] == 1


@pytest.mark.parametrize("moment", ["before it is counted", "after it"])
@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
async def test_a_message_placed_while_its_window_enters_the_ledger_is_kept_and_nothing_counts_twice(
    boot: Boot, checkpoint: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(settings())
    server = host.server
    due_ms = host.now_ms
    await client.put("early", due_ms, message_id="one")
    await host.sleep_ms(5_000)
    held = trio.Event()
    server.parts.replay.tier.step, server.parts.replay.tier.is_due = held.wait, True  # type: ignore[method-assign]
    # Replay is slow, and comes back when the window is past its retention.
    server.parts.state.log_queue.arrived.ring()
    await host.sleep_ms(100)
    late = (await client.put("late", due_ms, message_id="two"))["receipt"]
    window = ScheduleKey(due_ms // MINUTE_MS * MINUTE_MS, ScheduleSource.DIRECT)

    async def enter_beside_replay(name: str, work: Callable[[], Any]) -> Any:
        if name != "_enter":
            return work()
        if moment == "after it":
            work()
        log = server.parts.files.log
        (entry,) = log.read(server.parts.state.positions.replayed.value, log.synced, 1 << 20)
        assert isinstance(entry.batch, MessageBatch)
        server.parts.replay.placing.place_batch(entry.batch, Round(entry.end, 0), ScheduleSource.DIRECT)
        return work() if moment == "before it is counted" else None

    async def nothing(_: OnTheirWay) -> set[int]:
        return set()

    host.workers.around = enter_beside_replay
    monkeypatch.setattr(OnTheirWay, "windows", nothing)  # or it would wait; this is the second line of defence
    host.clock.step(30 * MINUTE_MS)
    await host.until(lambda: server.parts.files.schedule.rows(window) == 2, within_ms=12_000)
    assert server.parts.files.ledger.has(window.start_ms)
    await host.sleep_ms(100)
    await host.kill()
    host.workers.around = None
    taken, checked = check_directory(host.disk, "/data")
    taken.close()
    assert ([*checked.findings], checked.balance.totals()[ACCEPTED]) == ([], 2)
    if checkpoint == "lost":
        host.disk.remove("/data/checkpoint")
    await host.start()
    await host.sleep_ms(2_000)
    assert host.fake().texts == ["early", "late"]
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["delivered"]) == (2, 2)
    await host.sleep_ms(12_000)
    assert await (await host.client()).lookup(late) == ["retired"]
    assert not host.server.parts.files.schedule.keys()
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["delivered"]) == (2, 2)
    await host.restart_killed()
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["delivered"]) == (2, 2)


async def test_message_log_is_retired_only_behind_a_checkpoint_and_after_its_time(boot: Boot) -> None:
    host, client = await boot.connected(
        settings(storage={"message_log_segment_bytes": 1 << 16, "checkpoint_interval_ms": 20_000})
    )
    for number in range(12):
        await client.put(str(number) + "x" * 30_000, host.now_ms + 60 * MINUTE_MS)
    await host.settled()
    segments = len(host.server.parts.files.log.segments())
    assert segments > 3
    await host.sleep_ms(17_000)
    assert len(host.server.parts.files.log.segments()) == segments, "no checkpoint yet"
    await host.sleep_ms(25_000)
    assert len(host.server.parts.files.log.segments()) < 3
    await host.kill()
    host.disk.remove("/data/checkpoint")
    await host.start()
    host.check_balance(pending=12)
    host.clock.step(61 * MINUTE_MS)
    await host.until(lambda: len(host.fake().stored) == 12, within_ms=2_000)


async def test_a_message_that_comes_too_late_for_a_retired_window_is_refused(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    due_ms = host.now_ms
    await client.put("m", due_ms, message_id="id")
    host.clock.step(30 * MINUTE_MS)
    await host.sleep_ms(12_000)
    assert not host.server.parts.files.dispatch.rows(DispatchKey(due_ms // MINUTE_MS * MINUTE_MS, False))
    host.clock.step(-29 * MINUTE_MS)
    (result,) = await client.send({"subject": "s", "body": "again", "due_ms": due_ms, "message_id": "id"})
    assert result["error"] == "too_old", "its id is forgotten, so a copy could not be recognised"
    assert host.fake().texts == ["m"]


async def test_a_full_disk_keeps_windows_for_a_later_pass_and_ends_nothing(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    first_ms = host.now_ms
    windows = 60  # their counts do not fit into the page that the ledger has already
    receipts = [(await client.put("m", first_ms + place * MINUTE_MS))["receipt"] for place in range(windows)]
    host.clock.step(windows * MINUTE_MS)
    await host.sleep_ms(2_000)
    host.clock.step(60 * MINUTE_MS)
    host.disk.capacity_bytes = host.disk.used_bytes
    await host.sleep_ms(40_000)  # what the first windows gave back is room for the others
    host.disk.capacity_bytes = None
    assert set(await client.lookup(*receipts)) == {"retired"}
    assert host.check_balance(pending=0)["delivered"] == windows


async def test_a_ledger_of_many_records_is_written_anew_while_the_server_runs(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.tables.ledger.SPARE_RECORDS_MAX", 3)
    host, client = await boot.connected(settings())
    due_ms = host.now_ms
    receipts = [(await client.put(str(minute), due_ms + minute * MINUTE_MS))["receipt"] for minute in range(8)]
    await host.sleep_ms(8 * MINUTE_MS)
    host.clock.step(30 * MINUTE_MS)
    await host.sleep_ms(12_000)
    size = host.disk.size("/data/ledger.log")
    assert len(host.server.parts.files.ledger) == 8 and size < 8 * 160
    await host.restart_killed()
    assert host.disk.size("/data/ledger.log") == size
    client = await host.client()
    assert await client.lookup(*receipts) == ["retired"] * 8
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["delivered"]) == (8, 8)


@pytest.mark.parametrize(
    "error", [DiskFullError("full"), DiskError("/data/ledger.log", "open", errno.EMFILE, "too many open files")]
)
async def test_a_ledger_that_cannot_be_written_anew_is_left_for_ten_minutes(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    monkeypatch.setattr("store.tables.ledger.SPARE_RECORDS_MAX", 0)
    host, client = await boot.connected(settings())
    tries = []

    def refused(_ledger: Ledger) -> None:
        tries.append(host.now_ms)
        raise error

    monkeypatch.setattr(Ledger, "compact", refused)
    await client.put("gone", host.now_ms)
    host.clock.step(30 * MINUTE_MS)
    await host.sleep_ms(60_000)
    assert len(tries) == 1
    await host.sleep_ms(10 * MINUTE_MS)
    assert len(tries) == 2
    host.check_balance(pending=0)


async def test_a_window_whose_entry_in_the_ledger_is_damaged_counts_as_retired(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    receipt = (await client.put("gone", host.now_ms))["receipt"]
    await host.sleep_ms(1_000)
    host.clock.step(30 * MINUTE_MS)
    await host.sleep_ms(12_000)
    assert await client.lookup(receipt) == ["retired"]
    host.disk.flip_bit("/data/ledger.log", 100)
    assert await client.cancel(receipt) == ["retired"]
    assert await client.lookup(receipt) == ["retired"]


async def test_a_window_that_a_load_takes_while_it_enters_the_ledger_goes_behind_the_load(boot: Boot) -> None:
    """A clock that was far ahead steps back into the window."""
    host = await boot.started(settings())
    await (await host.client()).put("m", host.now_ms)
    await host.sleep_ms(1_000)
    await host.kill()
    host.clock.step(30 * MINUTE_MS)
    loads, read = trio.Event(), trio.Event()

    async def load_beside_entering(name: str, work: Callable[[], Any]) -> Any:
        if name == "_enter":
            host.clock.step(-30 * MINUTE_MS)
            await loads.wait()
        elif name == "read" and host.now_ms < after_ms:
            loads.set()
            await read.wait()
        return work()

    after_ms = host.now_ms - 10 * MINUTE_MS
    host.workers.around = load_beside_entering
    server = await host.start()
    with trio.fail_after(60):
        await loads.wait()
    await host.sleep_ms(1_000)
    assert host.died_of is None and server.parts.files.schedule.keys()
    read.set()
    host.clock.step(30 * MINUTE_MS)
    await host.sleep_ms(12_000)
    assert host.died_of is None and not server.parts.files.schedule.keys()
    assert host.fake().texts == ["m"]
    host.check_balance(pending=0)


@pytest.mark.parametrize("damage", ["flipped", "unreadable", "unreadable once"])
async def test_a_ledger_that_is_damaged_while_the_server_starts_ends_no_start(
    boot: Boot, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = boot(settings())
    server = await host.start()
    await (await host.client()).put("m", host.now_ms)
    await host.settled()
    server.parts.upkeep.removal.remove = lambda _start: False  # type: ignore[method-assign,assignment]
    host.clock.step(30 * MINUTE_MS)
    await host.until(lambda: len(server.parts.files.ledger) > 0, within_ms=60_000)
    await host.kill()
    finish, path = WindowRemoval.finish_interrupted, "/data/ledger.log"
    left = [errno.EIO]

    def refuse(operation: str, asked: str) -> int:
        return left.pop() if left and operation == "pread" and asked == path else 0

    def damaged(removal: WindowRemoval) -> None:
        size = host.disk.size(path)
        if damage == "flipped":
            host.disk.flip_bit(path, size - 8)
        elif damage == "unreadable":
            host.disk.unreadable[path] = [(size - 8, size)]
        else:
            host.disk.refuse = refuse
        finish(removal)

    monkeypatch.setattr(WindowRemoval, "finish_interrupted", damaged)
    server = await host.start()
    assert host.died_of is None and not server.parts.files.schedule.keys()
    assert host.status()["delivered"] == 1
    await host.sleep_ms(12_000)
    assert host.died_of is None
    assert host.fake().texts == ["m"]


async def test_windows_enter_the_ledger_some_at_a_time_so_that_a_stop_waits_for_few(boot: Boot) -> None:
    """After a downtime of days thousands go in one pass."""
    host, client = await boot.connected(settings())
    first_ms, windows = host.now_ms, 60
    for place in range(windows):
        await client.put("m", first_ms + place * MINUTE_MS)
    host.clock.step(windows * MINUTE_MS)
    await host.sleep_ms(2_000)
    sizes: list[int] = []

    async def count(name: str, work: Callable[[], Any]) -> Any:
        entered = len(host.server.parts.files.ledger)
        result = work()
        if name == "_enter":
            sizes.append(len(host.server.parts.files.ledger) - entered)
        return result

    host.workers.around = count
    host.clock.step(60 * MINUTE_MS)
    await host.until(lambda: sum(sizes) == windows, within_ms=20_000)
    assert max(sizes) <= 16
    await host.sleep_ms(2_000)
    assert not host.server.parts.files.schedule.keys()
    host.check_balance(pending=0)


async def test_windows_that_cannot_go_do_not_hold_back_the_others(boot: Boot) -> None:
    host, client = await boot.connected(settings())
    server = host.server
    first_ms, windows, damaged = host.now_ms, 60, 40
    for place in range(windows):
        await client.put("m", first_ms + place * MINUTE_MS)
    host.clock.step(windows * MINUTE_MS)
    await host.sleep_ms(2_000)
    for path in host.disk.files("/data/dispatch_log/")[:damaged]:
        host.disk.unreadable[path] = [(64, 1 << 20)]
    host.clock.step(60 * MINUTE_MS)
    await host.sleep_ms(12_000)
    assert len(server.parts.files.ledger) == windows - damaged
    host.disk.unreadable.clear()
    await host.sleep_ms(12_000)
    assert len(server.parts.files.ledger) == windows
    host.check_balance(pending=0)


@pytest.mark.parametrize(("log", "kind"), [("dispatch_log", FILE_DISPATCH), ("schedule_log", FILE_SCHEDULE)])
async def test_a_complete_window_with_a_file_of_another_server_stays_and_ends_no_server(
    boot: Boot, log: str, kind: int
) -> None:
    host = await boot.started(settings())
    start_ms = host.now_ms - host.now_ms % MINUTE_MS
    client = await host.client()
    await client.put("done", host.now_ms)
    await client.put("other", host.now_ms + MINUTE_MS)
    host.clock.step(MINUTE_MS)
    await host.until(lambda: len(host.fake().texts) == 2)
    await host.settled()
    await host.stop()
    path = host.disk.files(f"/data/{log}/2")[0]
    host.disk.overwrite(path, 0, FileHeader(kind, 99, start_ms, MINUTE_MS).encode())
    await host.start()
    host.clock.step(60 * MINUTE_MS)
    await host.sleep_ms(30_000)
    assert host.died_of is None, host.died_of
    assert len(host.server.parts.files.ledger) == 1
    assert path in host.disk.files(f"/data/{log}")
    assert any(path in text for text in host.status()["corruption"])
