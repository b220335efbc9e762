"""The test vectors of the protocol: the codec draws and reads their bytes, and a server answers in their shape."""

from __future__ import annotations

import json
import re
from typing import Any

import msgpack
import numpy as np
import pytest

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.client.values.timing import ServerClock
from delayserver.protocol.columns import I64, U8, U32, unpack_column, unpack_ragged
from delayserver.protocol.errors import ERRORS, DelayServerError, InvalidArgument, error_to_map
from delayserver.protocol.frames import FrameDecoder, decode_reply, decode_request, encode_frame
from delayserver.protocol.limits import DEFAULT_LIMITS
from delayserver.protocol.operation_names import OPERATIONS
from delayserver.protocol.proof import make_proof
from delayserver.protocol.receipts import derived_message_id, format_receipt, parse_receipt
from delayserver.protocol.slots import slot_of
from ops.docs.wire_tables import MADE_BY_CLIENTS
from tests.delayserver.protocol import vectors
from tests.fakes.host import Boot, Host, small_settings

FILE: dict[str, Any] = json.loads(vectors.VECTORS.read_text())
FRAMES = {frame["name"]: frame for frame in FILE["frames"]}
REQUESTS = [name for name in FRAMES if name.endswith("request")]
REPLIES = [name for name in FRAMES if name.endswith("reply")]
DTYPES: dict[str, np.dtype[Any]] = {"i64": I64, "u32": U32, "u8": U8}


def frame_of(name: str) -> bytes:
    return bytes.fromhex(FRAMES[name]["hex"])


def value_of(name: str) -> Any:
    return vectors.from_json(FRAMES[name]["value"])


def parts(bad: dict[str, Any]) -> bytes:
    return b"".join([bytes.fromhex(part) * times for part, times in bad["hex_parts"]])


def test_the_file_of_vectors_is_that_of_the_present_codec() -> None:
    assert vectors.VECTORS.read_text() == vectors.text(), "run python -m tests.delayserver.protocol.vectors"


def test_every_operation_has_a_request_and_a_reply() -> None:
    asked = {value_of(name)[0]: value_of(name)[1] for name in REQUESTS}
    assert set(asked.values()) == OPERATIONS
    answered = {value_of(name)[0] for name in REPLIES}
    assert {asked[request_id] for request_id in asked if request_id in answered} == OPERATIONS


def test_every_error_of_a_server_has_a_reply() -> None:
    errors = {value_of(name)[2]["error"] for name in REPLIES if not value_of(name)[1]}
    assert errors >= ERRORS.keys() - MADE_BY_CLIENTS


def test_the_delivery_ids_do_not_fit_into_doubles() -> None:
    assert int(float(vectors.DELIVERY + 1)) != vectors.DELIVERY + 1


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_drawn_and_read_as_its_value(name: str) -> None:
    value = value_of(name)
    assert encode_frame(value) == frame_of(name)
    [payload] = FrameDecoder().feed(frame_of(name))
    if name in REQUESTS:
        assert list(decode_request(payload)) == value
    else:
        reply = decode_reply(payload)
        assert reply.id == value[0]
        assert (reply.result if value[1] else value[2]["error"]) == (
            value[2] if value[1] else reply.error and reply.error.name
        )


@pytest.mark.parametrize("bad", FILE["bad_frames"], ids=[bad["name"] for bad in FILE["bad_frames"]])
def test_a_bad_frame_is_refused_by_its_name(bad: dict[str, Any]) -> None:
    if bad["error"] == "unknown_operation":
        return  # the codec knows no operations; the server does, below
    with pytest.raises(DelayServerError) as caught:
        for payload in FrameDecoder().feed(parts(bad)):
            decode_request(payload)
    assert (caught.value.error, caught.value.request_id) == (bad["error"], bad["id"])


@pytest.mark.parametrize("column", FILE["columns"], ids=[column["name"] for column in FILE["columns"]])
def test_a_column_is_read_as_its_rows(column: dict[str, Any]) -> None:
    value = msgpack.unpackb(bytes.fromhex(column["hex"]))
    if "error" in column:
        with pytest.raises(InvalidArgument):
            unpack_column(value, column["count"], DTYPES[column["type"]], "column")
    else:
        rows = unpack_column(value, column["count"], DTYPES[column["type"]], "column")
        assert rows.tolist() == vectors.from_json(column["rows"])


