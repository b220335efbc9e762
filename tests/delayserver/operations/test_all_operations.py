"""Rule 12 over the wire: every item has its own answer or named error; reschedule is atomic."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from delayserver.config.settings import RouteSettings
from delayserver.protocol.columns import U32, pack_column
from store.logs.dispatch_log import DispatchKey
from store.records.batches import I64, OutcomeBatch
from store.records.scan import Damage
from tests.fakes.host import Boot, Host, fake_group, faked_settings, small_settings, texts

DAY_MS = 86_400_000
COLUMNS = {"count": 1, "delay_ms": 0, "bodies": b"", "body_length": 0}


async def test_a_bad_row_never_fails_its_neighbours(boot: Boot) -> None:
    host, client = await boot.connected(
        faked_settings(message={"body_bytes_max": 100, "properties_bytes_max": 50, "subjects_max": 8})
    )
    good = {"subject": "s", "body": "ok", "due_ms": host.now_ms + 50}
    bad: list[tuple[Any, str]] = [
        ("not a map", "invalid_argument"),
        (good | {"body": 1}, "invalid_argument"),
        (good | {"body": "x" * 101}, "message_too_large"),
        (good | {"subject": ""}, "subject_invalid"),
        (good | {"subject": "x" * 256}, "subject_invalid"),
        (good | {"subject": "a\nb"}, "subject_invalid"),
        (good | {"subject": 7}, "subject_invalid"),
        (good | {"message_id": ""}, "message_id_invalid"),
        (good | {"message_id": "x" * 256}, "message_id_invalid"),
        (good | {"properties": {"a": 1}}, "properties_invalid"),
        (good | {"properties": {"a": "x" * 60}}, "properties_invalid"),
        (good | {"due_ms": "soon"}, "invalid_argument"),
        (good | {"due_ms": True}, "invalid_argument"),
        (good | {"due_ms": 1.5}, "invalid_argument"),
        (good | {"delay_ms": 5}, "invalid_argument"),
        ({"subject": "s", "body": "x"}, "invalid_argument"),
        ({"subject": "s", "body": "x", "delay_ms": -1}, "invalid_argument"),
        (good | {"expires_ms": -5}, "invalid_argument"),
        (good | {"due_ms": host.now_ms + 3 * 366 * DAY_MS}, "too_far"),
        (good | {"due_ms": host.now_ms - 3 * DAY_MS}, "too_old"),
        *[(good | {"subject": f"new{i}"}, "subjects_full" if i > 6 else "") for i in range(8)],
    ]
    messages = [part for item, _ in bad for part in (good, item)]
    results = await client.send(*messages)
    assert all("receipt" in result for result in results[::2])
    assert [result.get("error", "") for result in results[1::2]] == [name for _, name in bad]
    assert all(result["message"] for result in results[1::2] if "error" in result)
    accepted = sum("receipt" in result for result in results)
    await host.sleep_ms(200)
    assert len(host.fake().stored) == accepted
    sequences = [result["sequence"] for result in results if "receipt" in result]
    assert sequences == list(range(sequences[0], sequences[0] + accepted))
    await host.balanced(pending=0)


async def test_a_bad_row_in_columns_never_fails_its_neighbours(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(message={"body_bytes_max": 10}))
    now_ms = host.now_ms
    properties = msgpack.packb({"k": "v"})
    lengths = np.array([2, 11, 2, 2, 2, 2], "<u4")
    due_ms = np.array([now_ms + 50, now_ms + 50, now_ms - 9 * DAY_MS, now_ms + 900 * DAY_MS, now_ms + 50, now_ms + 50])
    reply = await client.request(
        "send",
        {
            "count": 6,
            "subjects": ["s", ""],
            "subject_index": pack_column(np.array([0, 0, 0, 0, 1, 0], np.uint32), U32),
            "due_ms": pack_column(due_ms),
            "bodies": b"x" * int(lengths.sum()),
            "body_length": lengths.tobytes(),
            "properties": properties + b"\xc1\xc1",
            "properties_length": np.array([len(properties), 0, 0, 0, 0, 2], "<u4").tobytes(),
        },
    )
    assert [(index, error) for index, error, _, _ in reply["rejected"]] == [
        (1, "message_too_large"),
        (2, "too_old"),
        (3, "too_far"),
        (4, "subject_invalid"),
        (5, "properties_invalid"),
    ]
    assert reply["accepted"] == 1
    await host.sleep_ms(100)
    assert host.fake().stored == [reply["first_sequence"]]


@pytest.mark.parametrize(
    ("operation", "arguments", "error"),
    [
        ("send", {}, "invalid_argument"),
        ("send", {"messages": []}, "invalid_argument"),
        ("send", {"messages": "x"}, "invalid_argument"),
        ("send", {"messages": [{}] * 6}, "batch_too_large"),
        ("send", {"count": 6, "subject": "s", "delay_ms": 0, "bodies": b"", "body_length": 0}, "batch_too_large"),
        ("send", {"count": 0, "subject": "s", "delay_ms": 0, "bodies": b"", "body_length": 0}, "invalid_argument"),
        ("send", {"count": 2, "subject": "s", "delay_ms": 0, "bodies": b"abc", "body_length": 1}, "invalid_argument"),
        (
            "send",
            {"count": 2, "subject": "s", "delay_ms": b"abc", "bodies": b"ab", "body_length": 1},
            "invalid_argument",
        ),
        ("send", {"count": -1, "subject": "s", "delay_ms": 0, "bodies": b"", "body_length": 0}, "invalid_argument"),
        ("send", COLUMNS | {"subjects": ["s"], "subject_index": 5}, "invalid_argument"),
        ("cancel", {}, "invalid_argument"),
        ("cancel", {"receipts": []}, "invalid_argument"),
        ("cancel", {"receipts": ["x"] * 6}, "batch_too_large"),
        ("cancel", {"count": 6, "sequence": 1, "due_ms": 1}, "batch_too_large"),
        ("lookup", {"messages": {}}, "invalid_argument"),
        ("reschedule", {"items": []}, "invalid_argument"),
        ("route", {}, "invalid_argument"),
        ("route", {"group": "nobody"}, "not_routed"),
        ("pull", {"subject": "", "group": "g"}, "subject_invalid"),
        ("pull", {"subject": "s", "group": 5}, "subject_invalid"),
        ("pull", {"subject": "s", "group": "g", "max_messages": 0}, "invalid_argument"),
        ("pull", {"subject": "s", "group": "g", "wait_ms": "long"}, "invalid_argument"),
        ("ack", {"subject": "s", "group": "g", "count": 2, "deliveries": b"x"}, "invalid_argument"),
        ("nack", {"subject": "s", "group": "g", "count": 1, "deliveries": 1, "delay_ms": -1}, "invalid_argument"),
        ("deliver", {}, "invalid_argument"),
        ("deliver", {"count": 0}, "invalid_argument"),
        ("window_complete", {"server_id": "x", "window_ms": []}, "invalid_argument"),
        ("window_complete", {"server_id": "0" * 12, "window_ms": ["x"]}, "invalid_argument"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_by_name(
    boot: Boot, operation: str, arguments: dict[str, Any], error: str
) -> None:
    host, client = await boot.connected(small_settings(message={"batch_messages_max": 5}))
    assert await client.refused(operation, arguments) == error
    await client.put("m", host.now_ms)


async def test_receipts_that_are_foreign_or_none_have_their_own_errors(boot: Boot) -> None:
    host, client = await boot.connected()
    receipt = (await client.put("m", host.now_ms + 60_000))["receipt"]
    foreign = "0" * 11 + "1" + receipt[12:]
    never = receipt[:-12] + "f" * 12
    wrong_due = receipt[:13] + f"{int(receipt[13:25], 16) + 1:012x}" + receipt[25:]
    given = [foreign, "nonsense", receipt, never, wrong_due, receipt.upper() + "x"]
    expected = ["foreign_receipt", "receipt_invalid", "pending", "unknown", "unknown", "receipt_invalid"]
    assert await client.lookup(*given) == expected
    assert await client.cancel(*given) == ["cancelled" if name == "pending" else name for name in expected]
    results = (await client.request("lookup", {"receipts": [7, None, receipt]}))["results"]
    assert [result.get("error") or result["outcome"] for result in results] == ["receipt_invalid"] * 2 + ["cancelled"]


async def reschedule(host: Host, item: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = (await (await host.client()).request("reschedule", {"items": [item]}))["results"][0]
    return result


async def test_reschedule_replaces_the_message_in_one_step_and_keeps_its_unchanged_fields(boot: Boot) -> None:
    host, client = await boot.connected()
    due_ms = host.now_ms + 60_000
    old = await client.put("body", due_ms, message_id="mine", properties={"k": "v"}, expires_ms=due_ms + DAY_MS)
    new = await reschedule(host, {"receipt": old["receipt"], "due_ms": host.now_ms + 300})
    assert new["outcome"] == "cancelled"
    assert new["message_id"] == "mine"
    assert await client.lookup(old["receipt"], new["new_receipt"]) == ["cancelled", "pending"]
    (message,) = await client.pull(wait_ms=1_000, ack_timeout_ms=600_000)
    assert (message["body"], message["properties"], message["message_id"]) == (b"body", {"k": "v"}, "mine")
    changed = await client.put("old", due_ms, message_id="other")
    await reschedule(
        host, {"receipt": changed["receipt"], "due_ms": host.now_ms, "body": "new", "properties": {"a": "b"}}
    )
    (message,) = await client.pull(wait_ms=1_000, ack_timeout_ms=600_000)
    assert (message["body"], message["properties"]) == (b"new", {"a": "b"})
    await host.sleep_ms(61_000)
    assert await client.pull() == []
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["cancelled"], status["delivered"]) == (4, 2, 2)


async def test_reschedule_keeps_when_the_message_expires(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_000
    old = await client.put("m", due_ms, expires_ms=due_ms + 500)
    new = await reschedule(host, {"receipt": old["receipt"], "due_ms": due_ms + 2_000})
    never = await client.put("m", due_ms, expires_ms=due_ms + 500)
    kept = await reschedule(host, {"receipt": never["receipt"], "due_ms": due_ms + 2_000, "expires_ms": 0})
    await host.sleep_ms(4_000)
    assert await client.lookup(new["new_receipt"], kept["new_receipt"]) == ["expired", "delivered"]


async def test_reschedule_to_the_same_due_time_with_the_same_id_is_delivered_once(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 500
    old = await client.put("old", due_ms, message_id="mine")
    new = await reschedule(host, {"receipt": old["receipt"], "due_ms": due_ms, "body": "new"})
    retry = await client.put("retry of old", due_ms, message_id="mine")
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["new"]
    assert await client.lookup(old["receipt"], new["new_receipt"], retry["receipt"]) == [
        "cancelled",
        "delivered",
        "deduplicated",
    ]
    await host.balanced(pending=0)


async def test_reschedule_of_a_message_that_cannot_be_cancelled_says_why_and_sends_nothing(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 100
    delivered, cancelled = [(await client.put("m", due_ms))["receipt"] for _ in range(2)]
    await client.cancel(cancelled)
    await host.sleep_ms(500)
    far = {"due_ms": host.now_ms + 60_000}
    assert (await reschedule(host, {"receipt": delivered} | far))["outcome"] == "delivered"
    assert (await reschedule(host, {"receipt": cancelled} | far))["outcome"] == "already_cancelled"
    assert (await reschedule(host, {"receipt": cancelled[:-12] + "f" * 12} | far))["outcome"] == "unknown"
    assert (await reschedule(host, {"receipt": cancelled, "due_ms": 2**62}))["error"] == "too_far"
    assert (await reschedule(host, {"receipt": "x"} | far))["error"] == "receipt_invalid"
    by_id = {"subject": "s", "message_id": "no", "message_due_ms": due_ms}
    assert (await reschedule(host, by_id | far))["outcome"] == "unknown"
    assert (await host.balanced(pending=0))["accepted"] == 2


@pytest.mark.parametrize("seed", range(6))
async def test_a_crash_leaves_a_reschedule_done_or_not_done(boot: Boot, seed: int) -> None:
    host, client = await boot.connected(faked_settings())
    old = await client.put("old", host.now_ms + 1_000)
    host.disk.crash_after(1 + seed % 3)
    await client.ask(
        "reschedule", {"items": [{"receipt": old["receipt"], "due_ms": host.now_ms + 1_500, "body": "new"}]}
    )
    await host.sleep_ms(100)
    await host.restart_unpowered(seed)
    await host.sleep_ms(2_500)
    assert host.fake().texts in (["old"], ["new"])
    await host.balanced(pending=0)


async def test_route_names_the_nodes_with_their_weights(boot: Boot) -> None:
    host = boot()
    started_ms = host.now_ms
    client = await host.start_connected()
    route = await client.request("route", {"subject": "any"})
    assert started_ms <= route["nodes"][0].pop("since_ms") <= host.now_ms
    assert route == {
        "group": "default",
        "nodes": [{"address": "host:1", "weight": 1, "state": "up", "here": True}],
    }


async def test_route_says_which_nodes_are_alive_and_since_when(boot: Boot) -> None:
    group = fake_group("fakes", "fakeA", "fakeB")
    host, client = await boot.connected(
        small_settings(groups=(group,), routes=(RouteSettings("*", ("fakes",)),), dispatch={"backoff_ms_max": 500})
    )

    async def states() -> dict[str, tuple[str, int]]:
        nodes = (await client.request("route", {"group": "fakes"}))["nodes"]
        return {node["address"]: (node["state"], node["since_ms"]) for node in nodes}

    assert [state for state, _ in (await states()).values()] == ["unknown", "unknown"]
    host.fake("fakeB").up = False
    await host.sleep_ms(60_000)
    for number in range(30):
        await client.put(f"{number}", host.now_ms)
        await host.sleep_ms(1_000)
    found = await states()
    assert found["fakeA:1"][0] == "up" and found["fakeB:1"][0] == "down"
    assert host.now_ms - 31_000 <= found["fakeA:1"][1] <= host.now_ms - 28_000
    assert found["fakeA:1"][1] < found["fakeB:1"][1] < host.now_ms - 5_000, "down since its fifth failure"
    host.fake("fakeB").up = True
    back_ms = host.now_ms
    for number in range(5):
        await client.put(f"again {number}", host.now_ms)
        await host.sleep_ms(1_000)
    found = await states()
    assert found["fakeB:1"][0] == "up" and found["fakeB:1"][1] >= back_ms


async def test_lookup_answers_every_outcome(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"retention_ms": 120_000}))
    due_ms = host.now_ms + 100
    delivered = (await client.put("delivered", due_ms, message_id="id"))["receipt"]
    copy = (await client.put("copy", due_ms, message_id="id"))["receipt"]
    expired = (await client.put("expired", due_ms, expires_ms=due_ms - 1))["receipt"]
    cancelled = (await client.put("cancelled", due_ms))["receipt"]
    pending = (await client.put("pending", due_ms + 3_600_000))["receipt"]
    await client.cancel(cancelled)
    await host.sleep_ms(1_000)
    names = [delivered, copy, expired, cancelled, pending]
    assert await client.lookup(*names) == ["delivered", "deduplicated", "expired", "cancelled", "pending"]
    assert (await client.find(copy))["original_receipt"] == delivered
    assert texts(await client.pull()) == ["delivered"]
    host.clock.step(600_000)
    await host.sleep_ms(11_000)
    assert await client.lookup(*names) == ["retired"] * 4 + ["pending"]
    assert await client.cancel(delivered) == ["retired"]
    host.check_balance(pending=1)
    await host.restart_killed()
    host.check_balance(pending=1)
    assert await (await host.client()).lookup(*names) == ["retired"] * 4 + ["pending"]


async def test_a_file_of_outcomes_is_read_once_for_all_messages_of_a_request(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.operations.messages.message_states.INLINE_READ_BYTES_MAX", 0)
    host, client = await boot.connected()
    due_ms = host.now_ms // 60_000 * 60_000 + 60_000
    receipts = [(await client.put(f"m{index}", due_ms + index))["receipt"] for index in range(20)]
    await host.sleep_ms(61_000)
    await host.settled()
    read: list[int] = []
    rows_of = host.server.parts.files.dispatch.rows_of

    def counted(key: DispatchKey, sequences: I64, damages: list[Damage]) -> OutcomeBatch:
        read.append(len(sequences))
        return rows_of(key, sequences, damages)

    monkeypatch.setattr(host.server.parts.files.dispatch, "rows_of", counted)
    results = (await client.request("lookup", {"receipts": receipts}))["results"]
    assert read == [20]
    for index, result in enumerate(results):
        assert (result["outcome"], result["attempts"], result["broker_group"]) == ("delivered", 1, "default")
        assert result["dispatched_us"] // 1000 >= due_ms + index


async def test_the_longest_delay_is_taken_and_one_more_is_not(boot: Boot) -> None:
    host, client = await boot.connected()
    longest = host.settings.message.delay_ms_max
    await host.sleep_ms(0.4)  # a clock between two milliseconds
    taken, refused = await client.send(
        {"subject": "s", "body": "", "delay_ms": longest}, {"subject": "s", "body": "", "delay_ms": longest + 1}
    )
    assert "receipt" in taken and refused["error"] == "too_far"


async def test_a_derived_id_names_its_message_under_its_own_subject_alone(boot: Boot) -> None:
    host, client = await boot.connected()
    due_ms = host.now_ms + 60_000
    mine = await client.put("m", due_ms, subject="mine")
    await client.put("other", due_ms, subject="other")
    name = {"message_id": mine["message_id"], "due_ms": due_ms}
    for subject, outcome in (("other", "unknown"), ("never seen", "unknown"), ("mine", "pending")):
        (found,) = (await client.request("lookup", {"messages": [name | {"subject": subject}]}))["results"]
        assert found["outcome"] == outcome, subject
    (answer,) = (await client.request("cancel", {"messages": [name | {"subject": "other"}]}))["results"]
    assert answer["outcome"] == "unknown"
    (answer,) = (await client.request("cancel", {"messages": [name | {"subject": "mine"}]}))["results"]
    assert answer["outcome"] == "cancelled"
    taken = mine["message_id"]
    (row,) = await client.send({"subject": "s", "body": "", "due_ms": due_ms, "message_id": taken})
    assert row["error"] == "message_id_invalid"
    (row,) = await client.send({"subject": "s", "body": "", "due_ms": due_ms, "message_id": "f" * 12 + taken[12:]})
    assert "receipt" in row, "another server's is as good as any"
    columns = {
        "count": 2,
        "subject": "s",
        "due_ms": pack_column(np.full(2, due_ms)),
        "bodies": b"",
        "body_length": pack_column(np.zeros(2, np.uint32)),
        "message_ids": (taken + "x" * 12 + "-" + "y" * 12).encode(),
        "message_id_length": pack_column(np.full(2, 25, np.uint32)),
    }
    result = await client.request("send", columns)
    assert (result["accepted"], [row[:2] for row in result["rejected"]]) == (1, [[0, "message_id_invalid"]])


async def test_a_cancel_of_no_items_is_an_invalid_argument(boot: Boot) -> None:
    _, client = await boot.connected()
    assert await client.refused("cancel", {"count": 0, "sequence": b"", "due_ms": b""}) == "invalid_argument"


async def test_a_subject_without_a_route_is_routed_as_it_is_delivered(boot: Boot) -> None:
    groups = (fake_group("first", "fake1"), fake_group("second", "fake2"))
    host, client = await boot.connected(small_settings(groups=groups, routes=(RouteSettings("b.*", ("second",)),)))
    await client.put("m", host.now_ms + 100, subject="nobody's")
    await host.until(lambda: host.fake("fake1").texts == ["m"])
    assert (await client.request("route", {"subject": "nobody's"}))["group"] == "first"
    assert (await client.request("route", {"subject": "b.1"}))["group"] == "second"


async def test_half_given_arguments_are_refused_and_not_ignored(boot: Boot) -> None:
    """Ids that are dropped cost the sender, without a word, that a repeated send is one message. A name without an id would
    be `unknown`, which says that it was never accepted. A redispatch cannot be undone."""
    host, client = await boot.connected()
    due_ms = host.now_ms + 60_000
    columns = {"subject": "s", "due_ms": due_ms, "count": 2, "bodies": b"ab", "body_length": 1}
    for wrong in (
        {"message_ids": b"", "message_id_length": 1},
        {"message_ids": "", "message_id_length": 0},
        {"message_ids": 0},
        {"message_id_length": 1},
        {"message_id": b"xy", "message_id_length": 1},
        {"properties": b"", "properties_length": 3},
        {"properties_length": 1},
    ):
        assert await client.refused("send", columns | wrong) == "invalid_argument", wrong
    for fine in ({}, {"message_ids": None, "properties": None}, {"message_ids": b"", "message_id_length": 0}):
        assert (await client.request("send", columns | fine))["accepted"] == 2
    receipt = (await client.put("m", due_ms, message_id="id"))["receipt"]
    for name in ({"subject": "s", "due_ms": due_ms}, {"subject": "s", "due_ms": due_ms, "message_id": None}):
        for operation in ("lookup", "cancel"):
            (result,) = (await client.request(operation, {"messages": [name]}))["results"]
            assert result["error"] == "invalid_argument"
        item = {"subject": "s", "message_due_ms": due_ms, "due_ms": due_ms + 1}
        (result,) = (await client.request("reschedule", {"items": [item]}))["results"]
        assert result["error"] == "invalid_argument"
    for value in ("false", [0], 1):
        arguments = {"from_ms": due_ms, "to_ms": due_ms + 1, "dry_run": value}
        assert await client.refused("redispatch", arguments) == "invalid_argument"
    named = {"receipts": None, "messages": [{"subject": "s", "message_id": "id", "due_ms": due_ms}]}
    assert (await client.request("lookup", named))["results"] == [await client.find(receipt)]
    assert (await client.request("cancel", named))["results"] == [{"receipt": receipt, "outcome": "cancelled"}]
