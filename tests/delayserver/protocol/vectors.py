"""Makes `delayserver/protocol/vectors.json`, and puts values of its frames into the pages of the protocol.

Run `python -m tests.delayserver.protocol.vectors` after a change of the codec or of a vector. The vectors are written
down here as values. The codec draws the bytes, and the tests read them back.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from delayserver.client.values.timing import ServerClock
from delayserver.protocol.columns import I64, U8, U32, pack_column
from delayserver.protocol.errors import ERRORS, NotPrimary, Unavailable
from delayserver.protocol.frames import encode_frame
from delayserver.protocol.limits import DEFAULT_LIMITS
from delayserver.protocol.proof import make_proof
from delayserver.protocol.receipts import derived_message_id, format_receipt
from delayserver.protocol.slots import slot_of
from ops.docs.frame_pages import drawn
from ops.docs.protocol_tables import PAGES
from ops.docs.wire_tables import MADE_BY_CLIENTS

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "delayserver" / "protocol" / "vectors.json"
BLOCK = re.compile(r"```value (?P<name>[^\n]+)\n.*?```", re.DOTALL)

# JSON numbers are doubles in many languages.
EXACT_INT_MAX = 2**53 - 1

# Errors of a connection, which the server then closes. `unauthenticated` also answers a request, with its id.
OF_THE_CONNECTION = {"malformed_frame", "frame_too_large", "frame_timeout", "too_many_connections"}

SERVER_ID = "5f3a9c0d2b71"
OTHER_ID = "0123456789ab"
DUE_MS = 1_800_000_000_000
ACCEPTED_US = 1_799_999_940_000_000
DISPATCHED_US = 1_800_000_000_000_900
RECEIPT = format_receipt(SERVER_ID, DUE_MS, 42)
NEW_RECEIPT = format_receipt(SERVER_ID, DUE_MS + 60_000, 48)
# The first position of the main queue and of the retry queue, each in the fortieth start of a broker. Such numbers are
# beyond 2^53: a client that keeps them in doubles fails at its first ack, and not after months.
DELIVERY = 40 << 48
DELIVERY_AGAIN = 1 << 62 | 40 << 48
SECRET = "correct horse battery staple"
CHALLENGE = bytes(range(32))
DUE_COLUMN = np.array([DUE_MS, DUE_MS + 5, DUE_MS + 1], np.int64)


def found_row() -> dict[str, Any]:
    """A message as `find` gives it."""
    row = pulled_row() | {"position": 0}
    del row["attempt"], row["delivery"]
    return row


def pulled_row(**changes: Any) -> dict[str, Any]:
    """A message as `pull` gives it in rows."""
    return {
        "message_id": "o-1",
        "subject": "orders",
        "sequence": 42,
        "server_id": SERVER_ID,
        "due_ms": DUE_MS,
        "accepted_us": ACCEPTED_US,
        "dispatched_us": DISPATCHED_US,
        "expires_ms": 0,
        "attempt": 1,
        "body": b"hi",
        "properties": {},
        "delivery": DELIVERY,
        "position": 0,
    } | changes


PROPERTIES = msgpack.packb({"trace": "7"})

REQUESTS: dict[str, tuple[Any, ...]] = {
    "hello request": (1, "hello", {"versions": [1], "client": "example"}),
    "send request": (
        2,
        "send",
        {"messages": [{"subject": "orders", "body": "hi", "due_ms": DUE_MS, "message_id": "o-1"}]},
    ),
    "pull request": (3, "pull", {"subject": "orders", "group": "billing", "wait_ms": 30_000}),
    "pull with a filter request": (
        66,
        "pull",
        {"subject": "orders", "group": "shipping", "tags": "paid || shipped", "where": "price > 3"},
    ),
    "pull with a bad filter request": (67, "pull", {"subject": "orders", "group": "shipping", "where": "price >"}),
    "ack request": (4, "ack", {"subject": "orders", "group": "billing", "count": 1, "deliveries": DELIVERY}),
    "ping request": (5, "ping", {}),
    "status request": (6, "status", {}),
    "route request": (7, "route", {"subject": "orders"}),
    "send rows request": (
        8,
        "send",
        {
            "messages": [
                {
                    "subject": "orders",
                    "body": b"\x00\xff",
                    "due_ms": DUE_MS,
                    "properties": {"trace": "7"},
                    "expires_ms": DUE_MS + 60_000,
                },
                {"subject": "", "body": "x", "due_ms": DUE_MS},
            ]
        },
    ),
    "send again request": (
        94,
        "send",
        {
            "tell_duplicates": True,
            "messages": [{"subject": "orders", "body": "hi again", "due_ms": DUE_MS, "message_id": "o-1"}],
        },
    ),
    "send columns request": (
        9,
        "send",
        {
            "count": 3,
            "subject": "orders",
            "due_ms": pack_column(DUE_COLUMN),
            "bodies": b"abbccc",
            "body_length": pack_column(np.array([1, 2, 3], np.uint32), U32),
        },
    ),
    "publish rows request": (
        40,
        "publish",
        {"messages": [{"subject": "orders", "body": "hi", "tag": "paid", "order_key": "o-1"}]},
    ),
    "publish one way request": (
        42,
        "publish",
        {"one_way": True, "messages": [{"subject": "orders", "body": "hi"}, {"subject": "", "body": "no"}]},
    ),
    "publish columns request": (
        41,
        "publish",
        {
            "count": 3,
            "subject": "orders",
            "bodies": b"abbccc",
            "body_length": pack_column(np.array([1, 2, 3], np.uint32), U32),
            "tags": ["paid", "new"],
            "tag_index": pack_column(np.array([1, 0, 2], np.uint32), U32),
        },
    ),
    "send columns of subjects request": (
        10,
        "send",
        {
            "count": 2,
            "subjects": ["orders", "bills"],
            "subject_index": pack_column(np.array([0, 1], np.uint32), U32),
            "delay_ms": 1000,
            "bodies": b"ab",
            "body_length": 1,
            "message_ids": b"o-2",
            "message_id_length": pack_column(np.array([3, 0], np.uint32), U32),
            "properties": PROPERTIES,
            "properties_length": pack_column(np.array([0, len(PROPERTIES)], np.uint32), U32),
            "expires_ms": 0,
        },
    ),
    "cancel request": (11, "cancel", {"receipts": [RECEIPT]}),
    "cancel names request": (
        12,
        "cancel",
        {"messages": [{"subject": "orders", "message_id": "o-1", "due_ms": DUE_MS}]},
    ),
    "cancel columns request": (
        13,
        "cancel",
        {"count": 3, "sequence": [43], "due_ms": pack_column(DUE_COLUMN), "server_id": SERVER_ID},
    ),
    "reschedule request": (
        14,
        "reschedule",
        {"items": [{"receipt": RECEIPT, "due_ms": DUE_MS + 60_000, "body": "later"}]},
    ),
    "reschedule columns request": (
        15,
        "reschedule",
        {
            "count": 3,
            "sequence": [43],
            "message_due_ms": pack_column(DUE_COLUMN),
            "due_ms": DUE_MS + 60_000,
            "server_id": SERVER_ID,
        },
    ),
    "lookup request": (16, "lookup", {"receipts": [RECEIPT, "nonsense"]}),
    "pull columns request": (
        17,
        "pull",
        {
            "subject": "orders",
            "group": "billing",
            "max_messages": 1000,
            "wait_ms": 1000,
            "columns": True,
            "ack": {"count": 2, "deliveries": [DELIVERY]},
        },
    ),
    "nack request": (
        18,
        "nack",
        {"subject": "orders", "group": "billing", "count": 1, "deliveries": DELIVERY, "delay_ms": 5000},
    ),
    "extend request": (
        91,
        "extend",
        {
            "subject": "orders",
            "group": "billing",
            "count": 1,
            "deliveries": DELIVERY,
            "ack_timeout_ms": 30000,
            "outlive_ms": 2000,
        },
    ),
    "group request": (60, "group", {"subject": "orders", "group": "billing"}),
    "seek request": (61, "seek", {"subject": "orders", "group": "billing", "to": "earliest"}),
    "seek to a time request": (62, "seek", {"subject": "orders", "group": "billing", "time_ms": DUE_MS}),
    "remove_group request": (63, "remove_group", {"subject": "orders", "group": "billing"}),
    "read request": (64, "read", {"subject": "orders", "position": 1}),
    "read behind the end request": (65, "read", {"subject": "orders", "position": 9}),
    "groups request": (19, "groups", {"subject": "orders", "max": 1}),
    "find request": (90, "find", {"message_id": "o-1", "subject": "orders", "max": 10}),
    "subjects request": (35, "subjects", {"pattern": "orders*", "after": 12}),
    "policy request": (
        41,
        "policy",
        {"subject": "orders", "group": "billing", "set": {"attempts": 5, "first_ms": 1000, "cap_ms": 60_000}},
    ),
    "dead_letters request": (
        42,
        "dead_letters",
        {"action": "list", "subject": "orders", "group": "billing", "max": 10},
    ),
    "dead_letters resend request": (
        43,
        "dead_letters",
        {"action": "resend", "subject": "orders", "group": "billing", "max": 100, "rate": 50},
    ),
    "waiting_keys request": (
        44,
        "waiting_keys",
        {"action": "list", "subject": "orders", "group": "billing", "max": 10},
    ),
    "waiting_keys skip request": (
        45,
        "waiting_keys",
        {"action": "skip", "subject": "orders", "group": "billing", "positions": [7], "reason": "no such customer"},
    ),
    "waiting_keys retry request": (
        46,
        "waiting_keys",
        {"action": "retry", "subject": "orders", "group": "billing"},
    ),
    "lookup columns request": (
        30,
        "lookup",
        {"count": 3, "sequence": [43], "due_ms": pack_column(DUE_COLUMN), "server_id": SERVER_ID},
    ),
    "prepare request": (
        50,
        "prepare",
        {
            "group": "shop",
            "check_after_ms": 30_000,
            "checks_max": 5,
            "policy": "rollback",
            "messages": [{"subject": "orders", "due_ms": DUE_MS, "body": "paid", "message_id": "o-1"}],
        },
    ),
    "commit request": (51, "commit", {"receipts": [RECEIPT, NEW_RECEIPT]}),
    "transactions request": (57, "transactions", {"max": 100, "after": f"{DUE_MS}.2.46"}),
    "rollback request": (52, "rollback", {"receipts": [NEW_RECEIPT]}),
    "cancel_wait request": (29, "cancel_wait", {"id": 3}),
    "hello from a server request": (
        20,
        "hello",
        {"versions": [1], "client": "example", "server_id": OTHER_ID, "instance": "00112233445566ff"},
    ),
    "prove challenge request": (21, "prove", {}),
    "prove request": (22, "prove", {"proof": make_proof(SECRET, CHALLENGE)}),
    "deliver request": (
        23,
        "deliver",
        {
            "server_id": OTHER_ID,
            "window_ms": DUE_MS,
            "uncertain": False,
            "count": 2,
            "sequence": [7],
            "redelivery": 0,
            "unanswered": 0,
            "due_ms": DUE_MS,
            "accepted_us": ACCEPTED_US,
            "dispatched_us": DISPATCHED_US,
            "expires_ms": 0,
            "origin_sequence": 0,
            "subjects": ["orders"],
            "subject_index": 0,
            "target_groups": [],
            "target_group_index": 0,
            "message_ids": b"",
            "message_id_length": 0,
            "properties": b"",
            "properties_length": 0,
            "bodies": b"ab",
            "body_length": 1,
        },
    ),
    "window_complete request": (24, "window_complete", {"server_id": OTHER_ID, "window_ms": [DUE_MS]}),
    "redispatch request": (
        25,
        "redispatch",
        {"from_ms": DUE_MS, "to_ms": DUE_MS + 60_000, "outcomes": ["delivered"], "dry_run": True},
    ),
    "reload request": (95, "reload", {}),
    "snapshot request": (141, "snapshot", {"action": "take"}),
    "snapshot drop request": (142, "snapshot", {"action": "drop", "name": "0a1b2c3d4e5f", "complete": True}),
    "cluster request": (143, "cluster", {"action": "show"}),
    "cluster switch request": (144, "cluster", {"action": "switch", "member": "b"}),
    "map request": (145, "map", {"after": 41, "wait_ms": 30_000}),
    "pending request": (96, "pending", {"by": "minute", "from_ms": DUE_MS, "to_ms": DUE_MS + 3_600_000}),
    "pending subjects request": (98, "pending", {"by": "subject", "after": 12}),
    "pending messages request": (
        146,
        "pending",
        {"by": "message", "subject": "orders*", "from_ms": DUE_MS, "count": True, "max": 2},
    ),
    "metrics request": (97, "metrics", {}),
    "token request": (
        140,
        "token",
        {"action": "create", "roles": ["send"], "subjects": ["orders*"], "name": "shop", "rate": 500},
    ),
    "schedule request": (
        150,
        "schedule",
        {
            "action": "put",
            "name": "daily",
            "subject": "reports",
            "body": "report",
            "cron": "0 9 * * 1-5",
            "zone": "Europe/Berlin",
        },
    ),
    "schedule run request": (151, "schedule", {"action": "run", "name": "daily"}),
    "schedule next request": (152, "schedule", {"action": "next", "name": "daily", "count": 1}),
}

REPLIES: dict[str, tuple[Any, ...]] = {
    "prepare reply": (
        50,
        True,
        {"results": [{"receipt": RECEIPT, "message_id": "o-1", "subject": "orders", "due_ms": DUE_MS, "sequence": 42}]},
    ),
    "commit reply": (
        51,
        True,
        {
            "results": [
                {
                    "receipt": RECEIPT,
                    "outcome": "committed",
                    "new_receipt": format_receipt(SERVER_ID, DUE_MS, 50),
                    "due_ms": DUE_MS,
                    "sequence": 50,
                },
                {
                    "error": "transaction_ended",
                    "message": "the transaction has ended: it is rolled_back",
                    "outcome": "rolled_back",
                },
            ]
        },
    ),
    "transactions reply": (
        57,
        True,
        {
            "transactions": [
                {
                    "receipt": NEW_RECEIPT,
                    "subject": "orders",
                    "due_ms": DUE_MS,
                    "group": "shop",
                    "accepted_us": (DUE_MS - 60_000) * 1000,
                    "next_check_ms": DUE_MS + 60_000,
                    "checks": 2,
                    "checks_max": 15,
                    "policy": "rollback",
                }
            ],
            "next": f"{DUE_MS}.2.48",
        },
    ),
    "rollback reply": (52, True, {"results": [{"receipt": NEW_RECEIPT, "outcome": "rolled_back"}]}),
    "hello reply": (
        1,
        True,
        {
            "version": 1,
            "server_id": SERVER_ID,
            "server_us": ACCEPTED_US - 900,
            "role": "server",
            "software": "delayserver 0.2.0",
            "limits": DEFAULT_LIMITS.to_map(),
            "delay_levels_ms": [1000, 5000, 10_000],
        },
    ),
    "send reply": (
        2,
        True,
        {"results": [{"receipt": RECEIPT, "message_id": "o-1", "subject": "orders", "due_ms": DUE_MS, "sequence": 42}]},
    ),
    "pull reply": (3, True, {"messages": [pulled_row()]}),
    "ack reply": (4, True, {"acked": 1, "unknown": 0}),
    "ping reply": (5, True, {"server_us": ACCEPTED_US}),
    "status reply": (
        6,
        True,
        {
            "ready": True,
            "waits_for": "",
            "server_id": SERVER_ID,
            "version": "0.2.0",
            "accepted": 3,
            "delivered": 1,
            "cancelled": 0,
            "dead_lettered": 0,
            "expired": 0,
            "deduplicated": 0,
            "rolled_back": 0,
            "pending": 2,
            "lateness_ms": {"p50": 0.9, "p99": 0.9, "max": 0.9},
        },
    ),
    "pending reply": (
        96,
        True,
        {"buckets": [{"start_ms": DUE_MS, "width_ms": 60_000, "pending": 3}], "next_ms": None, "unplaced": 0},
    ),
    "pending subjects reply": (98, True, {"subjects": [{"subject": "orders", "pending": 3}], "next": None}),
    "pending messages reply": (
        146,
        True,
        {
            "messages": [
                {
                    "receipt": RECEIPT,
                    "message_id": "o-1",
                    "subject": "orders",
                    "due_ms": DUE_MS,
                    "accepted_us": DUE_MS * 1000 - 60_000_000,
                    "body_bytes": 2,
                }
            ],
            "next": "1b9ab4c5.1799971200000.1800000000001.0.42.1800000000000.42.0.0.0.0",
            "matching": 3,
        },
    ),
    "metrics reply": (
        97,
        True,
        {
            "pending": 2,
            "lateness": {"default": {"bounds_us": [500, 1000], "counts": [0, 1, 0], "sum_us": 900, "early": 0}},
            "stages": {"sync": {"bounds_us": [20, 50], "counts": [0, 1, 2], "sum_us": 310}},
            "queues": [
                {"name": "memory_rows", "used": 2, "bound": 1_500_000},
                {"name": "group_rows", "used": 0, "bound": 1_250_000, "group": "default"},
            ],
            "consumer_groups": [
                {
                    "subject": "orders",
                    "group": "billing",
                    "lag": 3,
                    "leased": 1,
                    "retrying": 0,
                    "oldest_ms": DUE_MS + 5,
                    "dead_letters": 0,
                    "waiting_keys": 0,
                }
            ],
            "consumer_groups_all": 1,
            "subjects": [{"subject": "orders", "pending": 2}],
            "subjects_counted": True,
        },
    ),
    "route reply": (
        7,
        True,
        {
            "group": "default",
            "nodes": [{"address": "127.0.0.1:20801", "weight": 1, "state": "up", "since_ms": DUE_MS, "here": True}],
        },
    ),
    "send rows reply": (
        8,
        True,
        {
            "results": [
                {
                    "receipt": format_receipt(SERVER_ID, DUE_MS, 46),
                    "message_id": derived_message_id(SERVER_ID, 46),
                    "subject": "orders",
                    "due_ms": DUE_MS,
                    "sequence": 46,
                },
                {
                    "error": "subject_invalid",
                    "message": 'a subject is a text of at least one character, not ""',
                },
            ]
        },
    ),
    "send again reply": (
        94,
        True,
        {
            "results": [
                {
                    "receipt": format_receipt(SERVER_ID, DUE_MS, 52),
                    "message_id": "o-1",
                    "subject": "orders",
                    "due_ms": DUE_MS,
                    "sequence": 52,
                    "duplicate": True,
                    "original_receipt": format_receipt(SERVER_ID, DUE_MS, 42),
                    "outcome": "cancelled",
                }
            ]
        },
    ),
    "send columns reply": (
        9,
        True,
        {"accepted": 3, "first_sequence": 43, "due_ms": pack_column(DUE_COLUMN), "rejected": []},
    ),
    "publish rows reply": (
        40,
        True,
        {"results": [{"message_id": "5f3a9c0d2b71-000000000030", "subject": "orders", "position": 4}]},
    ),
    "ping with refused reply": (
        43,
        True,
        {
            "server_us": 1_800_000_000_000_000,
            "one_way_refused": {
                "messages": 1,
                "error": "subject_invalid",
                "message": 'a subject is a text of at least one character, not ""',
            },
        },
    ),
    "publish columns reply": (
        41,
        True,
        {"accepted": 3, "first_sequence": 49, "position": [5], "rejected": []},
    ),
    "send columns with a rejected row reply": (
        10,
        True,
        {
            "accepted": 1,
            "first_sequence": 47,
            "due_ms": DUE_MS,
            "rejected": [[1, "message_too_large", "body has 1048577 bytes; at most 1048576", None]],
        },
    ),
    "cancel reply": (11, True, {"results": [{"receipt": RECEIPT, "outcome": "cancelled"}]}),
    "cancel names reply": (12, True, {"results": [{"receipt": RECEIPT, "outcome": "already_cancelled"}]}),
    "cancel columns reply": (13, True, {"outcome": pack_column(np.array([5, 11, 0], np.uint8), U8)}),
    "reschedule reply": (
        14,
        True,
        {
            "results": [
                {
                    "receipt": RECEIPT,
                    "outcome": "cancelled",
                    "new_receipt": NEW_RECEIPT,
                    "message_id": "o-1",
                    "due_ms": DUE_MS + 60_000,
                    "sequence": 48,
                }
            ]
        },
    ),
    "reschedule columns reply": (
        15,
        True,
        {
            "outcome": pack_column(np.array([5, 4, 5], np.uint8), U8),
            "new_sequence": pack_column(np.array([49, 0, 50], np.int64), I64),
            "due_ms": DUE_MS + 60_000,
            "rejected": [],
        },
    ),
    "lookup reply": (
        16,
        True,
        {
            "results": [
                {
                    "receipt": RECEIPT,
                    "outcome": "delivered",
                    "subject": "orders",
                    "dispatched_us": DISPATCHED_US,
                    "attempts": 1,
                    "broker_group": "default",
                    "due_ms": DUE_MS,
                },
                {"error": "receipt_invalid", "message": '"nonsense" is no receipt'},
            ]
        },
    ),
    "pull with a bad filter reply": (
        67,
        False,
        {
            "error": "filter_invalid",
            "message": "where at line 1, column 8: expected a property, a number, a text or '(', found the end",
            "offset": 7,
            "line": 1,
            "column": 8,
        },
    ),
    "pull columns reply": (
        17,
        True,
        {
            "count": 2,
            "subject": "orders",
            "server_ids": [SERVER_ID],
            "server_index": 0,
            "sequence": pack_column(np.array([44, 60], np.int64)),
            "due_ms": pack_column(np.array([DUE_MS + 5, DUE_MS + 9], np.int64)),
            "accepted_us": ACCEPTED_US,
            "dispatched_us": pack_column(np.array([DISPATCHED_US + 5000, DISPATCHED_US + 9000], np.int64)),
            "expires_ms": 0,
            "attempt": [1],
            "message_ids": b"o-9",
            "message_id_length": pack_column(np.array([0, 3], np.uint32), U32),
            "properties": PROPERTIES,
            "properties_length": pack_column(np.array([0, len(PROPERTIES)], np.uint32), U32),
            "bodies": b"bbx",
            "body_length": pack_column(np.array([2, 1], np.uint32), U32),
            "delivery": pack_column(np.array([DELIVERY + 2, DELIVERY_AGAIN], np.int64)),
            "position": pack_column(np.array([2, -1], np.int64)),
        },
    ),
    "nack reply": (18, True, {"nacked": 1, "unknown": 0, "expired": 1}),
    "extend reply": (91, True, {"extended": 1, "unknown": 0}),
    "group reply": (
        60,
        True,
        {
            "subject": "orders",
            "group": "billing",
            "position": 1,
            "end": 4,
            "lag": 3,
            "leased": 1,
            "retrying": 0,
            "expired": 0,
            "filtered": 2,
            "tags": None,
            "where": "price > 3",
            "waiting_in_place": 0,
            "redelivery_bytes": 0,
            "oldest_ms": DUE_MS + 5,
            "dead_letters": 0,
            "waiting_keys": 0,
        },
    ),
    "seek reply": (61, True, {"position": 0, "first": 0, "end": 4}),
    "seek to a time reply": (
        62,
        False,
        {
            "error": "group_unknown",
            "message": "this node has no such consumer group of this subject; `groups` lists what it has",
        },
    ),
    "remove_group reply": (63, True, {}),
    "read reply": (
        64,
        True,
        {
            "status": "found",
            "first": 0,
            "end": 4,
            "next": 2,
            "messages": [
                {name: value for name, value in pulled_row(position=1).items() if name not in ("attempt", "delivery")}
            ],
        },
    ),
    "read behind the end reply": (
        65,
        True,
        {"status": "too_large", "first": 0, "end": 4, "next": 4, "messages": []},
    ),
    "groups reply": (
        19,
        True,
        {
            "groups": [
                {
                    "subject": "orders",
                    "group": "billing",
                    "position": 1,
                    "end": 4,
                    "lag": 3,
                    "leased": 1,
                    "retrying": 0,
                    "expired": 0,
                    "filtered": 2,
                    "tags": None,
                    "where": "price > 3",
                    "waiting_in_place": 0,
                    "redelivery_bytes": 0,
                    "dead_letters": 0,
                    "waiting_keys": 0,
                    "oldest_ms": DUE_MS + 5,
                }
            ],
            "next": [1, 2],
        },
    ),
    "find reply": (90, True, {"messages": [found_row()], "next": None}),
    "subjects reply": (35, True, {"subjects": ["orders", "orders.eu"], "next": 40, "more": False}),
    "policy reply": (
        41,
        True,
        {
            "subject": "orders",
            "group": "billing",
            "policy": {"attempts": 5, "first_ms": 1000, "factor": None, "cap_ms": 60_000, "first_level": None}
            | {"tags": None, "where": None, "failed_key": None},
            "applies": {"attempts": 5, "levels_ms": [], "first_ms": 1000, "factor": 2.0, "cap_ms": 60_000},
        },
    ),
    "dead_letters reply": (
        42,
        True,
        {
            "letters": [
                {
                    "position": 0,
                    "message_id": "o-1",
                    "reason": "nacked",
                    "text": "no such customer",
                    "attempts": 5,
                    "dead_ms": DUE_MS + 60_000,
                    "due_ms": DUE_MS + 45_000,
                    "sequence": 42,
                    "server_id": SERVER_ID,
                    "properties": {},
                    "body_bytes": 2,
                }
            ],
            "next": None,
            "left": 1,
            "unreadable": 0,
        },
    ),
    "dead_letters resend reply": (43, True, {"resent": 1, "left": 0, "next_ms": 20, "unreadable": 0}),
    "waiting_keys reply": (
        44,
        True,
        {
            "keys": [
                {
                    "position": 7,
                    "order_key": "customer-42",
                    "message_id": "o-1",
                    "state": "paused",
                    "attempts": 5,
                    "since_ms": DUE_MS + 1_000,
                    "next_ms": DUE_MS + 60_000,
                    "behind": 4,
                    "due_ms": DUE_MS,
                    "sequence": 42,
                    "server_id": SERVER_ID,
                }
            ],
            "next": None,
            "left": 1,
            "unreadable": 0,
        },
    ),
    "waiting_keys skip reply": (45, True, {"skipped": 1, "left": 0}),
    "waiting_keys retry reply": (46, True, {"retried": 1, "left": 0}),
    "lookup columns reply": (
        30,
        True,
        {
            "outcome": pack_column(np.array([5, 4, 0], np.uint8), U8),
            "dispatched_us": pack_column(np.array([0, DISPATCHED_US, 0], np.int64)),
            "attempts": pack_column(np.array([0, 1, 0], np.int64)),
            "original_sequence": 0,
            "rescheduled_sequence": pack_column(np.array([49, 0, 0], np.int64)),
            "rescheduled_due_ms": pack_column(np.array([DUE_MS + 60_000, 0, 0], np.int64)),
            "rejected": [],
        },
    ),
    "lookup of a moved message reply": (
        31,
        True,
        {
            "results": [
                {
                    "receipt": RECEIPT,
                    "outcome": "cancelled",
                    "subject": "orders",
                    "due_ms": DUE_MS,
                    "rescheduled_to": NEW_RECEIPT,
                }
            ]
        },
    ),
    "cancel_wait reply": (29, True, {"ended": True}),
    "pull without messages reply": (26, True, {"messages": []}),
    "pull of a redelivery reply": (
        27,
        True,
        {
            "messages": [
                pulled_row(
                    sequence=60,
                    due_ms=DUE_MS + 5000,
                    attempt=2,
                    dispatched_us=DISPATCHED_US + 5_000_000,
                    delivery=DELIVERY_AGAIN,
                    position=-1,
                )
            ]
        },
    ),
    "prove challenge reply": (21, True, {"challenge": CHALLENGE}),
    "prove reply": (22, True, {}),
    "deliver reply": (23, True, {"outcome": 1}),
    "window_complete reply": (24, True, {}),
    "redispatch reply": (25, True, {"messages": 3, "next": None, "unreadable": 0, "damages": []}),
    "reload reply": (
        95,
        True,
        {"changes": ["group east: the weight of 10.0.0.12:20811 is 0, was 2, so it is drained"]},
    ),
    "snapshot reply": (
        141,
        True,
        {"name": "0a1b2c3d4e5f", "path": "/var/lib/delayserver/snapshot/0a1b2c3d4e5f", "kept_ms": 600_000},
    ),
    "snapshot drop reply": (142, True, {"dropped": True}),
    "cluster reply": (
        143,
        True,
        {
            "shard": 0,
            "member": "a",
            "role": "standby",
            "epoch": 7,
            "primary": "b",
            "lag_records": 0,
            "lag_ms": 0,
            "log_version": 1,
        },
    ),
    "cluster switch reply": (144, True, {"epoch": 7}),
    "map reply": (
        145,
        True,
        {
            "version": 42,
            "slots": [[0, 511, 0], [512, 1023, 1]],
            "shards": [
                {
                    "shard": 0,
                    "server_id": SERVER_ID,
                    "state": "open",
                    "epoch": 7,
                    "primary": "10.0.0.11:20801",
                    "standbys": ["10.0.0.12:20801"],
                },
                {
                    "shard": 1,
                    "server_id": OTHER_ID,
                    "state": "open",
                    "epoch": 1,
                    "primary": "10.0.0.12:20811",
                    "standbys": [],
                },
            ],
        },
    ),
    "token reply": (
        140,
        True,
        {
            "id": "0123456789ab",
            "name": "shop",
            "roles": ["send"],
            "subjects": ["orders*"],
            "created_ms": 1799999940000,
            "expires_ms": 0,
            "rate": 500,
            "bytes_rate": 0,
            "pending_max": 0,
            "old_until_ms": 0,
            "token": "dst_0123456789ab_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
        },
    ),
    "schedule reply": (
        150,
        True,
        {
            "name": "daily",
            "generation": 46,
            "state": "active",
            "next_ms": DUE_MS,
            "fired": 0,
            "changed_ms": DUE_MS - 60_000,
            "definition": {"subject": "reports", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin"},
            "changed": True,
        },
    ),
    "schedule run reply": (
        151,
        True,
        {"name": "daily", "receipt": RECEIPT, "message_id": "daily:46:run-1", "due_ms": DUE_MS},
    ),
    "schedule next reply": (152, True, {"firings": [{"due_ms": DUE_MS, "moment_ms": DUE_MS}]}),
    "error reply": (28, False, {"error": "not_ready", "message": "recovering", "retry_after_ms": 200}),
    "connection error reply": (
        0,
        False,
        {"error": "too_many_connections", "message": "try again later", "retry_after_ms": 1000},
    ),
}

# Payloads that are no requests: what is wrong, the bytes in parts that are repeated, the id of the answer, its error.
_REQUEST = b"\x93\x07\xa4ping"
BAD_PAYLOADS: list[tuple[str, list[tuple[bytes, int]], int, str]] = [
    ("an empty payload", [], 0, "malformed_frame"),
    ("no array", [(b"\x07", 1)], 0, "malformed_frame"),
    ("an array of two", [(b"\x92\x07\xa4ping", 1)], 0, "malformed_frame"),
    ("the id 0", [(b"\x93\x00\xa4ping\x80", 1)], 0, "malformed_frame"),
    ("an id of 2^63", [(b"\x93\xcf\x80" + bytes(7) + b"\xa4ping\x80", 1)], 0, "malformed_frame"),
    ("an id that is true", [(b"\x93\xc3\xa4ping\x80", 1)], 0, "malformed_frame"),
    ("a byte behind the value", [(_REQUEST + b"\x80\x00", 1)], 0, "malformed_frame"),
    ("a value that is cut", [(_REQUEST + b"\x81", 1)], 0, "malformed_frame"),
    ("an extension type", [(_REQUEST + b"\x81\xa1a\xd4\x01\x00", 1)], 0, "malformed_frame"),
    ("a timestamp", [(_REQUEST + b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", 1)], 0, "malformed_frame"),
    ("text that is not UTF-8", [(_REQUEST + b"\x81\xa1a\xa1\xff", 1)], 0, "malformed_frame"),
    ("a key that is an integer", [(_REQUEST + b"\x81\x01\x02", 1)], 0, "malformed_frame"),
    (
        "lists in lists, 1,023 deep",
        [(_REQUEST + b"\x81\xa1a", 1), (b"\x91", 1022), (b"\x90", 1)],
        0,
        "malformed_frame",
    ),
    (
        "lists in lists, two thousand deep",
        [(_REQUEST + b"\x81\xa1a", 1), (b"\x91", 2000), (b"\x90", 1)],
        0,
        "malformed_frame",
    ),
    ("an operation that is no text", [(b"\x93\x07\x01\x80", 1)], 7, "malformed_request"),
    ("arguments that are no map", [(_REQUEST + b"\x90", 1)], 7, "malformed_request"),
    ("a key of the arguments that is bytes", [(_REQUEST + b"\x81\xc4\x01a\x00", 1)], 7, "malformed_request"),
    ("an unknown operation", [(b"\x93\x07\xa4pong\x80", 1)], 7, "unknown_operation"),
    (
        "a list of 16,385 items",
        [(_REQUEST + b"\x81\xa1a\xdc\x40\x01", 1), (b"\xc0", 16_385)],
        7,
        "batch_too_large",
    ),
    (
        "sixteen lists of 16,384 items",
        [(_REQUEST + b"\x81\xa1a\xdc\x00\x10", 1)] + [(b"\xdc\x40\x00", 1), (b"\xc0", 16_384)] * 16,
        7,
        "batch_too_large",
    ),
]

# Type, rows and the value on the wire. None: it is no such column.
COLUMNS: list[tuple[str, str, int, Any, list[int] | None]] = [
    ("plain", "i64", 3, DUE_COLUMN.astype("<i8").tobytes(), DUE_COLUMN.tolist()),
    ("one value for all rows", "i64", 3, 7, [7, 7, 7]),
    ("one more on each row", "i64", 3, [7], [7, 8, 9]),
    ("negative, and one more on each row", "i64", 3, [-1], [-1, 0, 1]),
    ("no rows", "i64", 0, b"", []),
    ("plain u32", "u32", 2, b"\x01\x00\x00\x00\xff\xff\xff\xff", [1, 2**32 - 1]),
    ("the largest u32", "u32", 2, [2**32 - 2], [2**32 - 2, 2**32 - 1]),
    ("plain u8", "u8", 3, b"\x05\x0b\x00", [5, 11, 0]),
    ("the largest i64", "i64", 1, 2**63 - 1, [2**63 - 1]),
    ("too few bytes", "i64", 3, bytes(16), None),
    ("too large for u8", "u8", 2, 256, None),
    ("grows too large for u32", "u32", 2, [2**32 - 1], None),
    ("negative u32", "u32", 2, -1, None),
    ("a boolean", "i64", 2, True, None),
    ("nil", "i64", 2, None, None),
    ("two integers", "i64", 2, [7, 9], None),
    ("a float", "i64", 2, 1.5, None),
    ("text", "i64", 2, "7", None),
]

RAGGED: list[tuple[str, int, bytes, Any, list[bytes] | None]] = [
    ("three rows", 3, b"abbccc", [1], [b"a", b"bb", b"ccc"]),
    ("an empty row", 3, b"abcd", b"\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00", [b"a", b"", b"bcd"]),
    ("rows without bytes", 2, b"", 0, [b"", b""]),
    ("lengths that add up to less", 2, b"abc", 1, None),
    ("lengths that add up to more", 2, b"abc", 2, None),
]

RECEIPTS: list[tuple[str, int, int]] = [(SERVER_ID, DUE_MS, 42), (OTHER_ID, 0, 1), ("f" * 12, 2**48 - 1, 2**48 - 1)]
BAD_RECEIPTS = [
    "",
    "nonsense",
    RECEIPT[:-1],
    RECEIPT + "0",
    RECEIPT.upper(),
    RECEIPT.replace("-", "_"),
    f" {RECEIPT[1:]}",
]

# The local clock as the request left, the server's clock in the reply, the local clock now, and a delay.
# With a key of 60 characters, and with an id that names no shard of the cluster.
SLOT_KEYS: list[tuple[str, str]] = [
    ("orders", "o-1"),
    ("orders", "customer-42"),
    ("größe", "überall"),
    ("a", "0123456789" * 6),
    ("orders", "ffffffffffff.1"),
]
CLOCKS: list[tuple[int, int, int, int]] = [
    (500_000, ACCEPTED_US, 500_900, 1000),
    (500_000, ACCEPTED_US + 1, 500_000, 0),
    (500_000, ACCEPTED_US, 60_500_001, 1_800_000),
]


def to_json(value: Any) -> Any:
    """A value of msgpack as JSON: bytes are {"$bytes": hex}, integers beyond 2^53 - 1 are {"$int": decimal}."""
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if type(value) is int and abs(value) > EXACT_INT_MAX:
        return {"$int": str(value)}
    return value


def from_json(value: Any) -> Any:
    """The value of msgpack that `to_json` was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$bytes"}:
        return bytes.fromhex(value["$bytes"])
    if value.keys() == {"$int"}:
        return int(value["$int"])
    return {key: from_json(item) for key, item in value.items()}