@pytest.mark.parametrize("ragged", FILE["ragged"], ids=[ragged["name"] for ragged in FILE["ragged"]])
def test_ragged_bytes_are_read_as_their_rows(ragged: dict[str, Any]) -> None:
    blob, lengths = bytes.fromhex(ragged["bytes"]), msgpack.unpackb(bytes.fromhex(ragged["lengths"]))
    if "error" in ragged:
        with pytest.raises(InvalidArgument):
            unpack_ragged(blob, lengths, ragged["count"], "bodies", "body_length")
    else:
        rows = unpack_ragged(blob, lengths, ragged["count"], "bodies", "body_length").rows()
        assert [row.hex() for row in rows] == ragged["rows"]


def test_receipts_ids_and_proofs_are_drawn_and_read() -> None:
    for row in FILE["receipts"]:
        receipt = parse_receipt(row["receipt"])
        assert (receipt.server_id, receipt.due_ms, receipt.sequence) == (
            row["server_id"],
            row["due_ms"],
            row["sequence"],
        )
        assert format_receipt(row["server_id"], row["due_ms"], row["sequence"]) == row["receipt"]
        assert derived_message_id(row["server_id"], row["sequence"]) == row["derived_message_id"]
    for bad in FILE["bad_receipts"]:
        with pytest.raises(DelayServerError, match="receipt_invalid"):
            parse_receipt(bad)
    for row in FILE["proofs"]:
        assert make_proof(row["secret"], bytes.fromhex(row["challenge"])).hex() == row["proof"]


def test_slots_follow_from_subject_and_key() -> None:
    assert [slot_of(row["subject"], row["key"]) for row in FILE["slots"]] == [row["slot"] for row in FILE["slots"]]


def test_the_clock_rule_gives_the_due_times() -> None:
    for row in FILE["clocks"]:
        clock = ServerClock(iter([row["sent_us"], row["now_us"]]).__next__)
        clock.learn(row["server_us"], row["sent_us"])
        assert clock.now_ms() + row["delay_ms"] == row["due_ms"]


def test_the_largest_reply_is_as_large_as_the_page_says() -> None:
    text = "x" * DEFAULT_LIMITS.subject_bytes_max
    row = vectors.pulled_row(
        message_id="", subject=text, sequence=2**48 - 1, expires_ms=2**62, attempt=2**31, body=b"", delivery=2**62
    )
    beside_budget = len(msgpack.packb(row)) + 27 + 5  # a derived id, and the longest head of a body
    pulled = BrokerLimits().pull_bytes_max + DEFAULT_LIMITS.pull_messages_max * beside_budget
    sent = {"receipt": "r" * 38, "message_id": text, "subject": text, "due_ms": 2**62, "sequence": 2**62}
    found = {
        "receipt": "r" * 38,
        "outcome": "deduplicated",
        "subject": text,
        "dispatched_us": 2**62,
        "attempts": 2**31,
        "unanswered_elsewhere": 255,
        "broker_group": text,
        "due_ms": 2**62,
        "original_receipt": "r" * 38,
        "rescheduled_to": "r" * 38,
    }
    for rows in (sent, found):
        assert len(msgpack.packb(rows)) * DEFAULT_LIMITS.batch_messages_max <= DEFAULT_LIMITS.frame_bytes_max
    assert pulled <= DEFAULT_LIMITS.frame_bytes_max


# -- a server answers in the shape of the vectors


