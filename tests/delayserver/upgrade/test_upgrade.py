"""Directories that older programs wrote, and clients of theirs, with the server of today."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayserver.protocol.frames import FrameDecoder, decode_reply, decode_request, encode_request
from delayserver.protocol.outcomes import Outcome
from ops.audit.capture import DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG, capture_all
from ops.audit.part_reader import PartReader
from store.disk.filesystem import RealFileSystem
from store.records.batches import MessageBatch
from store.records.column_batch import ColumnBatch
from tests.delayserver.recover.directories import in_process
from tests.delayserver.upgrade.directories import ARCHIVES, Past, past, read_folder
from tests.delayserver.upgrade.write_directory import BALANCE, DAY_MS, MINUTE_MS, deliveries, settings
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import FRAME_BYTES_MAX, Boot, Host, texts

# The old program was down for this long before its client came: the old clock is that of the new server too.
DOWN_US = 30_000_000
# What no two runs of servers have in common.
MOMENTS = {"server_us", "accepted_us", "dispatched_us", "lateness_ms", "software", "version", "delivery"}
POSITION_BITS = 44
EPOCH_SHIFT = 48
EPOCHS = 1 << 14
POSITIONS = (1 << POSITION_BITS) - 1


@pytest.fixture(params=ARCHIVES)
def old(request: pytest.FixtureRequest) -> Past:
    """Each archive in turn."""
    return past(request.param)


def boot_on(boot: Boot, old: Past) -> Host:
    host = boot(settings(), disk=old.disk(), clock=SimulatedClock(old.clock_us + DOWN_US))
    host.fake().up = False
    return host


def balance_of(status: dict[str, Any]) -> dict[str, int]:
    return {name: status[name] for name in BALANCE}


async def test_an_old_directory_has_the_balance_and_the_outcomes_of_the_old_program(boot: Boot, old: Past) -> None:
    host = boot_on(boot, old)
    await host.start()
    assert balance_of(await host.balanced()) == old.balance
    client = await host.client()
    found = await client.lookup(*old.receipts.values())
    assert dict(zip(old.receipts, found, strict=True)) == old.outcomes


async def test_a_lookup_links_a_rescheduled_message_only_where_its_program_wrote_the_link(
    boot: Boot, old: Past
) -> None:
    host = boot_on(boot, old)
    client = await host.start_connected()
    rows = (await client.request("lookup", {"receipts": list(old.receipts.values())}))["results"]
    links = {row["receipt"]: row["rescheduled_to"] for row in rows if "rescheduled_to" in row}
    moves = {"moved": "moved on", "moved away": "moved to a day"} if not old.name.startswith("d4a2130") else {}
    moves |= {"committed": "visible"} if "committed" in old.receipts else {}
    assert links == {old.receipts[was]: old.receipts[now] for was, now in moves.items()}


async def test_each_message_of_an_old_directory_is_delivered_once(boot: Boot, old: Past) -> None:
    host = boot_on(boot, old)
    await host.start()
    got: Counter[str] = Counter()
    for later_ms in (30 * MINUTE_MS, DAY_MS // 4, 3 * DAY_MS):
        await host.stop()
        host.clock.step(later_ms)
        await host.start()
        await host.sleep_ms(3_000)
        client = await host.client()
        for subject in ("orders", "a subject of its own", "tagged"):
            # A new group begins with the oldest message.
            messages = await client.pull(subject, "a new group", ack_timeout_ms=DAY_MS)
            got.update(texts(messages))
            await client.request("ack", {"subject": subject, "group": "a new group", **deliveries(messages)})
    pending = old.named("pending")
    wanted = {old.bodies[name] for name in [*pending, *old.named("delivered")]} - {"expired while down"}
    assert got == Counter(wanted)
    status = await host.balanced(pending=0)
    assert status["delivered"] == old.balance["delivered"] + len(pending)
    outcomes = dict(zip(old.receipts, await client.lookup(*old.receipts.values()), strict=True))
    # The policy has ended the transaction that no client ended.
    ends = {"pending": "delivered", "prepared": "rolled_back"}
    assert outcomes == {name: ends.get(was, was) for name, was in old.outcomes.items()}


async def test_consumers_go_on_where_the_old_broker_left_them(boot: Boot, old: Past) -> None:
    host = boot_on(boot, old)
    client = await host.start_connected()
    rest = texts(await client.pull("backlog", "slow"))
    assert not {f"backlog {row}" for row in [*range(10), 15, 16]} & set(rest), "acked before"
    assert {f"backlog {row}" for row in range(25, 40)} <= set(rest), "never pulled before"
    host.clock.step(20 * MINUTE_MS)
    await host.sleep_ms(3_000)
    again = await client.pull("orders", "billing")
    (nacked,) = [message for message in again if message["body"] == b"nacked"]
    assert (nacked["attempt"], nacked["properties"]) == (2, {"name": "nacked"})
    assert "acked" not in texts(again)


async def test_an_ack_from_before_the_upgrade_is_unknown_and_its_message_comes_again(boot: Boot, old: Past) -> None:
    # The old program's third start gave the ids of the exchanges. Its second start gave five messages of the backlog away.
    (epoch,) = {
        (id_ >> EPOCH_SHIFT) % EPOCHS
        for number, exchange in enumerate(old.exchanges, 1)
        if exchange.operation == "pull" and (id_ := first_id(result_in(exchange.reply, number))) is not None
    }
    host = boot_on(boot, old)
    client = await host.start_connected()
    before = np.arange(20, 25, dtype=np.int64) | epoch - 1 << EPOCH_SHIFT
    ack = {"subject": "backlog", "group": "slow", "count": 5, "deliveries": before.tobytes()}
    for _again in range(2):
        assert await client.request("ack", ack) == {"acked": 0, "unknown": 5}
        came = texts(await client.pull("backlog", "slow"))
        assert {f"backlog {row}" for row in range(20, 25)} <= set(came)
        await host.restart()
        client = await host.client()


async def test_an_old_client_is_answered_as_the_old_program_answered(boot: Boot, old: Past) -> None:
    host = boot_on(boot, old)
    await host.start()
    await host.sleep_ms(1_000)
    client = await host.client()
    begun_ms = host.now_ms
    new: dict[int, int] = {}
    for number, exchange in enumerate(old.exchanges, 1):
        await host.sleep_ms(max(begun_ms + exchange.at_ms - host.now_ms, 0))
        await client.send_bytes(with_ids(exchange.request, new))
        result = await client.reply(number)
        was = result_in(exchange.reply, number)
        if exchange.operation == "pull":
            before, now = first_id(was), first_id(result)
            if before is not None and now is not None:
                new[before >> POSITION_BITS] = now >> POSITION_BITS
        differences = list(differing(was, result, exchange.operation))
        assert differences == [], f"exchange {number}, {exchange.operation}"


def first_id(pulled: dict[str, Any]) -> int | None:
    """The delivery id of the first message of a reply to `pull`."""
    if "delivery" in pulled:
        return int(pulled["delivery"][0])
    return next((int(message["delivery"]) for message in pulled["messages"]), None)


def with_ids(request: bytes, new: dict[int, int]) -> bytes:
    """A request with today's delivery ids in the place of the old ones, as a client would have got them. They are opaque:
    each program has its own bits before the position."""
    (payload,) = FrameDecoder(FRAME_BYTES_MAX).feed(request)
    kept = decode_request(payload)
    if "deliveries" not in kept.arguments:
        return request
    ids = np.frombuffer(kept.arguments["deliveries"], np.int64)
    moved = [
        (new.get(old >> POSITION_BITS, old >> POSITION_BITS) << POSITION_BITS) | old & POSITIONS for old in ids.tolist()
    ]
    return encode_request(kept.id, kept.operation, kept.arguments | {"deliveries": np.array(moved, np.int64).tobytes()})


def result_in(reply: bytes, number: int) -> dict[str, Any]:
    """The result in a reply that was kept."""
    (payload,) = FrameDecoder(FRAME_BYTES_MAX).feed(reply)
    kept = decode_reply(payload)
    assert (kept.id, kept.error) == (number, None)
    assert kept.result is not None
    return kept.result


def differing(was: Any, now: Any, place: str) -> Iterator[str]:
    """Places of a reply in which today's says something else. It may say more: maps have new keys."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in was:
            if place == "status" and name not in BALANCE:
                continue
            if name not in now:
                yield f"{place}.{name} is missing"
            elif name not in MOMENTS:
                yield from differing(was[name], now[name], f"{place}.{name}")
    elif isinstance(was, list) and isinstance(now, list):
        if place == "pull.messages":
            # A pull of d4a2130 handed out what had expired in the broker.
            was = [message for message in was if message["body"] != b"expired while down"]
        if len(was) != len(now):
            yield f"{place}: {was!r} is now {now!r}"
        for index, pair in enumerate(zip(was, now, strict=False)):
            yield from differing(*pair, f"{place}[{index}]")
    elif was != now and not place.endswith(".message"):  # an error's words are for people
        yield f"{place}: {was!r} is now {now!r}"


