"""Replies of the schema as values of a program: how they are made, matched, and shown by `help`."""

from __future__ import annotations

from inspect import signature

from delayserver import client
from delayserver.client import SkipResult, WaitingKey
from delayserver.protocol.schema.structs import Shown

FIELDS = ("position", "order_key", "message_id", "state", "attempts", "since_ms", "next_ms", "behind", "due_ms",
          "sequence", "server_id")  # fmt: skip


def test_a_waiting_key_is_made_and_matched_by_place() -> None:
    key = WaitingKey(41, "k", "m", "ready", 5, 6, None, 4, 7, 46, "5f3a9c0d2b71")
    assert (key.next_ms, key.behind, key.server_id) == (None, 4, "5f3a9c0d2b71")
    assert WaitingKey.__struct_fields__ == WaitingKey.__match_args__ == FIELDS


def test_signatures_of_public_values_have_plain_types() -> None:
    described = [each for each in map(client.__dict__.get, client.__all__) if isinstance(each, Shown)]
    assert len(described) > 5
    assert [each.__name__ for each in described if "Meta(" in str(signature(each))] == []
    assert str(signature(SkipResult)) == "(skipped: int, left: int)"