def shape(value: Any) -> Any:
    """The keys and types of a value; a column is a column, however it is drawn."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def same_shape(name: str, found: dict[str, Any], columns: bool = False) -> None:
    expected = value_of(name)[2]
    assert found.keys() == expected.keys(), name
    if not columns:
        assert shape(found) == shape(expected), name


async def test_a_server_answers_bad_frames_as_the_vectors_say(boot: Boot) -> None:
    host: Host = boot(small_settings())
    await host.start()
    for bad in FILE["bad_frames"]:
        client = await host.client()
        await client.send_bytes(parts(bad))
        while bad["id"] not in client.replies:
            await client.take()
        error = client.replies[bad["id"]].error
        assert error is not None and error.name == bad["error"], bad["name"]
        if bad["closes"]:
            with pytest.raises(ConnectionResetError):
                await client.take()
        else:
            assert await client.request("ping")


async def conversation(host: Host) -> dict[str, list[dict[str, Any]]]:
    """Asks a server all requests of the vectors. The answers by operation; those that have a vector have its shape."""
    client = await host.start_connected()
    answers: dict[str, list[dict[str, Any]]] = {}

    async def ask(name: str, **changes: Any) -> dict[str, Any]:
        _, operation, arguments = value_of(name)
        answer = await client.request(operation, arguments | changes)
        answers.setdefault(operation, []).append(answer)
        return answer

    same_shape("hello reply", await ask("hello request"))
    same_shape("ping reply", await ask("ping request"))
    same_shape("route reply", await ask("route request"))
    status = await ask("status request")
    assert status.keys() >= value_of("status reply")[2].keys()
    assert status["lateness_ms"].keys() >= value_of("status reply")[2]["lateness_ms"].keys()
    metrics = await ask("metrics request")
    assert metrics.keys() >= value_of("metrics reply")[2].keys() | status.keys()
    far = {"subject": "orders", "body": "hi", "due_ms": host.now_ms + 3_600_000}
    now = far | {"due_ms": host.now_ms, "message_id": "o-1"}
    sent = await ask("send request", messages=[now, far])
    same_shape("send reply", sent)
    same_shape(
        "send rows reply", await ask("send rows request", messages=[far, {"subject": "", "body": "", "due_ms": 1}])
    )
    due_ms = (np.arange(3) + host.now_ms + 3_600_000).astype("<i8").tobytes()
    columns = await ask("send columns request", due_ms=due_ms)
    same_shape("send columns reply", columns, columns=True)
    await ask("send columns of subjects request")
    receipt = sent["results"][1]["receipt"]
    same_shape("reschedule reply", await ask("reschedule request", items=[{"receipt": receipt, "delay_ms": 7_200_000}]))
    moved_row = await ask("lookup request", receipts=[receipt])
    same_shape("lookup of a moved message reply", moved_row)
    numbers = {"sequence": [columns["first_sequence"]]}
    moved = await ask(
        "reschedule columns request", **numbers, message_due_ms=due_ms, due_ms=host.now_ms + 10**7, server_id=None
    )
    same_shape("reschedule columns reply", moved, columns=True)
    found = await ask("lookup columns request", **numbers, due_ms=due_ms, server_id=None)
    same_shape("lookup columns reply", found, columns=True)
    gone = await ask("cancel columns request", **numbers, due_ms=due_ms, server_id=None)
    same_shape("cancel columns reply", gone, columns=True)
    same_shape("cancel reply", await ask("cancel request", receipts=[receipt]))
    name = {"subject": "orders", "message_id": "o-1", "due_ms": sent["results"][0]["due_ms"]}
    same_shape("cancel names reply", await ask("cancel names request", messages=[name]))
    same_shape("pull reply", await ask("pull request"))
    await host.settled()
    same_shape("lookup reply", await ask("lookup request", receipts=[sent["results"][0]["receipt"], "nonsense"]))
    same_shape("pull without messages reply", await ask("pull request", wait_ms=0))
    same_shape(
        "pull columns reply", await ask("pull columns request", subject="bills", group="g", wait_ms=2000), columns=True
    )
    same_shape("cancel_wait reply", await ask("cancel_wait request"))
    expiring = {"subject": "expiring", "body": "", "delay_ms": 0, "expires_ms": host.now_ms + 5000}
    await client.send(expiring)
    pulled = await ask("pull request", subject="expiring")
    delivery = pulled["messages"][0]["delivery"]
    same_shape("extend reply", await ask("extend request", subject="expiring", deliveries=delivery))
    same_shape("nack reply", await ask("nack request", subject="expiring", deliveries=delivery, delay_ms=5000))
    same_shape("ack reply", await ask("ack request"))
    assert await ask("pull with a filter request") == {"messages": []}
    with pytest.raises(DelayServerError) as raised:
        await ask("pull with a bad filter request")
    assert error_to_map(raised.value) == value_of("pull with a bad filter reply")[2]
    await client.request("policy", {"subject": "orders", "group": "billing", "set": {"where": "price > 3"}})
    same_shape("groups reply", await ask("groups request"))
    metrics = await ask("metrics request")
    for rows in ("consumer_groups", "subjects", "queues"):
        told = [set(row) for row in value_of("metrics reply")[2][rows]]
        assert [set(row) for row in metrics[rows] if set(row) not in told] == [], rows
    same_shape("group reply", await ask("group request"))
    same_shape("read reply", await ask("read request", position=0))
    same_shape("read behind the end reply", await ask("read behind the end request"))
    same_shape("seek reply", await ask("seek request"))
    same_shape("remove_group reply", await ask("remove_group request"))
    with pytest.raises(DelayServerError, match="group_unknown"):
        await ask("seek to a time request")
    same_shape("find reply", await ask("find request"))
    same_shape("subjects reply", await ask("subjects request", after=0))
    same_shape("pending reply", await ask("pending request", from_ms=0, to_ms=None))
    same_shape("pending subjects reply", await ask("pending subjects request", after=0))
    await client.send(*[{"subject": "orders", "due_ms": host.now_ms + 3_600_000, "body": "hi"}] * 3)
    page = await ask("pending messages request", from_ms=0, max=1)
    same_shape("pending messages reply", page)
    await client.cancel(
        *[row["receipt"] for row in (await ask("pending messages request", from_ms=0, max=100))["messages"]]
    )
    await client.request("policy", {"subject": "orders", "group": "billing", "reset": True})
    same_shape("policy reply", await ask("policy request"))
    paid = {"subject": "orders", "due_ms": host.now_ms + 3_600_000, "body": "paid"}
    prepared = await ask("prepare request", messages=[paid] * 2)
    same_shape("prepare reply", prepared)
    receipts = [row["receipt"] for row in prepared["results"]]
    same_shape("rollback reply", await ask("rollback request", receipts=receipts[1:]))
    same_shape("commit reply", await ask("commit request", receipts=receipts))
    await ask("policy request", set={"attempts": 1})
    await client.send({"subject": "orders", "body": "dies", "delay_ms": 0})
    await host.sleep_ms(200)
    for message in (await ask("pull request", max_messages=10))["messages"]:
        await ask("nack request", deliveries=message["delivery"])
    same_shape("dead_letters reply", await ask("dead_letters request"))
    same_shape("dead_letters resend reply", await ask("dead_letters resend request"))
    await ask("policy request", set={"failed_key": "wait", "first_ms": 60_000})
    await client.send({"subject": "orders", "body": "waits", "delay_ms": 0, "order_key": "customer-42"})
    await host.sleep_ms(200)
    for message in (await ask("pull request", max_messages=10))["messages"]:
        await ask("nack request", deliveries=message["delivery"])
    waiting = await ask("waiting_keys request")
    same_shape("waiting_keys reply", waiting)
    same_shape("waiting_keys retry reply", await ask("waiting_keys retry request"))
    position = waiting["keys"][0]["position"]
    same_shape("waiting_keys skip reply", await ask("waiting_keys skip request", positions=[position]))
    same_shape("deliver reply", await ask("deliver request", due_ms=host.now_ms), columns=True)
    same_shape("window_complete reply", await ask("window_complete request"))
    dry = await ask("redispatch request", from_ms=0, to_ms=host.now_ms + 1)
    same_shape("redispatch reply", dry, columns=True)
    same_shape("reload reply", await ask("reload request"), columns=True)
    taken = await ask("snapshot request")
    same_shape("snapshot reply", taken)
    same_shape("snapshot drop reply", await client.request("snapshot", {"action": "drop", "name": taken["name"]}))
    assert await ask("map request") == {"version": 0, "slots": [], "shards": []}
    assert await ask("prove challenge request") == {"challenge": b""}
    return answers


async def test_a_server_answers_in_the_shape_of_the_vectors(boot: Boot) -> None:
    await conversation(boot(small_settings()))


# Their keys are data: names of groups, of stages, of errors, of properties.
NAMED_BY_DATA = {"broker_groups", "groups", "errors", "properties", "lateness", "stages"}


def fields_of(value: Any) -> set[str]:
    """The names of all fields in an answer, those of maps in it included."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for key, item in value.items():
        inner = item.values() if isinstance(item, dict) and key in NAMED_BY_DATA else [item]
        found |= set().union(*map(fields_of, inner))
    return found


