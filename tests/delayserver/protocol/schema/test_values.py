"""Replies of the schema as values of a program: how they are made, matched, and shown by `help`."""

from __future__ import annotations

from delayserver.client import WaitingKey

FIELDS = ("position", "order_key", "message_id", "state", "attempts", "since_ms", "next_ms", "behind", "due_ms",
          "sequence", "server_id")  # fmt: skip


def test_a_waiting_key_is_made_and_matched_by_place() -> None:
    key = WaitingKey(41, "k", "m", "ready", 5, 6, None, 4, 7, 46, "5f3a9c0d2b71")
    assert (key.next_ms, key.behind, key.server_id) == (None, 4, "5f3a9c0d2b71")
    assert WaitingKey.__struct_fields__ == WaitingKey.__match_args__ == FIELDS
