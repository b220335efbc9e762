"""Rule 1: an acknowledgement means durable; a failed sync is final; a full disk refuses and loses nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from delayserver.protocol.errors import DelayServerError, DiskFull, StorageFailed
from delayserver.protocol.frames import encode_request
from delayserver.protocol.receipts import derived_message_id, format_receipt
from store.errors import StoreError
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, small_settings, texts
from tests.fakes.rows import messages


def leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    assert error is not None
    return [error]


async def test_the_event_loop_waits_for_small_syncs_while_the_disk_is_quick(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected()
    server = host.server
    await client.put("first", host.now_ms + 60_000)  # its subject is new, and its file
    await host.settled()
    log = server.parts.files.log
    append, monotonic_us = log.append_durably, host.clock.monotonic_us
    sync_us = spent_us = 0
    in_threads: list[str] = []

    def append_slowly(batches: Any) -> Any:
        nonlocal spent_us
        spent_us += sync_us
        return append(batches)

    async def note(name: str, work: Callable[[], Any]) -> Any:
        in_threads.append(name)
        return work()

    monkeypatch.setattr(log, "append_durably", append_slowly)
    monkeypatch.setattr(host.clock, "monotonic_us", lambda: monotonic_us() + spent_us)
    host.workers.around = note
    counts = []
    for takes_us in (100_000, 1, 100_000):
        sync_us = takes_us
        for number in range(42):
            if number == 40:  # by now it is known; one of two reads of the fake network is a step of all that is ready
                in_threads.clear()
            await client.put(f"{number}", host.now_ms + 60_000)
        counts.append(in_threads.count("_append"))
    assert counts == [2, 0, 2]
    host.check_balance(pending=127)


@pytest.mark.parametrize("seed", range(6))
async def test_acknowledged_messages_survive_a_loss_of_power_in_the_same_instant(boot: Boot, seed: int) -> None:
    host, client = await boot.connected()
    receipts = [(await client.put(f"m{i}", host.now_ms + 60_000))["receipt"] for i in range(5)]
    (cancelled,) = await client.cancel(receipts[0])
    await host.restart_unpowered(seed)
    client = await host.client()
    assert cancelled == "cancelled"
    assert await client.lookup(*receipts) == ["cancelled"] + ["pending"] * 4
    assert (await host.balanced(pending=4))["accepted"] == 5


async def test_a_failed_sync_is_final_and_every_waiting_caller_gets_the_error(boot: Boot) -> None:
    host = await boot.started()
    safe = (await (await host.client()).put("safe", host.now_ms + 60_000))["receipt"]
    client = await host.client()
    host.disk.fail_next_sync("message_log")
    message = {"subject": "s", "body": "lost", "due_ms": host.now_ms + 60_000}
    await client.send_bytes(b"".join(encode_request(10 + i, "send", {"messages": [message]}) for i in range(3)))
    for request_id in (10, 11, 12):
        with pytest.raises(StorageFailed):
            await client.reply(request_id)
    await host.wait_down()
    assert any(isinstance(leaf, StoreError) for leaf in leaves(host.died_of)), "run() must raise it"
    host.disk.kill()
    client = await host.start_connected()
    assert await client.lookup(safe) == ["pending"]
    await client.put("again", host.now_ms + 60_000)


async def test_a_cancel_in_a_group_whose_sync_failed_is_not_answered_cancelled(boot: Boot) -> None:
    host, client = await boot.connected()
    receipt = (await client.put("m", host.now_ms + 1_000))["receipt"]
    await host.settled()
    host.disk.fail_next_sync("message_log")
    assert await client.refused("cancel", {"receipts": [receipt]}) == "storage_failed"
    await host.wait_down()


async def test_a_failed_sync_of_outcomes_stops_the_server_and_a_restart_recovers(boot: Boot) -> None:
    host, client = await boot.connected()
    host.disk.fail_next_sync("dispatch_log")
    await client.put("m", host.now_ms + 100)
    await host.wait_down()
    assert any(isinstance(leaf, StoreError) for leaf in leaves(host.died_of))
    host.disk.crash(Random(3))
    client = await host.start_connected()
    await host.sleep_ms(1_000)
    await host.settled()
    assert texts(await client.pull()) == ["m"]
    host.check_balance(pending=0)


async def test_a_full_disk_refuses_by_name_and_loses_nothing(boot: Boot, disk: FakeDisk) -> None:
    host, client = await boot.connected(disk=disk)
    disk.capacity_bytes = disk.used_bytes + (1 << 20)
    accepted, refused = [], 0
    due_ms = host.now_ms + 3_000
    for number in range(60):
        try:
            accepted.append((await client.put(f"{number:03}" + "x" * 100_000, due_ms))["receipt"])
        except DelayServerError as error:
            assert error.name == "disk_full"
            assert error.retry_after_ms
            refused += 1
    assert accepted
    assert refused
    disk.capacity_bytes = None
    await host.sleep_ms(1_000)
    accepted.append((await client.put("after", due_ms))["receipt"])  # service resumes
    await host.sleep_ms(4_000)
    await host.settled()
    assert set(await client.lookup(*accepted)) == {"delivered"}
    assert host.check_balance(pending=0)["delivered"] == len(accepted)


async def test_a_full_disk_that_cannot_reserve_sequences_refuses_the_whole_group(boot: Boot, disk: FakeDisk) -> None:
    host = await boot.started(disk=disk)
    clients = [await host.client() for _ in range(3)]
    sequences = host.server.parts.opened.sequences
    sequences.take(sequences.reserved - sequences.next)  # a burst that was faster than the reservation ahead
    disk.remove("/data/sequences.tmp")  # the room that was kept for the next reservation
    disk.capacity_bytes = disk.used_bytes
    message = {"subject": "s", "body": "x", "due_ms": host.now_ms + 1_000}
    asked = [await client.ask("send", {"messages": [message]}) for client in clients]
    for client, request_id in zip(clients, asked, strict=True):
        with pytest.raises(DiskFull):
            await client.reply(request_id)
    disk.capacity_bytes = None
    await clients[0].put("after", host.now_ms + 1_000)  # the server went on
    await host.sleep_ms(2_000)
    assert texts(await clients[0].pull()) == ["after"]
    host.check_balance(pending=0)


@pytest.mark.parametrize("durability", ["sync", "os"])
async def test_what_was_refused_since_a_new_segment_found_no_room_for_its_name_never_comes(
    boot: Boot, durability: str
) -> None:
    host, client = await boot.connected(
        small_settings(storage={"message_log_segment_bytes": 1 << 14, "durability": durability})
    )
    server = host.server
    log, due_ms = server.parts.files.log, host.now_ms + 60_000
    kept = await client.put("kept", due_ms)
    while log.end - log.segments()[-1][0] < 1 << 14:
        await client.put("x" * 1_000, due_ms)
        await host.settled()
    host.disk.refuse = lambda operation, path: errno.ENOSPC if operation == "replace" and "/message_log/" in path else 0
    message = {"subject": "s", "body": "refused", "due_ms": due_ms}
    assert [await client.refused("send", {"messages": [message]}) for _ in range(2)] == ["disk_full"] * 2
    assert await client.refused("cancel", {"receipts": [kept["receipt"]]}) == "disk_full"
    host.disk.refuse = None
    after = await client.put("after", due_ms)
    assert len(log.segments()) == 2
    await host.restart_killed()
    client = await host.client()
    assert await client.lookup(kept["receipt"], after["receipt"]) == ["pending", "pending"]
    await host.sleep_ms(61_000)
    await host.settled()
    bodies = texts(await client.pull())
    assert "refused" not in bodies and {"kept", "after"} <= set(bodies)
    host.check_balance(pending=0)


async def test_sends_are_refused_while_space_is_short_and_cancels_are_not(boot: Boot, disk: FakeDisk) -> None:
    host, client = await boot.connected(small_settings(storage={"free_bytes_min": 1 << 20}), disk=disk)
    receipt = (await client.put("m", host.now_ms + 60_000))["receipt"]
    await host.settled()
    disk.capacity_bytes = disk.used_bytes + (1 << 19)
    await host.sleep_ms(300)
    message = {"subject": "s", "body": "x", "due_ms": host.now_ms + 1_000}
    assert await client.refused("send", {"messages": [message]}) == "disk_full"
    assert await client.refused("reschedule", {"items": [{"receipt": receipt, "delay_ms": 0}]}) == "disk_full"
    assert (await client.status())["storage"]["disk_low"]
    assert await client.cancel(receipt) == ["cancelled"]
    disk.capacity_bytes = None
    await host.sleep_ms(300)
    await client.put("m", host.now_ms + 60_000)


async def test_durability_os_never_syncs_message_log_and_sync_does(boot: Boot) -> None:
    for durability in ("os", "sync"):
        host, client = await boot.connected(
            small_settings(storage={"durability": durability, "checkpoint_interval_ms": 3_600_000}), name=durability
        )
        await client.put("first", host.now_ms + 60_000)
        host.disk.fail_next_sync("message_log")
        if durability == "os":
            await client.put("second", host.now_ms + 60_000)
        else:
            with pytest.raises(StorageFailed):
                await client.put("second", host.now_ms + 60_000)


async def test_past_the_bound_of_gathered_bytes_sends_are_refused_as_queue_full(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"gather_bytes_max": 2_000}))
    due_ms = host.now_ms + 200
    message = {"subject": "s", "body": "x" * 100, "due_ms": due_ms}
    frames = b"".join(encode_request(1_000 + i, "send", {"messages": [message]}) for i in range(40))
    await client.send_bytes(frames)
    taken, refused = 0, []
    for i in range(40):
        try:
            await client.reply(1_000 + i)
            taken += 1
        except DelayServerError as error:
            refused.append(error)
    assert taken and {error.name for error in refused} == {"queue_full"}
    assert all(error.retry_after_ms for error in refused)
    await host.sleep_ms(500)
    assert (await host.balanced(pending=0))["delivered"] == taken


async def test_sends_that_come_together_share_one_sync_and_take_consecutive_sequences(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("first", host.now_ms + 60_000)
    groups, syncs = host.server.parts.receive.appender.groups, host.disk.counts["datasync"]
    message = {"subject": "s", "body": "x", "due_ms": host.now_ms + 60_000}
    await client.send_bytes(b"".join(encode_request(100 + i, "send", {"messages": [message]}) for i in range(50)))
    replies = [await client.reply(100 + i) for i in range(50)]
    sequences = [reply["results"][0]["sequence"] for reply in replies]
    assert sequences == list(range(sequences[0], sequences[0] + 50))
    assert host.server.parts.receive.appender.groups == groups + 1
    assert host.disk.counts["datasync"] - syncs <= 2


async def test_sequences_are_never_used_twice_across_kills(boot: Boot) -> None:
    host = boot()
    seen: list[int] = []
    for life in range(4):
        client = await host.start_connected()
        seen += [(await client.put("m", host.now_ms + 60_000))["sequence"] for _ in range(3)]
        await (host.stop() if life == 1 else host.lose_power(life))
    assert seen == sorted(set(seen))


async def test_a_name_whose_sync_failed_is_refused_and_nothing_is_accepted_under_it(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("m", host.now_ms + 60_000)
    host.disk.fail_next_sync("names")
    message = {"subject": "new", "body": "x", "due_ms": host.now_ms + 60_000}
    for _ in range(2):
        try:
            (result,) = await client.send(message)
        except (DelayServerError, OSError) as error:
            assert getattr(error, "name", "storage_failed") == "storage_failed"
        else:
            assert result["error"] == "storage_failed"
    await host.wait_down()  # a failed sync is final: the server stops


async def test_a_new_name_on_a_full_disk_is_refused_as_disk_full(boot: Boot, disk: FakeDisk) -> None:
    host, client = await boot.connected(disk=disk)
    await client.put("m", host.now_ms + 60_000)
    disk.capacity_bytes = disk.used_bytes
    names: set[str] = set()
    for number in range(5):
        subjects = [f"{number}.{i}." + "x" * 200 for i in range(10)]
        try:
            results = await client.send(
                *[{"subject": subject, "body": "x", "due_ms": host.now_ms + 60_000} for subject in subjects]
            )
        except DelayServerError as error:
            names.add(error.name)
        else:
            names |= {result.get("error", "accepted") for result in results}
    assert "disk_full" in names
    assert names <= {"accepted", "disk_full"}, names
    assert host.died_of is None


async def test_a_stop_refuses_new_sends_and_answers_those_that_were_taken(boot: Boot) -> None:
    host, client = await boot.connected()
    message = {"subject": "s", "body": "x", "due_ms": host.now_ms + 60_000}
    first = await client.ask("send", {"messages": [message]})
    await trio.testing.wait_all_tasks_blocked()
    host.server.stop()
    assert "receipt" in (await client.reply(first))["results"][0]
    try:
        assert await client.refused("send", {"messages": [message]}) == "shutting_down"
    except OSError:
        pass  # it was gone already
    await host.wait_down()
    assert host.died_of is None


async def test_sends_of_one_group_are_answered_with_their_own_rows_and_refusals(boot: Boot) -> None:
    host, client = await boot.connected()
    first = (await client.put("first", host.now_ms + 60_000))["sequence"]
    due_ms = host.now_ms + 60_000
    good, bad = {"subject": "s", "body": "x"}, {"subject": "s", "body": 1, "due_ms": due_ms}
    sends = [
        [good | {"due_ms": due_ms, "message_id": "a"}],
        [bad, good | {"due_ms": due_ms + 1}, bad, good | {"due_ms": due_ms + 2, "message_id": "b"}],
        [bad, bad],
        [good | {"due_ms": due_ms + 3}, good | {"due_ms": due_ms + 4}, bad],
    ]
    await client.send_bytes(
        b"".join(encode_request(100 + i, "send", {"messages": rows}) for i, rows in enumerate(sends))
    )
    replies = [(await client.reply(100 + i))["results"] for i in range(len(sends))]
    assert [["error" if "error" in row else row["due_ms"] - due_ms for row in results] for results in replies] == [
        [0],
        ["error", 1, "error", 2],
        ["error", "error"],
        [3, 4, "error"],
    ]
    accepted = [row for results in replies for row in results if "error" not in row]
    assert [row["sequence"] for row in accepted] == list(range(first + 1, first + 6))
    server_id = accepted[0]["receipt"].partition("-")[0]
    assert [row["receipt"] for row in accepted] == [
        format_receipt(server_id, row["due_ms"], row["sequence"]) for row in accepted
    ]
    assert [row["message_id"] for row in accepted] == [
        given or derived_message_id(server_id, row["sequence"])
        for given, row in zip(["a", "", "b", "", ""], accepted, strict=True)
    ]


async def test_a_burst_larger_than_a_group_becomes_several_and_keeps_its_order(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"group_bytes_max": 2_000}))
    first = (await client.put("first", host.now_ms + 60_000))["sequence"]
    groups = host.server.parts.receive.appender.groups
    message = {"subject": "s", "body": "x" * 500, "due_ms": host.now_ms + 60_000}
    await client.send_bytes(b"".join(encode_request(100 + i, "send", {"messages": [message]}) for i in range(7)))
    replies = [await client.reply(100 + i) for i in range(7)]
    assert [reply["results"][0]["sequence"] for reply in replies] == list(range(first + 1, first + 8))
    assert host.server.parts.receive.appender.groups == groups + 3  # of three, three and one


async def test_a_stop_waits_for_sends_that_were_taken_in_the_same_pass(boot: Boot) -> None:
    host = await boot.started()
    commit, told = host.server.parts.receive.commit, list[object]()
    commit.submit(messages(0, 3, due_ms=host.now_ms + 60_000), told.append)
    await commit.stop()
    assert len(told) == 1 and not isinstance(told[0], DelayServerError)
