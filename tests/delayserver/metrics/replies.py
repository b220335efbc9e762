"""Replies of the operation `metrics`, as PROTOCOL.md describes them."""

from __future__ import annotations

from typing import Any

STATUS: dict[str, Any] = {
    "ready": True,
    "waits_for": "",
    "role": "server",
    "server_id": "dfb098eaab69",
    "version": "0.1.0",
    "uptime_s": 60,
    "accepted": 105,
    "delivered": 90,
    "cancelled": 4,
    "dead_lettered": 0,
    "expired": 1,
    "deduplicated": 2,
    "rolled_back": 3,
    "pending": 5,
    "early": 0,
    "lateness_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p999": 4.0, "max": 5.0},
    "clock": {
        "server_us": 1_795_562_512_164_514,
        "believable_us": 1_795_562_512_164_494,
        "steps": 1,
        "step_last_ms": -250,
    },
    "event_loop": {"longest_stall_ms": 65, "longest_stall_minute_ms": 12, "long_stalls": 2},
    "connections": 3,
    "one_way_refused": 0,
    "connection_memory": {"used_bytes": 7, "bytes_max": 134_217_728, "frames_waiting": 0},
    "errors": {"queue_full": 2},
    "corruption": ["a finding"],
    "unreadable": [],
    "duplicate_server_ids": [],
    "storage": {
        "durability": "sync",
        "disk_free_bytes": 70_607_101_952,
        "disk_low": False,
        "disk_errors": 0,
        "disk_error_last": "",
        "open_files": 1,
        "subjects": 1,
        "subjects_max": 1_000_000,
        "tags": 0,
        "tags_max": 65_536,
        "replay_lag_bytes": 640,
        "group_commits": 5,
        "commit_us_max": 11_072,
        "checkpoints": 1,
        "outcomes_waiting": 3,
        "oldest_due_ms": 1_795_476_060_000,
        "retired_windows_ahead": 0,
        "oldest_incomplete_window_ms": None,
        "incomplete_windows": 0,
    },
    "wheel": {"rows": 5, "bytes": 700, "next_due_ms": 1_795_562_520_500, "loads": 3, "evictions": 0},
    "groups": {
        "default": {
            "waiting": 0,
            "in_flight": 2,
            "delivered": 90,
            "attempts_failed": 1,
            "duplicates_suppressed": 0,
            "failed_over": 0,
            "uncertain_failovers": 0,
            "maybe_delivered_twice": 0,
            "dropped_from_memory": 0,
            "nodes": [
                {
                    "address": "embedded",
                    "weight": 1,
                    "circuit": "closed",
                    "failures": 0,
                    "last_error": "",
                    "problem": "",
                },
                {
                    "address": "10.0.0.1:1",
                    "weight": 2,
                    "circuit": "open",
                    "failures": 9,
                    "last_error": "x",
                    "problem": "",
                },
            ],
        }
    },
    "broker": {"delivered": 90, "pulled": 80, "acked": 70, "store_bytes": 624, "damages": [], "groups": 1},
}


def reply(subjects: int = 2) -> dict[str, Any]:
    """A whole reply with so many subjects, each with a consumer group."""
    bounds_us = [500 * 2**power for power in range(23)]
    counts = [40, 30, 15, 5, *[0] * 19, 0]
    histogram = {"bounds_us": bounds_us, "counts": counts, "sum_us": 123_456}
    stages = ("decode", "commit_wait", "sync", "replay_lag", "load", "wheel", "queue", "hand_off", "settle")
    return STATUS | {
        "lateness": {"default": histogram | {"early": 0}},
        "stages": dict.fromkeys(stages, histogram),
        "subjects": [{"subject": f"orders.{number}", "pending": number} for number in range(subjects)],
        "consumer_groups": [
            {
                "subject": f"orders.{number}",
                "group": "shop",
                "lag": number,
                "leased": 1,
                "retrying": 0,
                "oldest_ms": None,
            }
            for number in range(subjects)
        ],
        "consumer_groups_all": subjects,
        "queues": [
            {"name": "gathered_bytes", "used": 3, "bound": 64},
            {"name": "group_rows", "used": 0, "bound": 8, "group": "default"},
        ],
    }
