"""Replies of the operation `metrics`, as the table of figures describes them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, get_origin, get_type_hints

from msgspec import Struct

from delayserver.protocol.figure_fields import Field, Kind, as_map, fields_of
from delayserver.protocol.figures import Figures

ZEROS: dict[Any, Any] = {bool: False, str: "", dict: {}, list: [], tuple: ()}
STAGES = ("decode", "commit_wait", "sync", "replay_lag", "load", "wheel", "queue", "hand_off", "settle")
# What differs from 0: the figures of a server that has worked for a minute.
BALANCE = {"delivered": 90, "cancelled": 4, "expired": 1, "deduplicated": 2, "rolled_back": 3, "pending": 5}
CLOCK = {"server_us": 1_795_562_512_164_514, "steps": 1, "step_last_ms": -250}
EVENT_LOOP = {"longest_stall_ms": 65, "longest_stall_minute_ms": 12, "long_stalls": 2}
STORAGE = {"commit_us_max": 11_072, "oldest_due_ms": 1_795_476_060_000, "oldest_incomplete_window_ms": None}
NODE = {"address": "10.0.0.1:1", "weight": 2, "circuit": "open", "failures": 9, "last_error": "x"}


def zeros(kind: Kind) -> Struct:
    """The values of a table, all of them 0. Lists and maps of tables have one entry."""
    hints = get_type_hints(kind)
    return kind(**{each.name: _zero(each, hints[each.name]) for each in fields_of(kind)})


def _zero(field: Field, hint: Any) -> Any:
    if field.rows is None:
        return deepcopy(ZEROS.get(get_origin(hint) or hint, 0))
    inner = zeros(field.rows)
    return {"one": inner, "list": [inner], "map": {"default": inner}}[field.shape]


def reply(subjects: int = 2) -> dict[str, Any]:
    """A whole reply with so many subjects, each with a consumer group."""
    whole = as_map(zeros(Figures))
    whole |= {
        "ready": True,
        "role": "server",
        "server_id": "dfb098eaab69",
        "version": "0.2.0",
        "accepted": 105,
        **BALANCE,
    }
    whole |= {"errors": {"queue_full": 2}, "corruption": ["a finding"]}
    whole["clock"] |= CLOCK
    whole["event_loop"] |= EVENT_LOOP
    whole["storage"] |= STORAGE
    whole["wheel"]["next_due_ms"] = 1_795_562_520_500
    nodes = whole["groups"]["default"]["nodes"]
    nodes.append(nodes[0] | NODE)
    bounds_us = [500 * 2**power for power in range(23)]
    histogram = {"bounds_us": bounds_us, "counts": [40, 30, 15, 5, *[0] * 19, 0], "sum_us": 123_456}
    group = whole["consumer_groups"][0] | {"group": "shop", "leased": 1, "oldest_ms": None}
    names = [f"orders.{number}" for number in range(subjects)]
    return whole | {
        "lateness": {"default": histogram | {"early": 0}},
        "stages": dict.fromkeys(STAGES, histogram),
        "subjects": [{"subject": name, "pending": number} for number, name in enumerate(names)],
        "consumer_groups": [group | {"subject": name, "lag": number} for number, name in enumerate(names)],
        "consumer_groups_all": subjects,
        "queues": [
            {"name": "gathered_bytes", "used": 3, "bound": 64},
            {"name": "group_rows", "used": 0, "bound": 8, "group": "default"},
        ],
    }
