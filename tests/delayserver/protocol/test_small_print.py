"""Sentences of PROTOCOL.md about the edges, each against a server."""

from __future__ import annotations

import re
from typing import Any

import msgpack
import numpy as np
import pytest

from delayserver.protocol.columns import U32, pack_column
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import decode_request
from tests.delayserver.protocol import vectors
from tests.fakes.host import Boot, small_settings

PAGE = vectors.told()
# {"a": "1", "a": "2"}: no map of Python can say it.
TWICE = b"\x82" + msgpack.packb("a") + msgpack.packb("1") + msgpack.packb("a") + msgpack.packb("2")
NESTED_MAX = 1022


async def test_a_property_that_stands_twice_counts_once_in_a_row_and_keeps_its_bytes_in_columns(boot: Boot) -> None:
    _, client = await boot.connected(small_settings())
    row = msgpack.packb({"subject": "rows", "body": "", "delay_ms": 0})[1:]
    payload = b"\x93\x63\xa4send\x81\xa8messages\x91\x84" + row + msgpack.packb("properties") + TWICE
    await client.send_bytes(len(payload).to_bytes(4, "little") + payload)
    while 0x63 not in client.replies:
        await client.take()
    assert [kept["properties"] for kept in await client.pull("rows", wait_ms=2000)] == [{"a": "2"}]
    columns = {"count": 1, "subject": "columns", "delay_ms": 0, "bodies": b"", "body_length": 0}
    lengths = pack_column(np.array([len(TWICE)], np.uint32), U32)
    await client.request("send", columns | {"properties": TWICE, "properties_length": lengths})
    pull = {"subject": "columns", "group": "g", "wait_ms": 2000, "columns": True}
    assert (await client.request("pull", pull))["properties"] == TWICE


async def test_a_composed_and_a_decomposed_letter_make_two_subjects(boot: Boot) -> None:
    _, client = await boot.connected(small_settings())
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    await client.send(
        {"subject": composed, "body": "c", "delay_ms": 0}, {"subject": decomposed, "body": "d", "delay_ms": 0}
    )
    assert [row["body"] for row in await client.pull(composed, wait_ms=2000)] == [b"c"]
    assert [row["body"] for row in await client.pull(decomposed, wait_ms=2000)] == [b"d"]


async def test_a_cancel_is_too_late_from_4_ms_before_the_due_time(boot: Boot) -> None:
    assert "this begins 4 ms before it is due" in PAGE
    host, client = await boot.connected(small_settings())
    for left_ms, outcome in ((5, "cancelled"), (3, "too_late")):
        due_ms = host.now_ms + 1000
        [row] = await client.send({"subject": "s", "body": "", "due_ms": due_ms})
        await host.sleep_ms(due_ms - left_ms - host.now_ms)
        assert await client.cancel(row["receipt"]) == [outcome]


async def test_max_bytes_of_a_pull_goes_up_to_2_to_the_62(boot: Boot) -> None:
    assert "more, up to 2^62, counts as 8 MiB" in PAGE
    _, client = await boot.connected(small_settings())
    pull = {"subject": "s", "group": "g"}
    assert await client.request("pull", pull | {"max_bytes": 1 << 62}) == {"messages": []}
    with pytest.raises(InvalidArgument, match="max_bytes"):
        await client.request("pull", pull | {"max_bytes": (1 << 62) + 1})


def test_an_argument_with_as_many_levels_as_the_page_says_is_read() -> None:
    assert f"an argument with more than {NESTED_MAX:,} levels of nesting" in PAGE
    payload = b"\x93\x07\xa4ping\x81\xa1a" + b"\x91" * (NESTED_MAX - 1) + b"\x90"
    level: Any = decode_request(payload).arguments["a"]
    for _ in range(NESTED_MAX - 1):
        [level] = level
    assert level == []


def test_the_names_of_id_0_are_the_same_wherever_the_page_lists_them() -> None:
    [listed] = re.findall(r"\*\*Id 0\*\* .*?The names are (.*?)\. Requests", PAGE, re.DOTALL)
    table = PAGE[PAGE.index("## 10 Errors") : PAGE.index("## 11 ")]
    told = {name for name, row in re.findall(r"^\| `(\w+)` (.*)$", table, re.MULTILINE) if "id 0" in row.lower()}
    assert set(re.findall(r"`(\w+)`", listed)) == told
    assert told == vectors.OF_THE_CONNECTION | {"unauthenticated"}
