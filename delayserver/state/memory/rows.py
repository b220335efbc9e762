"""The index row: what the wheel and the queues carry of a message, so that its bytes stay on disk until they are needed.

About 140 bytes. `window_ms` and `source` name the schedule file, the offsets and lengths the bytes in it, and `row_sum`
is what they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.logs.schedule_log import ScheduleIndex, ScheduleSource
from store.records.column_batch import has_any

ROW = np.dtype(
    [
        ("window_ms", "<i8"),
        ("accepted_us", "<i8"),
        ("expires_ms", "<i8"),
        ("origin_sequence", "<i8"),
        ("loaded_us", "<i8"),
        ("released_us", "<i8"),
        ("ids_offset", "<i8"),
        ("properties_offset", "<i8"),
        ("bodies_offset", "<i8"),
        ("order_keys_offset", "<i8"),
        ("row_sum", "<u8"),
        ("ids_length", "<u4"),
        ("properties_length", "<u4"),
        ("bodies_length", "<u4"),
        ("order_keys_length", "<u4"),
        ("order_hash", "<u4"),
        ("tag", "<u4"),
        ("subject", "<u4"),
        ("target_group", "<u4"),
        ("redelivery", "<u4"),
        ("attempts", "<u4"),
        ("unanswered_node", "<u4"),
        ("unanswered", "<u2"),
        ("source", "u1"),
        ("uncertain", "u1"),
    ]
)

# `unanswered_node` after unanswered hand-overs to several nodes. 0: the node is unknown, from before this start.
SEVERAL_NODES = 0xFFFF_FFFF

_FROM_INDEX = (
    "accepted_us",
    "expires_ms",
    "origin_sequence",
    "ids_offset",
    "properties_offset",
    "bodies_offset",
    "row_sum",
    "ids_length",
    "properties_length",
    "bodies_length",
    "subject",
    "target_group",
    "redelivery",
)
# Few messages have these.
_RARE_FROM_INDEX = ("order_keys_offset", "order_keys_length", "order_hash", "tag")


def make_rows(
    index: ScheduleIndex, window_ms: int, source: ScheduleSource, loaded_us: int, uncertain: bool = False
) -> NDArray[Any]:
    """Index rows of the wheel for rows of one schedule file. `uncertain`: an attempt may have been made before a crash."""
    rows = np.zeros(len(index.sequence), dtype=ROW)
    for name in _FROM_INDEX:
        rows[name] = getattr(index, name)
    for name in _RARE_FROM_INDEX:
        column = getattr(index, name)
        if has_any(column):
            rows[name] = column  # of the hash of the order key its low half
    rows["window_ms"] = window_ms
    rows["source"] = int(source)
    rows["loaded_us"] = loaded_us
    rows["uncertain"] = uncertain
    return rows


def has_order_key(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """True for the index rows of messages with an order key, bool[n]."""
    keyed: NDArray[np.bool_] = rows["order_keys_length"] != 0
    return keyed


def message_bytes(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The bytes of each message that these index rows stand for, i64[n]: its body, id, properties and order key."""
    sizes: NDArray[np.int64] = rows["bodies_length"].astype(np.int64)
    sizes += rows["ids_length"]
    sizes += rows["properties_length"]
    sizes += rows["order_keys_length"]
    return sizes