def _each_error() -> dict[str, tuple[Any, ...]]:
    """A reply for each error that a server sends. Those about the connection have id 0."""
    replies: dict[str, tuple[Any, ...]] = {}
    for name in sorted(ERRORS.keys() - MADE_BY_CLIENTS):
        error: dict[str, Any] = {"error": name, "message": f"an example of {name}"}
        if issubclass(ERRORS[name], Unavailable):
            error["retry_after_ms"] = 1000
        if ERRORS[name] is NotPrimary:
            error |= {"primary": "10.0.0.2:20801", "http": "http://10.0.0.2:20880"}
        replies[f"error {name} reply"] = (0 if name in OF_THE_CONNECTION else 90, False, error)
    return replies


REPLIES |= _each_error()


def make() -> dict[str, Any]:
    """All vectors, as JSON."""
    frames = [
        {"name": name, "hex": encode_frame(value).hex(), "value": to_json(value)}
        for name, value in [*REQUESTS.items(), *REPLIES.items()]
    ]
    return {
        "about": "Test vectors of the delayserver wire protocol; docs/reference/protocol-examples.md explains the fields.",
        "protocol_version": 1,
        "frames": frames,
        "bad_frames": [_bad_frame(*bad) for bad in BAD_PAYLOADS] + [_too_large()],
        "columns": [
            {"name": name, "type": kind, "count": count, "hex": msgpack.packb(value).hex()} | _rows(rows)
            for name, kind, count, value, rows in COLUMNS
        ],
        "ragged": [
            {"name": name, "count": count, "bytes": blob.hex(), "lengths": msgpack.packb(lengths).hex()}
            | _rows(None if rows is None else [row.hex() for row in rows])
            for name, count, blob, lengths, rows in RAGGED
        ],
        "receipts": [
            {
                "server_id": server_id,
                "due_ms": due_ms,
                "sequence": sequence,
                "receipt": format_receipt(server_id, due_ms, sequence),
                "derived_message_id": derived_message_id(server_id, sequence),
            }
            for server_id, due_ms, sequence in RECEIPTS
        ],
        "bad_receipts": BAD_RECEIPTS,
        "slots": [{"subject": subject, "key": key, "slot": slot_of(subject, key)} for subject, key in SLOT_KEYS],
        "clocks": [_clock(*clock) for clock in CLOCKS],
        "proofs": [{"secret": SECRET, "challenge": CHALLENGE.hex(), "proof": make_proof(SECRET, CHALLENGE).hex()}],
    }


