"""Ids and order keys that are too long are refused, and cost no more than their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from store.records import id_hash
from tests.fakes.host import Boot, small_settings

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("texts", "lengths", "error"),
    [
        ("message_ids", "message_id_length", "message_id_invalid"),
        ("order_keys", "order_key_length", "invalid_argument"),
    ],
)
async def test_a_text_of_a_megabyte_is_refused_without_a_step_for_each_of_its_words(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, texts: str, lengths: str, error: str
) -> None:
    host, client = await boot.connected(small_settings())
    steps = 0
    mix_in = id_hash._mix_in

    def counted(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        mix_in(*arguments)

    monkeypatch.setattr(id_hash, "_mix_in", counted)
    values = [b"before", b"x" * 1_000_000, b"behind"]
    due_ms = host.now_ms + HOUR_MS
    arguments: dict[str, Any] = {
        "count": 3,
        "subject": "s",
        "due_ms": due_ms,
        "bodies": b"abc",
        "body_length": 1,
        texts: b"".join(values),
        lengths: np.array([len(value) for value in values], "<u4").tobytes(),
    }
    reply = await client.request("send", arguments)
    assert reply["accepted"] == 2
    assert [(index, name) for index, name, _, _ in reply["rejected"]] == [(1, error)]
    assert steps < 100
    if texts == "message_ids":
        found = [(await client.request("lookup", {"messages": [{"subject": "s", "message_id": name, "due_ms": due_ms}]}))
                 for name in ("before", "behind")]  # fmt: skip
        assert [reply["results"][0]["outcome"] for reply in found] == ["pending", "pending"]
