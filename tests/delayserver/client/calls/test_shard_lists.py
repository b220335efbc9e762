"""Pages of several shards become one list in the order of due times, with one cursor, whatever the pages' sizes."""

from __future__ import annotations

import random

import pytest

from delayserver.client.calls.shard_lists import merged_list, parts_of_list
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.pending import PendingMessage, PendingMessagesPage

SHARDS = [0, 2, 5]


def message(shard: int, number: int, due_ms: int) -> PendingMessage:
    return PendingMessage(f"{shard}/{number}", "m", "s", due_ms, 1, 0, place=f"{number + 1:x}")


def page_of(rows: list[PendingMessage], after: str | None, count: int, more: int) -> PendingMessagesPage:
    """A page as a shard makes it; it may end early."""
    start = int(after, 16) if after else 0
    taken = rows[start : start + min(count, more)]
    stop = start + len(taken)
    return PendingMessagesPage(taken, None if stop == len(rows) else f"{stop:x}", len(rows) - start, stop < len(rows))


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_each_message_comes_once_in_order(seed: int, latest: bool) -> None:
    chance = random.Random(seed)
    rows: dict[int, list[PendingMessage]] = {}
    for shard in SHARDS:
        due = sorted([chance.randrange(20) for _ in range(chance.randrange(12))], reverse=latest)
        rows[shard] = [message(shard, number, due_ms) for number, due_ms in enumerate(due)]
    found: list[PendingMessage] = []
    after, pages = None, 0
    while True:
        count = chance.randrange(1, 6)
        asked = {"max": count, "after": after, "latest_first": latest, "count": True}
        parts = parts_of_list(asked, SHARDS)
        own = {shard: page_of(rows[shard], at, count, chance.randrange(4)) for shard, at in parts.items()}
        page = merged_list(own, asked, SHARDS)
        assert page.matching == sum(map(len, rows.values())) - len(found)
        assert len(page.messages) <= count
        found += page.messages
        after, pages = page.next, pages + 1
        assert pages < 500
        if after is None:
            break
    assert all(each.place == "" for each in found), "the places of one shard lead nowhere"
    assert [each.due_ms for each in found] == sorted([each.due_ms for each in found], reverse=latest)
    assert sorted(each.receipt for each in found) == sorted(each.receipt for some in rows.values() for each in some)


def test_a_shard_that_was_added_meanwhile_is_left_out_and_one_that_is_gone_too() -> None:
    assert parts_of_list({"after": "0-12~2-end~5-"}, [0, 2, 5, 7]) == {0: "12", 5: None}
    assert parts_of_list({"after": "0-12~2-end~5-"}, [2]) == {}


@pytest.mark.parametrize("after", ["1b2c", "0-12~", "0-12~x", 5, "0-12 ~2-end"])
def test_a_cursor_of_one_shard_is_refused(after: object) -> None:
    with pytest.raises(InvalidArgument, match="of all shards"):
        parts_of_list({"after": after}, SHARDS)