def test_the_tools_find_an_old_directory_clean_and_keep_its_balance_when_they_rebuild_it(
    old: Past, tmp_path: Path
) -> None:
    path = old.unpack(tmp_path / "data")
    for command in (["check"], ["rebuild", "--yes"], ["check"]):
        done = in_process(command[0], path, *command[1:], "--json")
        assert done.code == 0, done
        if command == ["check"]:
            assert done.last["findings"] == []
            assert balance_of(done.last) == old.balance


async def test_a_rebuilt_old_directory_is_served(boot: Boot, old: Past, tmp_path: Path) -> None:
    path = old.unpack(tmp_path / "data")
    assert in_process("rebuild", path, "--yes", "--json").code == 0
    host = boot_on(boot, replace(old, files=read_folder(Path(path))))
    await host.start()
    assert balance_of(await host.balanced()) == old.balance
    client = await host.client()
    assert dict(zip(old.receipts, await client.lookup(*old.receipts.values()), strict=True)) == old.outcomes


def test_the_reader_of_the_audit_agrees_with_the_counts_of_the_old_program(old: Past, tmp_path: Path) -> None:
    path, fs = old.unpack(tmp_path / "data"), RealFileSystem()
    captured = capture_all(fs, [path], [DISPATCH_LOG, SCHEDULE_LOG, MESSAGE_LOG])
    found: Counter[str] = Counter()
    for part in captured[DISPATCH_LOG].parts:
        for chunk in PartReader(fs, part, lambda _kind: ["outcome", "origin_sequence", "redelivery"]):
            counted = (chunk.columns["origin_sequence"] == 0) & (chunk.columns["redelivery"] == 0)
            found.update(Outcome(code).name.lower() for code in chunk.columns["outcome"][counted].tolist())
    for part in captured[SCHEDULE_LOG].parts:
        for chunk in PartReader(fs, part, lambda _kind: ["duplicate_of"]):
            found["deduplicated"] += int((chunk.columns["duplicate_of"] != 0).sum())
    bodies: list[bytes] = []
    for part in captured[MESSAGE_LOG].parts:
        for chunk in PartReader(fs, part, names_in, ["bodies"]):
            if chunk.batch_type is MessageBatch:
                found["accepted"] += int((chunk.columns["origin_sequence"] == 0).sum())
                bodies.append(chunk.blobs["bodies"])
    found["pending"] = 2 * found["accepted"] - found.total()
    assert {name: found[name] for name in BALANCE} == old.balance
    assert all(body.encode() in b"".join(bodies) for body in old.bodies.values())


def names_in(kind: type[ColumnBatch]) -> list[str]:
    """The columns to read of a kind of record in message_log."""
    return ["origin_sequence"] if kind is MessageBatch else ["sequence"]