def _rows(rows: Any) -> dict[str, Any]:
    return {"error": "invalid_argument"} if rows is None else {"rows": to_json(rows)}


def _bad_frame(name: str, parts: list[tuple[bytes, int]], request_id: int, error: str) -> dict[str, Any]:
    length = sum(len(part) * times for part, times in parts)
    framed = [(length.to_bytes(4, "little"), 1), *parts]
    return {
        "name": name,
        "hex_parts": [[part.hex(), times] for part, times in framed],
        "id": request_id,
        "error": error,
        "closes": not request_id,
    }


def _too_large() -> dict[str, Any]:
    length = DEFAULT_LIMITS.frame_bytes_max + 1
    parts = [[length.to_bytes(4, "little").hex(), 1]]
    name = "a length above frame_bytes_max"
    return {"name": name, "hex_parts": parts, "id": 0, "error": "frame_too_large", "closes": True}


def _clock(sent_us: int, server_us: int, now_us: int, delay_ms: int) -> dict[str, int]:
    readings = iter([sent_us, now_us])
    clock = ServerClock(lambda: next(readings))
    clock.learn(server_us, sent_us)
    due_ms = clock.now_ms() + delay_ms
    return {"sent_us": sent_us, "server_us": server_us, "now_us": now_us, "delay_ms": delay_ms, "due_ms": due_ms}


def text() -> str:
    """The contents of the file: one vector a line."""
    made = make()
    lines = []
    for key, value in made.items():
        if isinstance(value, list):
            rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in value)
            lines.append(f"  {json.dumps(key)}: [\n{rows}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def told() -> str:
    """All that the pages of the protocol tell, one after the other."""
    return "\n".join([page.read_text() for page in PAGES])


def value_of(name: str) -> str:
    """The value of a frame as the page shows it: JSON, with bytes as h'…' in hex."""
    return drawn((REQUESTS | REPLIES)[name])


def with_values(page: str) -> str:
    """The page, with the value of each frame that it shows as its vector has it."""
    return BLOCK.sub(lambda match: f"```value {match['name']}\n{value_of(match['name'])}```", page)


if __name__ == "__main__":
    VECTORS.write_text(text())
    for each in PAGES:
        each.write_text(with_values(each.read_text()))
