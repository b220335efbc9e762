"""Bits that flip at rest: what can be served goes on being served, and what cannot is named (rule 11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delayserver.protocol.outcomes import Outcome
from delayserver.state.replay_round import Round
from store.records.batches import OutcomeBatch
from store.records.record import HEADER_BYTES, decode_header
from store.records.segment import FILE_DISPATCH, FILE_HEADER_BYTES, FileHeader
from tests.fakes.host import Boot, Host, faked_settings


def only_file(host: Host, folder: str, suffix: str = ".log") -> str:
    """The path of the only file there."""
    (path,) = [path for path in host.disk.files(f"/data/{folder}") if path.endswith(suffix)]
    return path


@pytest.mark.parametrize("offset", [3, 12, 20, 41, 50])
@pytest.mark.parametrize("replay", ["behind the start", "within the start"])
async def test_messages_go_on_into_a_window_whose_file_has_a_damaged_header(
    boot: Boot, offset: int, replay: str
) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    await client.put("0", due_ms)
    await host.settled()
    await host.server.parts.upkeep.checkpointing.write()
    path = only_file(host, "schedule_log", ".direct.log")
    if replay == "within the start":
        await client.put("1", due_ms)
        await host.settled()
        await host.lose_power(1)
    else:
        await host.stop()
    host.disk.flip_bit(path, offset)
    await host.start()
    assert host.died_of is None, host.died_of
    if replay == "behind the start":
        await (await host.client()).put("1", due_ms)
    await host.sleep_ms(120_000)
    assert host.died_of is None, host.died_of
    assert sorted(host.fake().texts) == ["0", "1"]
    status = await host.balanced(pending=0)
    assert any(path in text for text in status["corruption"])


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("part", ["header", "columns"])
async def test_lookup_and_cancel_answer_around_a_damaged_record_and_name_its_hidden_messages(
    boot: Boot, place: str, part: str
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    receipts = []
    for number in range(3):
        receipts.append((await client.put(str(number), due_ms, message_id=f"id{number}"))["receipt"])
        await host.settled()
    await host.stop()
    path = only_file(host, "schedule_log", ".direct.log")
    hit = ["first", "middle", "last"].index(place)
    position = FILE_HEADER_BYTES
    for _ in range(hit):
        position = decode_header(host.disk.content(path)[position : position + HEADER_BYTES], position).end
    host.disk.flip_bit(path, position + (20 if part == "header" else HEADER_BYTES + 20))
    client = await host.start_connected()
    expected = ["pending"] * 3
    expected[hit] = "message_damaged"
    assert await client.lookup(*receipts) == expected
    ids = [{"subject": "s", "message_id": f"id{number}", "due_ms": due_ms} for number in range(3)]
    found = (await client.request("lookup", {"messages": ids}))["results"]
    assert [result.get("outcome") or result["error"] for result in found] == expected
    forged = receipts[0][:-4] + "0fff"
    assert await client.lookup(forged) == ["unknown"], "never accepted, whatever is damaged"
    expected = ["cancelled"] * 3
    expected[hit] = "too_late"
    assert await client.cancel(*receipts) == expected
    status = await client.status()
    assert any(path in text for text in status["corruption"])
    assert not status["errors"].get("internal_error")


async def test_a_damaged_body_is_not_rescheduled_and_its_message_lives_on(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 3_600_000
    receipts = [(await client.put(f"body {number}" * 20, due_ms))["receipt"] for number in range(2)]
    await host.stop()
    path = only_file(host, "schedule_log", ".direct.log")
    header = decode_header(host.disk.content(path)[FILE_HEADER_BYTES:][:HEADER_BYTES], FILE_HEADER_BYTES)
    host.disk.flip_bit(path, header.blob_offset + 10)
    client = await host.start_connected()
    items = [{"receipt": receipts[0], "due_ms": due_ms + 60_000}]
    (result,) = (await client.request("reschedule", {"items": items}))["results"]
    assert result["error"] == "message_damaged"
    assert await client.lookup(*receipts) == ["pending", "pending"]
    assert any(path in text for text in (await client.status())["corruption"])


@pytest.mark.parametrize("blob", ["ids", "properties", "bodies"])
@pytest.mark.parametrize("loaded", ["by the loader", "by the replayer"])
async def test_bytes_that_change_after_their_message_was_loaded_are_not_delivered(
    boot: Boot, blob: str, loaded: str
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    names = "one", "two", "six"
    messages = [
        {"subject": "s", "due_ms": due_ms, "body": name, "message_id": name, "properties": {"name": name}}
        for name in names
    ]
    receipts = [result["receipt"] for result in (await client.request("send", {"messages": messages}))["results"]]
    if loaded == "by the loader":
        await host.settled()
        await host.restart()
    await host.until(lambda: len(host.server.parts.state.wheel) == 3, within_ms=60_000)
    path = only_file(host, "schedule_log", ".direct.log")
    place = host.disk.content(path).index(b"two") + {"ids": 0, "properties": 3 * 3 + 12, "bodies": 0}[blob]
    if blob == "bodies":
        place = host.disk.content(path).rindex(b"two")
    host.disk.flip_bit(path, place)
    await host.sleep_ms(120_000)
    assert host.died_of is None, host.died_of
    assert host.fake().texts == ["one", "six"]
    assert await (await host.client()).lookup(*receipts) == ["delivered", "pending", "delivered"]
    status = await (await host.client()).status()
    assert any(path in text and "changed" in text for text in status["corruption"])


async def test_rows_whose_window_was_taken_between_their_record_and_its_publication_have_their_sums(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    publisher, publish = host.server.parts.replay.publisher, host.server.parts.replay.publisher.publish

    def publish_without(done: Round) -> None:
        done.placed[:] = [replace(placed, row_sum=None) for placed in done.placed]
        publish(done)

    publisher.publish = publish_without  # type: ignore[method-assign]
    client = await host.client()
    for text in ("m", "n"):
        await client.put(text, host.now_ms + 300, message_id=text)
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["m", "n"]
    assert host.check_balance(pending=0)["corruption"] == []


async def test_bytes_that_the_disk_cannot_read_hold_back_their_own_window_only(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    client, node = await host.client(), host.fake()
    due_ms = host.now_ms // 60_000 * 60_000 + 180_000
    for number in range(3):
        await client.put(f"{number}" * 5_000, due_ms + number * 1_000)
    await client.put("other window", due_ms + 60_000)
    await host.settled()
    (path, *_) = [name for name in host.disk.files("/data/schedule_log") if b"1" * 5_000 in host.disk.content(name)]
    place = host.disk.content(path).index(b"1" * 5_000)
    host.disk.unreadable[path] = [(place + 1_000, place + 2_000)]
    await host.sleep_ms(400_000)
    assert host.died_of is None
    assert "other window" in node.texts
    await host.restart_killed()
    await host.sleep_ms(5_000)
    assert host.died_of is None
    assert any(path in text for text in host.check_balance()["unreadable"])


async def test_outcomes_of_a_damaged_record_that_is_not_counted_do_not_stand_for_a_late_message(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms
    for number in range(3):
        await client.put(f"body {number}", due_ms)
        await host.settled()
        await host.server.parts.upkeep.checkpointing.write()  # the next record says that this one is durable
    await host.until(lambda: len(host.fake().stored) == 3)
    await host.settled()
    await host.stop()
    path = only_file(host, "schedule_log", ".direct.log")
    header = decode_header(host.disk.content(path)[FILE_HEADER_BYTES:][:HEADER_BYTES], FILE_HEADER_BYTES)
    host.disk.flip_bit(path, header.blob_offset + 2)
    host.disk.remove("/data/checkpoint")
    host.clock.step(300_000)  # so that nothing but its count brings the window into memory again
    await host.start()
    await (await host.client()).put("late", due_ms)
    await host.until(lambda: host.fake().texts[-1] == "late", within_ms=10_000)
    await host.restart()
    await (await host.client()).put("later", due_ms)
    await host.until(lambda: host.fake().texts[-1] == "later", within_ms=10_000)
    assert sorted(host.fake().texts) == ["body 0", "body 1", "body 2", "late", "later"]


async def test_a_window_with_outcomes_of_messages_it_does_not_hold_is_kept_and_named(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"retention_ms": 60_000}))
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    await client.put("m", due_ms)
    await host.settled()
    host.server.parts.state.decided.add(
        OutcomeBatch.filled(1, sequence=1 << 40, due_ms=due_ms, subject=7, outcome=int(Outcome.DELIVERED))
    )
    await host.sleep_ms(400_000)
    assert host.died_of is None, host.died_of
    assert host.fake().texts == ["m"]
    path = only_file(host, "dispatch_log")
    assert any(path in text for text in (await client.status())["corruption"])


@pytest.mark.parametrize("again", [False, True])
async def test_an_outcome_whose_message_is_gone_does_not_stand_for_another_message(boot: Boot, again: bool) -> None:
    """A crash takes the schedule file, damage the record in message_log; dispatch_log kept the outcome."""
    host = await boot.started(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    due_ms = host.now_ms + 3_000
    client = await host.client()
    await client.put("gone", due_ms)
    await host.settled()
    await client.put("waits", due_ms + 1, subject="t" * 20)
    await host.sleep_ms(1_000)
    host.server.parts.state.decided.add(
        OutcomeBatch.filled(1, sequence=1, due_ms=due_ms, subject=1, outcome=int(Outcome.DELIVERED))
    )
    await host.server.parts.outcomes.recorder.flush()
    await host.kill()
    host.disk.remove(only_file(host, "schedule_log", ".direct.log"))
    host.disk.flip_bit(host.disk.files("/data/message_log")[0], FILE_HEADER_BYTES + 20)
    if again:  # a later start has only the checkpoint's word for it
        await host.start()
        await host.server.parts.upkeep.checkpointing.write()
        await host.kill()
    host.clock.step(120_000)
    await host.start()
    assert host.died_of is None, host.died_of
    assert host.server.parts.state.book.orphans == {due_ms // 60_000 * 60_000: 1}
    assert host.check_balance(pending=1)["accepted"] == 1
    await host.sleep_ms(3_000)
    assert host.fake().texts == ["waits"]


@pytest.mark.parametrize("part", ["header", "columns", "body"])
async def test_a_message_in_memory_is_not_rescheduled_from_its_damaged_record_and_can_be_cancelled(
    boot: Boot, part: str
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 3_600_000
    receipt = (await client.put("body" * 20, due_ms))["receipt"]
    await host.settled()
    path = only_file(host, "schedule_log", ".direct.log")
    header = decode_header(host.disk.content(path)[FILE_HEADER_BYTES:][:HEADER_BYTES], FILE_HEADER_BYTES)
    places = {"header": FILE_HEADER_BYTES + 20, "columns": FILE_HEADER_BYTES + HEADER_BYTES + 20}
    host.disk.flip_bit(path, places.get(part, header.blob_offset + 10))
    items = [{"receipt": receipt, "due_ms": due_ms + 60_000}]
    (result,) = (await client.request("reschedule", {"items": items}))["results"]
    assert result["error"] == "message_damaged"
    assert await client.lookup(receipt) == ["pending"]
    assert await client.cancel(receipt) == ["cancelled"]
    status = await client.status()
    assert any(path in text for text in status["corruption"])
    assert not status["errors"].get("internal_error")


async def test_outcomes_of_another_server_hold_back_their_window_and_end_no_server(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = (host.now_ms // 60_000 + 1) * 60_000
    await client.put("done", start_ms + 10_000)
    await client.put("held back", start_ms + 50_000)
    await client.put("later", start_ms + 70_000)
    host.clock.step(start_ms + 15_000 - host.now_ms)
    await host.until(lambda: host.fake().texts == ["done"])
    await host.stop()
    path = only_file(host, "dispatch_log")
    host.disk.overwrite(path, 0, FileHeader(FILE_DISPATCH, 99, start_ms, 60_000).encode())
    await host.start()
    await host.sleep_ms(70_000)
    assert host.died_of is None, host.died_of
    assert host.fake().texts == ["done", "later"]
    assert any(path in text for text in host.status()["corruption"])
