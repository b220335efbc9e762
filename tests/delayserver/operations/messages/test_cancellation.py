"""Rule 4: a cancel is linearised with delivery. `cancelled` is never delivered, and what may be delivered is `too_late`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.protocol.columns import U8, pack_column, unpack_column
from delayserver.protocol.frames import encode_request
from delayserver.protocol.outcomes import Outcome
from store.errors import StoreError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.logs.open_files import OpenFiles
from store.records.batches import LedgerBatch
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Client, Host, faked_settings, small_settings
from wheel.keys import Key


async def test_a_pending_message_is_cancelled_once_and_never_delivered(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    receipt = (await client.put("m", host.now_ms + 500))["receipt"]
    other = (await client.put("other", host.now_ms + 500))["receipt"]
    assert await client.cancel(receipt) == ["cancelled"]
    assert await client.cancel(receipt) == ["already_cancelled"]
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["other"]
    assert await client.cancel(other) == ["delivered"]
    assert await client.lookup(receipt, other) == ["cancelled", "delivered"]
    assert (await host.balanced(pending=0))["cancelled"] == 1


async def test_a_message_named_twice_in_one_request_is_cancelled_once(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    receipt = (await client.put("m", host.now_ms + 500))["receipt"]
    assert sorted(await client.cancel(receipt, receipt)) == ["already_cancelled", "cancelled"]
    assert (await host.balanced(pending=0))["cancelled"] == 1


async def test_a_cancel_is_too_late_in_flight_and_in_time_in_the_queue(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch={"workers": 1, "batch_messages_max": 1}))
    fake = host.fake()
    fake.gate = trio.Event()
    due_ms = host.now_ms + 50
    first = (await client.put("first", due_ms))["receipt"]
    second = (await client.put("second", due_ms))["receipt"]
    await host.until(lambda: bool(fake.attempts))
    await host.sleep_ms(20)
    assert await client.lookup(first, second) == ["in_flight", "pending"]
    assert await client.cancel(first, second) == ["too_late", "cancelled"]
    fake.gate.set()
    await host.sleep_ms(100)
    assert fake.texts == ["first"]
    assert await client.cancel(first) == ["delivered"]
    await host.balanced(pending=0)


async def test_an_attempt_without_a_known_result_is_too_late_and_one_known_to_have_failed_is_not(boot: Boot) -> None:
    for known, answer in ((False, "too_late"), (True, "cancelled")):
        host, client = await boot.connected(
            faked_settings(dispatch={"backoff_ms_min": 10_000, "backoff_ms_max": 10_000}), name=f"host{known}"
        )
        fake = host.fake()
        fake.up, fake.known_failures = False, known
        receipt = (await client.put("m", host.now_ms + 50))["receipt"]
        await host.until(lambda fake=fake: bool(fake.attempts))  # type: ignore[misc]
        await host.sleep_ms(50)
        assert await client.lookup(receipt) == ["retrying"]
        assert await client.cancel(receipt) == [answer]
        fake.up = True
        await host.sleep_ms(11_000)
        assert fake.texts == ([] if known else ["m"])
        await host.balanced(pending=0)


async def test_after_a_crash_a_cancel_is_too_late_for_due_messages_and_ends_the_others(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch={"backoff_ms_min": 5_000, "backoff_ms_max": 5_000}))
    host.fake().gate = trio.Event()
    due = (await client.put("due", host.now_ms + 50))["receipt"]
    far = (await client.put("far", host.now_ms + 60_000))["receipt"]
    await host.until(lambda: bool(host.fake().attempts))
    await host.kill()
    host.fake().up, host.fake().gate = False, None
    client = await host.start_connected()
    await host.sleep_ms(100)
    assert await client.cancel(due, far) == ["too_late", "cancelled"]
    host.fake().up = True
    await host.sleep_ms(10_000)
    assert await client.cancel(due) == ["delivered"]
    await host.balanced(pending=0)


async def test_a_clean_stop_leaves_nothing_uncertain(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    overdue = (await client.put("m", host.now_ms + 500))["receipt"]
    await host.stop()
    host.fake().up = False
    await host.sleep_ms(2_000)
    client = await host.start_connected()
    await host.sleep_ms(50)
    assert host.fake().uncertain_attempts == 0
    assert await client.cancel(overdue) == ["cancelled"]


async def test_exactly_one_of_racing_cancels_is_answered_cancelled(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    receipts = [(await client.put(str(i), host.now_ms + 5_000))["receipt"] for i in range(10)]
    answers: list[list[str]] = []

    async def cancel(client: Client) -> None:
        answers.append(await client.cancel(*receipts))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(cancel, await host.client())
    for each in zip(*answers, strict=True):
        assert sorted(each) == ["already_cancelled"] * 4 + ["cancelled"]


async def test_cancel_and_lookup_wait_for_the_replay_of_their_message(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    message = {"subject": "s", "body": "m", "due_ms": host.now_ms + 5_000}
    first = (await client.send(message))[0]["sequence"]
    # In one write: the cancel and the lookup are read before the replayer could place the message.
    frames = encode_request(20, "send", {"messages": [message]})
    columns = {"count": 1, "sequence": first + 1, "due_ms": message["due_ms"]}
    frames += encode_request(21, "cancel", columns)
    await client.send_bytes(frames)
    receipt = (await client.reply(20))["results"][0]["receipt"]
    code = int(unpack_column((await client.reply(21))["outcome"], 1, U8, "outcome")[0])
    assert code in (Outcome.UNKNOWN, Outcome.CANCELLED)  # unknown: it came before the message was accepted
    answer = await client.cancel(receipt)
    assert answer == (["already_cancelled"] if code == Outcome.CANCELLED else ["cancelled"])
    second = await client.ask("send", {"messages": [message]})
    receipt = (await client.reply(second))["results"][0]["receipt"]
    assert await client.lookup(receipt) == ["pending"]


async def test_a_cancel_whose_commit_fails_gives_the_rows_back_and_they_are_delivered(boot: Boot) -> None:
    """Half of them are in the wheel, half in windows that are loaded later."""
    disk = FakeDisk()
    host, client = await boot.connected(faked_settings(storage={"message_log_segment_bytes": 1 << 16}), disk=disk)
    count = 5_000
    spread_ms = np.arange(count // 2) // 50
    due_ms = np.concatenate([host.now_ms + 3_000 + spread_ms, host.now_ms + 95_000 + spread_ms])
    sent = await client.request(
        "send",
        {"count": count, "subject": "s", "due_ms": pack_column(due_ms), "bodies": b"x" * count, "body_length": 1},
    )
    sequence = pack_column(np.arange(sent["first_sequence"], sent["first_sequence"] + count))
    await host.settled()
    await host.sleep_ms(1_500)
    arguments = {"count": count, "sequence": sequence, "due_ms": pack_column(due_ms)}
    disk.capacity_bytes = disk.used_bytes
    assert await client.refused("cancel", arguments) == "disk_full"
    disk.capacity_bytes = None
    await host.sleep_ms(4_000)
    few = {"count": 10, "sequence": pack_column(np.arange(sent["first_sequence"], sent["first_sequence"] + 10))}
    answer = await client.request("cancel", few | {"due_ms": pack_column(due_ms[:10])})
    assert (unpack_column(answer["outcome"], 10, U8, "outcome") == int(Outcome.DELIVERED)).all()
    await host.until(lambda: len(host.fake().stored) >= count, within_ms=200_000)
    await host.settled()
    assert len(set(host.fake().stored)) == len(host.fake().stored) == count
    host.check_balance(pending=0)


async def test_a_crash_after_the_answer_keeps_the_cancel_and_one_before_keeps_the_message(boot: Boot) -> None:
    for seed in range(8):
        host, client = await boot.connected(faked_settings(), name=f"host{seed}")
        receipts = [(await client.put(f"{i}", host.now_ms + 1_000))["receipt"] for i in range(4)]
        assert await client.cancel(*receipts[:2]) == ["cancelled"] * 2
        await client.ask("cancel", {"receipts": receipts[2:3]})
        await host.restart_unpowered(seed)
        client = await host.client()
        await host.sleep_ms(1_500)
        outcomes = await client.lookup(*receipts)
        assert outcomes[:2] == ["cancelled"] * 2
        assert outcomes[2] in ("cancelled", "delivered")
        assert outcomes[3] == "delivered"
        assert sorted(host.fake().texts) == (["3"] if outcomes[2] == "cancelled" else ["2", "3"])
        await host.balanced(pending=0)


async def test_the_receipt_of_a_copy_acts_on_the_original(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_000
    original = (await client.put("m", due_ms, message_id="a"))["receipt"]
    copy = (await client.put("m", due_ms, message_id="a"))["receipt"]
    assert original != copy
    assert await client.cancel(copy) == ["cancelled"]
    assert await client.cancel(original) == ["already_cancelled"]
    assert await client.lookup(original, copy) == ["cancelled", "deduplicated"]
    await host.sleep_ms(2_000)
    assert not host.fake().stored
    status = await host.balanced(pending=0)
    assert (status["cancelled"], status["deduplicated"]) == (1, 1)


async def test_a_message_is_cancelled_by_its_id_and_by_its_derived_id(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_000
    await client.put("m", due_ms, message_id="mine")
    derived = (await client.put("n", due_ms))["message_id"]
    named = [{"subject": "s", "message_id": name, "due_ms": due_ms} for name in ("mine", derived, "nobody's")]
    results = (await client.request("cancel", {"messages": named}))["results"]
    assert [result["outcome"] for result in results] == ["cancelled", "cancelled", "unknown"]
    wrong_due = {"subject": "s", "message_id": "mine", "due_ms": due_ms + 1}
    wrong_subject = {"subject": "t", "message_id": "mine", "due_ms": due_ms}
    results = (await client.request("lookup", {"messages": [wrong_due, wrong_subject]}))["results"]
    assert [result["outcome"] for result in results] == ["unknown", "unknown"]


async def test_an_id_means_the_live_message_after_a_reschedule_to_the_same_time(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_000
    named = {"subject": "s", "message_id": "mine"}
    old = (await client.put("old", due_ms, message_id="mine"))["receipt"]
    item = named | {"message_due_ms": due_ms, "due_ms": due_ms, "body": b"new"}
    (moved,) = (await client.request("reschedule", {"items": [item]}))["results"]
    assert moved["outcome"] == "cancelled"
    copy = (await client.put("copy", due_ms, message_id="mine"))["receipt"]
    there = {"messages": [named | {"due_ms": due_ms}]}
    (found,) = (await client.request("lookup", there))["results"]
    assert (found["outcome"], found["receipt"]) == ("pending", moved["new_receipt"])
    (cancelled,) = (await client.request("cancel", there))["results"]
    assert (cancelled["outcome"], cancelled["receipt"]) == ("cancelled", moved["new_receipt"])
    assert await client.lookup(old, moved["new_receipt"], copy) == ["cancelled", "cancelled", "deduplicated"]
    await host.sleep_ms(2_000)
    assert not host.fake().stored
    await host.balanced(pending=0)


async def test_a_cancel_by_id_does_not_wait_for_sequences_that_a_crash_left_unused(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 60_000
    await client.put("m", due_ms, message_id="mine")
    await host.restart_killed()
    client = await host.client()
    with trio.fail_after(1):
        results = (
            await client.request("lookup", {"messages": [{"subject": "s", "message_id": "mine", "due_ms": due_ms}]})
        )["results"]
    assert results[0]["outcome"] == "pending"
    with trio.fail_after(1):
        await host.stop()
    assert host.disk.exists("/data/checkpoint")


async def test_a_held_row_is_not_loaded_while_its_cancel_is_committed(boot: Boot) -> None:
    """The window begins to load in the same instant as the cancel is decided."""
    host, client = await boot.connected(faked_settings(wheel={"load_ahead_ms": 100}))
    window_ms = host.now_ms // 60_000 * 60_000 + 60_000
    receipts = [(await client.put(str(i), window_ms + i))["receipt"] for i in range(50)]
    await host.settled()
    host.clock.step(window_ms - host.now_ms - 101)
    answers: dict[str, str] = {}
    for receipt in receipts:
        answers[receipt] = (await client.cancel(receipt))[0]
        await host.sleep_ms(3)
    await host.sleep_ms(1_000)
    delivered = {receipts[int(text)] for text in host.fake().texts}
    for receipt, answer in answers.items():
        assert (answer == "cancelled") == (receipt not in delivered), answer
    assert {"cancelled", "delivered"} <= set(answers.values()) | {"delivered"}
    await host.balanced(pending=0)


async def test_cancel_of_a_coarse_message_holds_after_its_day_was_drained(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"fine_horizon_ms": 3_600_000}))
    due_ms = host.now_ms + 3 * 86_400_000
    keep, gone = [(await client.put(body, due_ms))["receipt"] for body in ("keep", "gone")]
    assert await client.cancel(gone) == ["cancelled"]
    assert await client.lookup(keep, gone) == ["pending", "cancelled"]
    host.clock.step(3 * 86_400_000 - 1_000)
    await host.sleep_ms(35_000)
    assert host.fake().texts == ["keep"]
    assert await client.cancel(keep, gone) == ["delivered", "already_cancelled"]
    assert (await host.balanced(pending=0))["cancelled"] == 1


async def test_columns_cancel_many_at_once(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms + 60_000
    columns = {"count": 1_000, "subject": "s", "due_ms": due_ms, "bodies": b"x" * 1_000, "body_length": 1}
    sent = await client.request("send", columns)
    first = sent["first_sequence"]
    sequences = np.arange(first, first + 1_002)
    answer = await client.request("cancel", {"count": 1_002, "sequence": pack_column(sequences), "due_ms": due_ms})
    codes = unpack_column(answer["outcome"], 1_002, U8, "outcome")
    assert (codes[:1_000] == 5).all()
    assert (codes[1_000:] == 0).all()
    assert (await host.balanced(pending=0))["cancelled"] == 1_000


async def test_one_cancel_answers_alike_from_memory_and_from_files(boot: Boot) -> None:
    """Over many windows and a coarse day: every third message is asked for in the files alone."""
    host, client = await boot.connected(faked_settings(storage={"fine_horizon_ms": 7_200_000}))
    count = 600
    due_ms = host.now_ms + 50 + np.arange(count, dtype=np.int64) * 5_000
    due_ms[::50] += 3 * 86_400_000
    columns = {"count": count, "subject": "s", "due_ms": pack_column(due_ms), "bodies": b"x" * count, "body_length": 1}
    sequences = (await client.request("send", columns))["first_sequence"] + np.arange(count, dtype=np.int64)

    async def cancel(rows: slice) -> list[int]:
        host.server.parts.state.decided.open_messages.remove(sequences[::3])
        part = {"sequence": pack_column(sequences[rows]), "due_ms": pack_column(due_ms[rows])}
        reply = await client.request("cancel", {"count": len(sequences[rows]), **part})
        codes: list[int] = unpack_column(reply["outcome"], len(sequences[rows]), U8, "outcome").tolist()
        return codes

    await host.sleep_ms(100_000)
    delivered = np.isin(sequences, host.fake().stored)
    assert delivered[:20].sum() > 15, "the first are delivered, but for the one of a later day"
    expected = np.where(delivered, int(Outcome.DELIVERED), int(Outcome.CANCELLED))
    assert await cancel(slice(0, 300)) == expected[:300].tolist()
    expected[:300][expected[:300] == int(Outcome.CANCELLED)] = int(Outcome.ALREADY_CANCELLED)
    assert await cancel(slice(None, None, -1)) == expected[::-1].tolist()
    assert (await host.balanced(pending=0))["cancelled"] == count - delivered.sum()


async def test_a_cancel_says_delivered_of_a_message_delivered_while_it_reads_other_outcomes(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(faked_settings())
    far = await client.put("far", host.now_ms + 3_600_000)
    near = await client.put("near", host.now_ms + 100)
    await host.settled()
    decided = host.server.parts.state.decided
    pinned = decided.pinned

    @asynccontextmanager
    async def on_a_slow_disk(key: DispatchKey) -> AsyncIterator[OutcomeIndex]:
        await host.sleep_ms(1_000)
        async with pinned(key) as index:
            yield index

    monkeypatch.setattr(decided, "pinned", on_a_slow_disk)
    host.server.parts.state.decided.open_messages.remove(np.array([far["sequence"]]))
    assert await client.cancel(far["receipt"], near["receipt"]) == ["cancelled", "delivered"]
    assert host.fake().texts == ["near"]
    assert (await host.balanced(pending=0))["cancelled"] == 1


async def test_after_a_crash_a_decided_message_that_is_replayed_again_stays_decided(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    due_ms = host.now_ms + 1_000
    receipts = [(await client.put(str(number), due_ms))["receipt"] for number in range(3)]
    await host.sleep_ms(2_000)
    await host.settled()
    await host.restart_unpowered(1)
    client = await host.client()
    for receipt in receipts:
        assert await client.cancel(receipt) == ["delivered"]
    assert (await host.balanced(pending=0))["delivered"] == 3


async def test_expired_is_answered_only_when_it_is_durable(boot: Boot) -> None:
    storage = {"checkpoint_interval_ms": 60_000}  # a checkpoint writes outcomes as well
    host, client = await boot.connected(faked_settings(dispatch={"outcome_flush_ms": 10_000}, storage=storage))
    await client.put("first", host.now_ms)  # its outcome is written at once, and the next one ten seconds later
    await host.until(lambda: host.fake().texts == ["first"])
    await host.sleep_ms(50)
    receipt = (await client.put("late", host.now_ms, expires_ms=host.now_ms - 1))["receipt"]
    await host.sleep_ms(50)
    told: list[list[str]] = []
    async with trio.open_nursery() as nursery:

        async def ask(question: Callable[..., Any]) -> None:
            told.append(await question(receipt))

        nursery.start_soon(ask, client.lookup)
        await host.sleep_ms(1_000)
        assert told == []
        await host.sleep_ms(10_000)
        assert told == [["expired"]]
    assert await client.cancel(receipt) == ["expired"]
    await host.restart_killed()
    client = await host.client()
    await host.sleep_ms(1_000)
    assert await client.lookup(receipt) == ["expired"]
    assert host.fake().texts == ["first"]


async def test_expired_is_not_answered_where_it_could_not_be_made_durable(boot: Boot) -> None:
    storage = {"checkpoint_interval_ms": 60_000}
    host, client = await boot.connected(faked_settings(dispatch={"outcome_flush_ms": 10_000}, storage=storage))
    await client.put("first", host.now_ms)
    await host.until(lambda: host.fake().texts == ["first"])
    await host.sleep_ms(50)
    receipt = (await client.put("late", host.now_ms, expires_ms=host.now_ms - 1))["receipt"]
    await host.sleep_ms(50)
    host.disk.fail_next_sync("/data/dispatch_log")
    with pytest.raises(StoreError):
        await host.server.parts.outcomes.recorder.flush()
    assert await client.refused("lookup", {"receipts": [receipt]}) == "storage_failed"
    await host.wait_down()
    assert "SyncFailedError" in repr(host.died_of)


async def test_a_cancelled_message_stays_cancelled_although_its_outcome_could_not_be_written(boot: Boot) -> None:
    """Until the server has ended, and after it: the cancel is durable in message_log."""
    host, client = await boot.connected(faked_settings(dispatch={"outcome_flush_ms": 1_000}))
    await client.put("first", host.now_ms)
    await host.until(lambda: host.fake().texts == ["first"])
    receipt = (await client.put("m", host.now_ms + 3_600_000))["receipt"]
    recorder = host.server.parts.outcomes.recorder
    assert await client.cancel(receipt) == ["cancelled"]
    host.disk.fail_next_sync("/data/dispatch_log")
    with pytest.raises(StoreError):
        await recorder.flush()
    assert host.server.parts.state.decided.unwritten()
    assert await client.lookup(receipt) == ["cancelled"]
    await host.restart_unpowered(1)
    assert await (await host.client()).lookup(receipt) == ["cancelled"]
    host.check_balance(pending=0)


async def unanswered(host: Host, count: int) -> list[str]:
    """Messages whose attempts all end without an answer; their receipts."""
    client = await host.client()
    fake = host.fake()
    fake.up, fake.known_failures = False, False
    due_ms = host.now_ms + 100
    receipts = [(await client.put(f"m{number}", due_ms))["receipt"] for number in range(count)]
    await host.until(lambda: fake.attempts != [], within_ms=2_000)
    await host.until(lambda: not any(group.rows.running for group in host.server.parts.dispatch.groups))
    return receipts


@pytest.mark.parametrize("evicted", [False, True])
async def test_an_attempt_without_an_answer_is_not_forgotten_by_a_step_of_the_clock(boot: Boot, evicted: bool) -> None:
    """The row goes back from the queue to the wheel, and perhaps out of memory altogether."""
    host = await boot.started(
        faked_settings(dispatch={"backoff_ms_min": 1_000, "backoff_ms_max": 1_000, "breaker_failures": 50})
    )
    (receipt,) = await unanswered(host, 1)
    host.clock.step(-10_000)
    await host.until(lambda: len(host.server.parts.state.wheel) == 1, within_ms=3_000, what="the row is put back")
    if evicted:
        host.server.parts.state.residency.evict_after(Key(0, 0))
        assert len(host.server.parts.state.wheel) == 0
        host.server.parts.state.residency.loadable.ring()
        await host.until(
            lambda: len(host.server.parts.state.wheel) == 1, within_ms=3_000, what="the row is loaded again"
        )
    client = await host.client()
    assert await client.cancel(receipt) == ["too_late"]
    host.fake().up = True
    await host.until(lambda: host.fake().stored != [], within_ms=15_000)
    assert host.fake().uncertain == set(host.fake().stored)
    await host.balanced(pending=0)


async def test_an_attempt_without_an_answer_is_not_forgotten_when_the_queue_is_too_small_for_its_rows(
    boot: Boot,
) -> None:
    host = await boot.started(
        faked_settings(
            dispatch={
                "queue_rows_max": 4,
                "batch_messages_max": 8,
                "workers": 4,
                "backoff_ms_min": 1_000,
                "backoff_ms_max": 1_000,
                "breaker_failures": 50,
            }
        )
    )
    client, fake = await host.client(), host.fake()
    fake.up, fake.known_failures, fake.gate = False, False, trio.Event()
    (group,) = host.server.parts.dispatch.groups
    receipts = []
    for rounds in (1, 2):
        rows = [{"subject": "s", "body": "m", "due_ms": host.now_ms} for _ in range(4)]
        receipts += [row["receipt"] for row in await client.send(*rows)]
        await host.until(partial(lambda wanted: group.rows.running == wanted, rounds), within_ms=2_000)
    fake.gate.set()
    await host.until(lambda: not group.rows.running)
    await client.put("one more", host.now_ms)
    await host.until(lambda: len(group.rows.queue) <= 4, what="rows leave memory")
    assert await client.cancel(*receipts) == ["too_late"] * 8
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) == 9, within_ms=15_000)
    await host.balanced(pending=0)


async def test_a_clean_stop_does_not_settle_an_unanswered_attempt_whose_row_left_the_queue(boot: Boot) -> None:
    host = await boot.started(
        faked_settings(dispatch={"backoff_ms_min": 1_000, "backoff_ms_max": 1_000, "breaker_failures": 50})
    )
    (receipt,) = await unanswered(host, 1)
    host.clock.step(-10_000)
    await host.until(lambda: len(host.server.parts.state.wheel) == 1, within_ms=3_000, what="the row is put back")
    await host.restart()
    assert await (await host.client()).cancel(receipt) == ["too_late"]


@pytest.mark.parametrize("operation", ["cancel", "lookup"])
async def test_a_message_whose_window_is_retired_beside_the_read_of_its_outcomes_is_retired(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    receipt = (await client.put("m", host.now_ms))["receipt"]
    await host.until(lambda: host.fake().texts == ["m"])
    await host.settled()
    files, pin = server.parts.files, OpenFiles.pin
    (scheduled,), (decided,) = files.schedule.keys(), files.dispatch.keys()
    sequence = files.schedule.last_sequence(scheduled)

    def pin_behind_the_removal(table: Any, key: Any) -> Any:  # a thread saw that there is a file, and it is removed now
        if key == decided and decided in files.dispatch:
            counts = {"accepted": 1, "delivered": 1, "last_sequence": sequence}
            files.ledger.append(LedgerBatch.filled(1, subject=1, start_ms=decided.start_ms, **counts))
            files.schedule.remove(scheduled)
            files.dispatch.remove(decided)
        return pin(table, key)

    server.parts.state.decided.forget(decided)
    monkeypatch.setattr(OpenFiles, "pin", pin_behind_the_removal)
    assert await (client.cancel(receipt) if operation == "cancel" else client.lookup(receipt)) == ["retired"]
    assert decided not in files.dispatch