# Sections that refer to the fields of another one, in these words.
AS_IN = {
    "hello": ("The bounds of section 9.", "## 9 Bounds"),
    "prepare": ("Request and reply are those of `send`", "### `send`"),
    "read": ("as for `pull`", "### `pull`"),
    "find": ("as for `pull`", "### `pull`"),
    "group": ("the fields of a row of `groups`", "### `groups`"),
    "metrics": ("all fields of `status`", "### `status`"),
}
# Section 4 says what a failed item has.
OF_AN_ITEM = {"error", "message", "retry_after_ms"}


async def test_each_field_that_a_server_answers_is_named_on_the_page(boot: Boot) -> None:
    answers = await conversation(boot(small_settings()))
    prose = re.sub(r"```.*?```", "", vectors.told(), flags=re.DOTALL)
    sections = re.split(r"^(?=##)", prose, flags=re.MULTILINE)
    missing: dict[str, list[str]] = {}
    for operation, answered in answers.items():
        text = "".join([part for part in sections if f"`{operation}`" in part.partition("\n")[0]])
        words, elsewhere = AS_IN.get(operation, ("", None))
        assert words in text
        text += "".join([part for part in sections if elsewhere and part.startswith(elsewhere)])
        unnamed = fields_of(answered) - set(re.findall(r"\w+", text)) - OF_AN_ITEM
        missing |= {operation: sorted(unnamed)} if unnamed else {}
    assert missing == {}
