"""Rows of consumer groups, for tests of what several shards have."""

from __future__ import annotations

from typing import Any

from delayserver.protocol.schema.dead_letters import DeadLetter
from delayserver.protocol.schema.groups import ConsumerGroup
from delayserver.protocol.schema.waiting_keys import WaitingKey


def group(subject: str, name: str, **figures: Any) -> ConsumerGroup:
    counts = {"position": 0, "end": 0, "lag": 0, "leased": 0, "retrying": 0, "expired": 0, "oldest_ms": None}
    return ConsumerGroup(subject=subject, group=name, **counts | figures)


def waiting(position: int) -> WaitingKey:
    return WaitingKey(position, "k", "m", "paused", 1, 5, None, 0, 5, position, "a" * 12)


def letter(position: int) -> DeadLetter:
    return DeadLetter(position, f"m-{position}", "nacked", "", 1, 5, 5, position, "a" * 12, {}, 0)
