"""`status` as the map that goes over the wire."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from delayserver.operations.figures.status import ServerStatus


def status_map(status: ServerStatus) -> dict[str, Any]:
    """The fields of the reply, as PROTOCOL.md describes them."""
    process, connections = status.process, status.connections
    groups = {name: asdict(group) for name, group in status.groups.items()}
    return {
        "ready": process.ready,
        "waits_for": process.waits_for,
        "role": process.role,
        "server_id": process.server_id,
        "version": process.version,
        "uptime_s": process.uptime_s,
        **asdict(status.balance),
        "clock": asdict(status.clock),
        "event_loop": asdict(status.event_loop),
        "connections": connections.open,
        "one_way_refused": connections.one_way_refused,
        "connection_memory": {
            "used_bytes": connections.used_bytes,
            "bytes_max": connections.bytes_max,
            "frames_waiting": connections.frames_waiting,
        },
        "errors": status.errors,
        "corruption": status.corruption,
        "unreadable": status.unreadable,
        "duplicate_server_ids": status.duplicate_server_ids,
        "storage": asdict(status.disk) | asdict(status.progress) | asdict(status.windows),
        "wheel": asdict(status.wheel),
        "groups": groups,
        "broker_groups": groups,
        "broker": status.broker,
    }
