"""Reschedule of many messages: each cancel and its send are atomic, and one request is one commit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from delayserver.operations.messages import rescheduling
from delayserver.protocol.columns import I64, U8, pack_column, unpack_column
from delayserver.protocol.outcomes import OUTCOME_LABELS
from delayserver.protocol.receipts import parse_receipt
from store.records.file_header import FILE_HEADER_BYTES
from store.records.record import HEADER_BYTES, decode_header
from tests.fakes.host import Boot, Client, Host, faked_settings

HOUR_MS = 3_600_000


async def put(client: Client, host: Host, count: int, **fields: Any) -> list[dict[str, Any]]:
    """Send messages `body 0`, `body 1`, … due in an hour."""
    due_ms = host.now_ms + HOUR_MS
    return await client.send(*[{"subject": "s", "body": f"body {n}", "due_ms": due_ms} | fields for n in range(count)])


async def move(client: Client, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = (await client.request("reschedule", {"items": items}))["results"]
    return results


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns that name some sent messages."""
    sequence, due_ms = (np.array([row[name] for row in rows], np.int64) for name in ("sequence", "due_ms"))
    return {"count": len(rows), "sequence": pack_column(sequence), "message_due_ms": pack_column(due_ms)}


async def test_many_messages_are_moved_in_one_commit(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    sent = await put(client, host, 300)
    before = (await client.status())["storage"]["group_commits"]
    due_ms = host.now_ms + 500
    results = await move(client, [{"receipt": row["receipt"], "due_ms": due_ms} for row in sent])
    assert (await client.status())["storage"]["group_commits"] == before + 1
    assert {row["outcome"] for row in results} == {"cancelled"}
    assert [parse_receipt(row["new_receipt"]).sequence for row in results] == [row["sequence"] for row in results]
    assert [row["message_id"] for row in results] == [
        f"{row['new_receipt'][:12]}-{row['sequence']:012x}" for row in results
    ]
    await host.sleep_ms(1_000)
    assert sorted(host.fake().texts) == sorted(f"body {n}" for n in range(300))
    await host.balanced(pending=0)


async def test_each_rescheduled_item_keeps_the_fields_that_it_does_not_change(boot: Boot) -> None:
    host, client = await boot.connected()
    due_ms = host.now_ms + HOUR_MS
    sent = [
        await client.put(f"old {n}", due_ms, message_id=f"id {n}", properties={"n": str(n)}, expires_ms=due_ms + n)
        for n in range(4)
    ]
    now = {"due_ms": host.now_ms}
    results = await move(
        client,
        [
            {"receipt": sent[0]["receipt"], "body": "new 0"} | now,
            {"receipt": sent[1]["receipt"], "properties": {"changed": "yes"}} | now,
            {"receipt": sent[2]["receipt"], "expires_ms": host.now_ms - 1} | now,
            {"subject": "s", "message_id": "id 3", "message_due_ms": due_ms} | now,
        ],
    )
    assert [row["message_id"] for row in results] == [f"id {n}" for n in range(4)]
    await host.sleep_ms(200)
    pulled = {row["message_id"]: row for row in await client.pull(max_messages=10)}
    assert {name: (row["body"], row["properties"]) for name, row in pulled.items()} == {
        "id 0": (b"new 0", {"n": "0"}),
        "id 1": (b"old 1", {"changed": "yes"}),
        "id 3": (b"old 3", {"n": "3"}),
    }
    assert await client.lookup(results[2]["new_receipt"]) == ["expired"]


async def test_a_bad_item_never_fails_its_neighbours(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(message={"body_bytes_max": 100}))
    sent = await put(client, host, 3)
    far = {"due_ms": host.now_ms + 2 * HOUR_MS}
    named: dict[str, Any] = {"receipt": sent[1]["receipt"]}
    bad: list[tuple[Any, str]] = [
        ("no map", "invalid_argument"),
        (named, "invalid_argument"),
        (named | {"due_ms": 1}, "too_old"),
        (named | {"due_ms": 2**62}, "too_far"),
        (named | far | {"body": 7}, "invalid_argument"),
        (named | far | {"body": "x" * 101}, "message_too_large"),
        (named | far | {"properties": {"a": 1}}, "properties_invalid"),
        (named | far | {"expires_ms": -1}, "invalid_argument"),
        (named | far | {"subject": "s", "message_id": "and by name"}, "invalid_argument"),
        (far | {"subject": "s", "message_id": "no number", "message_due_ms": "1"}, "invalid_argument"),
        (far | {"receipt": "x"}, "receipt_invalid"),
        (far | {"receipt": "0" * 12 + named["receipt"][12:]}, "foreign_receipt"),
    ]
    items = [{"receipt": sent[0]["receipt"]} | far, *[item for item, _ in bad], {"receipt": sent[2]["receipt"]} | far]
    first, *refused, last = await move(client, items)
    assert (first["outcome"], last["outcome"]) == ("cancelled", "cancelled")
    assert [row["error"] for row in refused] == [name for _, name in bad]
    assert await client.lookup(sent[1]["receipt"]) == ["pending"]


async def test_named_twice_a_message_is_moved_once(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    (sent,) = await put(client, host, 1)
    item = {"receipt": sent["receipt"], "due_ms": host.now_ms + 100}
    first, second = await move(client, [item, item])
    assert (first["outcome"], second["outcome"]) == ("cancelled", "already_cancelled")
    assert "new_receipt" not in second
    await host.sleep_ms(500)
    assert host.fake().texts == ["body 0"]
    await host.balanced(pending=0)


async def test_named_twice_by_its_id_a_message_is_moved_once_also_to_the_due_time_that_it_has(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 200
    await client.put("old", due_ms, message_id="mine")
    item = {"subject": "s", "message_id": "mine", "message_due_ms": due_ms, "due_ms": due_ms}
    first, second = await move(client, [item | {"body": "first"}, item | {"body": "second"}])
    assert (first["outcome"], second["outcome"]) == ("cancelled", "already_cancelled")
    assert await client.lookup(first["new_receipt"]) == ["pending"]
    await host.sleep_ms(500)
    assert host.fake().texts == ["first"]
    await host.balanced(pending=0)


async def test_named_twice_a_message_that_is_not_moved_is_not_cancelled_either(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    (sent, other) = await put(client, host, 2)
    await host.settled()
    later = {"due_ms": host.now_ms + 2 * HOUR_MS}
    item, good = {"receipt": sent["receipt"]} | later, {"receipt": other["receipt"]} | later
    host.disk.fail_next_sync("/message_log/")
    rows = await move(client, [item, good, item])
    assert [row.get("error") for row in rows] == ["storage_failed"] * 3
    assert not any("outcome" in row for row in rows)


async def test_damage_refuses_its_own_messages_and_moves_the_others(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    (damaged,) = await put(client, host, 1)
    await host.settled()  # a record of its own
    (whole,) = await put(client, host, 1)
    await host.settled()
    await host.stop()
    (path,) = [path for path in host.disk.files("/data/schedule_log") if path.endswith(".direct.log")]
    header = decode_header(host.disk.content(path)[FILE_HEADER_BYTES:][:HEADER_BYTES], FILE_HEADER_BYTES)
    host.disk.flip_bit(path, header.blob_offset + 3)
    client = await host.start_connected()
    later = {"due_ms": host.now_ms + 2 * HOUR_MS}
    first, second = await move(client, [{"receipt": row["receipt"]} | later for row in (damaged, whole)])
    assert (first["error"], second["outcome"]) == ("message_damaged", "cancelled")
    assert await client.lookup(damaged["receipt"], whole["receipt"]) == ["pending", "cancelled"]


async def test_old_messages_are_read_a_bounded_part_at_a_time(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescheduling, "READ_BYTES_MAX", 1_000)
    host, client = await boot.connected(faked_settings())
    sent = await put(client, host, 7, body="x" * 400)
    before = (await client.status())["storage"]["group_commits"]
    results = await move(client, [{"receipt": row["receipt"], "due_ms": host.now_ms} for row in sent])
    assert {row["outcome"] for row in results} == {"cancelled"}
    assert (await client.status())["storage"]["group_commits"] == before + 4, "two messages of 400 bytes at a time"
    await host.sleep_ms(300)
    assert len(host.fake().texts) == 7


async def test_a_full_disk_refuses_the_move_and_the_messages_live_on(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    sent = await put(client, host, 3)
    await host.settled()
    host.disk.capacity_bytes = host.disk.used_bytes + (1 << 16)
    later = {"due_ms": host.now_ms + 2 * HOUR_MS}
    bodies = [{"receipt": row["receipt"], "body": "x" * 900_000} | later for row in sent]
    assert {row["error"] for row in await move(client, bodies)} == {"disk_full"}
    host.disk.capacity_bytes = None
    assert await client.lookup(*[row["receipt"] for row in sent]) == ["pending"] * 3
    host.clock.step(HOUR_MS - 5_000)
    await host.sleep_ms(6_000)
    assert sorted(host.fake().texts) == ["body 0", "body 1", "body 2"]


async def test_columns_move_messages_and_answer_in_columns(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    sent = await put(client, host, 3, message_id=None)
    await client.cancel(sent[1]["receipt"])
    due_ms = np.array([host.now_ms + 100, host.now_ms, 1], np.int64)
    reply = await client.request(
        "reschedule", columns_of(sent) | {"server_id": sent[0]["receipt"][:12], "due_ms": pack_column(due_ms)}
    )
    outcome = [OUTCOME_LABELS[code] for code in unpack_column(reply["outcome"], 3, U8, "outcome").tolist()]
    assert outcome == ["cancelled", "already_cancelled", "unknown"]
    assert unpack_column(reply["due_ms"], 3, I64, "due_ms").tolist() == due_ms.tolist()
    first, *others = unpack_column(reply["new_sequence"], 3, I64, "new_sequence").tolist()
    assert first > sent[2]["sequence"] and others == [0, 0]
    assert [row[:2] for row in reply["rejected"]] == [[2, "too_old"]]
    await host.sleep_ms(500)
    assert host.fake().texts == ["body 0"]


@pytest.mark.parametrize("operation", ["reschedule", "cancel"])
async def test_columns_of_another_servers_messages_are_refused(boot: Boot, operation: str) -> None:
    host, client = await boot.connected(faked_settings())
    sent = await put(client, host, 1)
    columns = columns_of(sent) | {"due_ms": sent[0]["due_ms"]}
    assert await client.refused(operation, columns | {"server_id": "0" * 12}) == "foreign_receipt"
    assert await client.refused(operation, columns | {"server_id": 7}) == "invalid_argument"
    assert await client.lookup(sent[0]["receipt"]) == ["pending"]


async def rescheduled_to(client: Client, *receipts: str) -> list[str | None]:
    results = (await client.request("lookup", {"receipts": list(receipts)}))["results"]
    return [result.get("rescheduled_to") for result in results]


@pytest.mark.parametrize("due_in_ms", [HOUR_MS, 40 * 24 * HOUR_MS])
async def test_lookup_of_a_moved_message_names_the_one_in_its_place_for_as_long_as_it_is_kept(
    boot: Boot, due_in_ms: int
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + due_in_ms
    moved, cancelled = [await client.put("m", due_ms) for _ in range(2)]
    (first,) = await move(client, [{"receipt": moved["receipt"], "due_ms": due_ms + 1}])
    (second,) = await move(client, [{"receipt": first["new_receipt"], "due_ms": host.now_ms + 100}])
    await client.cancel(cancelled["receipt"])
    receipts = [moved["receipt"], first["new_receipt"], second["new_receipt"], cancelled["receipt"]]
    expected = [first["new_receipt"], second["new_receipt"], None, None]
    assert await rescheduled_to(client, *receipts) == expected
    await host.settled()
    await host.restart()
    client = await host.client()
    assert await rescheduled_to(client, *receipts) == expected
    await host.restart_unpowered(1)
    assert await rescheduled_to(await host.client(), *receipts) == expected


async def test_a_directory_without_a_reschedule_holds_records_of_the_first_version_only(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    sent = await put(client, host, 3)
    await client.cancel(sent[0]["receipt"])
    await client.put("m", host.now_ms)
    await host.sleep_ms(1_000)
    await host.settled()
    assert versions(host) == {1}
    await move(client, [{"receipt": sent[1]["receipt"], "due_ms": host.now_ms}])
    await host.sleep_ms(1_000)
    await host.settled()
    assert versions(host) == {1, 2}


def versions(host: Host) -> set[int]:
    """The versions of the records of outcomes."""
    found = set()
    for path in host.disk.files("/data/dispatch_log"):
        content, offset = host.disk.content(path), FILE_HEADER_BYTES
        while path.endswith(".log") and offset + HEADER_BYTES <= len(content):
            header = decode_header(content[offset : offset + HEADER_BYTES], offset)
            found.add(header.version)
            offset = header.end
    return found


async def test_lookup_in_columns_answers_the_same_as_by_receipts(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    delivered = await client.put("m", host.now_ms)
    await host.sleep_ms(500)
    moved, pending, original = await put(client, host, 2, message_id=None) + await put(client, host, 1, message_id="i")
    (copy,) = await client.send({"subject": "s", "body": "m", "due_ms": original["due_ms"], "message_id": "i"})
    (new,) = await move(client, [{"receipt": moved["receipt"], "due_ms": host.now_ms + HOUR_MS}])
    rows = [delivered, moved, pending, copy]
    columns = columns_of(rows)
    columns["due_ms"] = columns.pop("message_due_ms")
    reply = await client.request("lookup", columns | {"server_id": moved["receipt"][:12]})
    outcome = [OUTCOME_LABELS[code] for code in unpack_column(reply["outcome"], 4, U8, "outcome").tolist()]
    assert outcome == await client.lookup(*[row["receipt"] for row in rows])
    assert outcome == ["delivered", "cancelled", "pending", "deduplicated"]
    read = {
        name: unpack_column(reply[name], 4, I64, name).tolist() for name in reply if name not in ("outcome", "rejected")
    }
    assert read["original_sequence"] == [0, 0, 0, original["sequence"]]
    assert read["rescheduled_sequence"] == [0, new["sequence"], 0, 0]
    assert read["rescheduled_due_ms"] == [0, new["due_ms"], 0, 0]
    assert read["attempts"] == [1, 0, 0, 0]
    assert (read["dispatched_us"][0] > 0, read["dispatched_us"][2:]) == (True, [0, 0])
    assert reply["rejected"] == []
