"""What several shards have, as one reply: nothing is left out, counted twice, or told twice by pages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.client.calls.shard_places import (
    SHARD_CURSORS,
    ShardCursor,
    position_at,
    positions_by_shard,
    with_positions,
)
from delayserver.client.calls.shard_sums import NAMED_ROWS, added_acts, added_buckets, added_groups
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import DEAD_LETTERS, FIND, GROUPS, PENDING, SUBJECTS, TRANSACTIONS
from delayserver.protocol.schema.dead_letters import DropResult, ResendResult
from delayserver.protocol.schema.groups import ConsumerGroup
from delayserver.protocol.schema.pending import PendingBucket, PendingPage, PendingSubject
from delayserver.protocol.schema.stored import FindPage
from delayserver.protocol.schema.waiting_keys import WaitingKeysPage
from delayserver.protocol.schema.words import POSITION_MAX
from tests.delayserver.client.groups_of_shards import group, waiting

NAMES = st.sampled_from(["a", "a.b", "b", "c", "ä", "~"])
# More pages than there are rows: a test that gets so many is red.
PAGES_MAX = 100
BUCKETS = st.dictionaries(st.tuples(st.integers(0, 12), st.sampled_from([1, 6])), st.integers(1, 5))


def shard_page(buckets: dict[tuple[int, int], int], from_ms: int, count_max: int) -> PendingPage:
    """As a server answers: the first buckets from a time on."""
    rows = [PendingBucket(*place, count) for place, count in sorted(buckets.items()) if place[0] >= from_ms]
    later = {row.start_ms for row in rows[count_max:]}
    next_ms = min(later, default=None)
    return PendingPage([row for row in rows if next_ms is None or row.start_ms < next_ms], next_ms, 1)


@given(st.lists(BUCKETS, min_size=1, max_size=4), st.integers(2, 5))
def test_pages_of_times_have_each_bucket_once_with_the_sum_of_all_shards(
    shards: list[dict[tuple[int, int], int]], count_max: int
) -> None:
    wanted: Counter[tuple[int, int]] = Counter()
    for shard in shards:
        wanted.update(shard)
    told: list[PendingBucket] = []
    from_ms: int | None = 0
    for _ in range(PAGES_MAX):
        assert from_ms is not None
        page = added_buckets([shard_page(shard, from_ms, count_max) for shard in shards], count_max)
        assert page.unplaced == len(shards)
        # Two widths of one time are never parted.
        assert len({row.start_ms for row in page.buckets}) <= count_max
        assert page.next_ms is None or page.next_ms > from_ms
        told += page.buckets
        from_ms = page.next_ms
        if from_ms is None:
            break
    assert [((row.start_ms, row.width_ms), row.pending) for row in told] == sorted(wanted.items())


@given(st.lists(st.lists(NAMES, unique=True), max_size=4), st.integers(1, 3))
def test_pages_of_subjects_have_each_name_once_in_order(shards: list[list[str]], count_max: int) -> None:
    told: list[str] = []
    after: int | str = 0
    for _ in range(PAGES_MAX):
        page = NAMED_ROWS[SUBJECTS].merged(shards, {"after": after, "max": count_max})
        told += page.subjects
        after = page.next
        if not page.more:
            break
    assert told == sorted({name for names in shards for name in names})


@given(st.lists(st.dictionaries(NAMES, st.integers(1, 9)), max_size=4), st.integers(1, 3))
def test_pages_of_pending_subjects_add_what_the_shards_have(shards: list[dict[str, int]], count_max: int) -> None:
    rows = [[PendingSubject(name, count) for name, count in shard.items()] for shard in shards]
    told: list[tuple[str, int]] = []
    after: int | str | None = None
    for _ in range(PAGES_MAX):
        page = NAMED_ROWS[PENDING].merged(rows, {"max": count_max} | ({} if after is None else {"after": after}))
        told += [(row.subject, row.pending) for row in page.subjects]
        after = page.next
        if after is None:
            break
    wanted: Counter[str] = Counter()
    for shard in shards:
        wanted.update(shard)
    assert told == sorted(wanted.items())


@given(st.lists(st.lists(st.tuples(NAMES, NAMES), unique=True), max_size=3), st.integers(1, 3))
def test_a_row_that_comes_between_two_pages_makes_no_other_come_twice(
    shards: list[list[tuple[str, str]]], count_max: int
) -> None:
    told: list[tuple[str, str]] = []
    after: Any = None
    grown = [[group(*key) for key in keys] for keys in shards]
    for _ in range(PAGES_MAX):
        page = NAMED_ROWS[GROUPS].merged(grown, {"max": count_max, "after": after})
        told += [(row.subject, row.group) for row in page.groups]
        if page.next is None:
            break
        after = page.next
        grown = [[group("", "first")], *grown]
    assert told == sorted({key for keys in shards for key in keys})


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_counts_of_a_group_are_added_and_the_oldest_is_that_of_all(one: int, other: int) -> None:
    counts = {
        name: one for name in ConsumerGroup.__struct_fields__ if name not in ("subject", "group", "tags", "where")
    }
    summed = added_groups(group("s", "g", **counts, tags="t"), group("s", "g", **dict.fromkeys(counts, other)))
    oldest = {"oldest_ms": min(one, other)}
    assert summed == group("s", "g", **dict.fromkeys(counts, one + other) | oldest, tags="t")
    assert added_groups(group("s", "g", oldest_ms=None), group("s", "g", oldest_ms=7)).oldest_ms == 7


def test_a_cursor_of_one_shard_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="one shard"):
        NAMED_ROWS[GROUPS].merged([], {"after": [7, 12]})
    with pytest.raises(InvalidArgument, match="one shard"):
        NAMED_ROWS[SUBJECTS].merged([], {"after": 41})


OWN = {
    FIND: st.tuples(st.integers(0, (1 << 63) - 1), st.integers(-1, 9)),
    TRANSACTIONS: st.from_regex(r"[0-9]{1,13}[.][0-9][.][0-9]{1,9}", fullmatch=True),
    DEAD_LETTERS: st.integers(0, POSITION_MAX - 1),
}


@given(st.data(), st.sampled_from(sorted(OWN)), st.integers(0, 1_000))
def test_a_cursor_names_its_shard_and_gives_that_of_the_shard_back(data: Any, operation: str, shard: int) -> None:
    own = data.draw(OWN[operation])
    cursor: ShardCursor = SHARD_CURSORS[operation]
    assert cursor.place(cursor.part(shard, own), [shard]) == (shard, own)
    begin = cursor.place(cursor.part(shard, None), [shard])
    assert begin == (shard, -1 if operation == DEAD_LETTERS else None)


def test_the_end_of_a_shard_leads_to_the_next_one_that_has_messages() -> None:
    cursor = SHARD_CURSORS[FIND]
    page = cursor.led_on(FindPage([], (5, 1)), 3, [0, 3, 7])
    assert cursor.place(page.next, [0, 3, 7]) == (3, (5, 1))
    page = cursor.led_on(FindPage([], None), 3, [0, 3, 4, 7])
    assert cursor.place(page.next, [0, 3, 4, 7]) == (4, None)
    page = cursor.led_on(FindPage([], None), 3, [0, 3, 7])
    assert cursor.place(page.next, [0, 3, 7]) == (7, None)
    assert cursor.led_on(FindPage([], None), 7, [0, 3, 7]).next is None
    assert cursor.place(None, [2, 3]) == (2, None)


@pytest.mark.parametrize("operation", [FIND, TRANSACTIONS, DEAD_LETTERS])
def test_a_cursor_that_leads_to_no_shard_is_refused(operation: str) -> None:
    cursor = SHARD_CURSORS[operation]
    with pytest.raises(InvalidArgument):
        cursor.place(cursor.part(9, None), [0, 1])
    with pytest.raises(InvalidArgument):
        cursor.place("nonsense", [0, 1])


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, POSITION_MAX)), unique=True))
def test_positions_name_their_shards(places: list[tuple[int, int]]) -> None:
    found = positions_by_shard([position_at(*place) for place in places])
    assert [(shard, own) for shard, owns in found.items() for own in owns] == sorted(
        places, key=lambda each: list(found).index(each[0])
    )
    page = WaitingKeysPage([waiting(own) for _, own in places], None, 0, 0)
    listed = [row.position for row in with_positions(page, 7, "keys").keys]
    assert positions_by_shard(listed) == ({7: [own for _, own in places]} if places else {})


@given(st.integers(0, 4_095), st.integers(0, (1 << 40) - 1))
def test_a_position_that_names_its_shard_survives_a_program_that_reads_json_as_floating_point(
    shard: int, own: int
) -> None:
    position = position_at(shard, own)
    assert 0 <= position == int(float(position)) and position + 1 == int(float(position + 1))
    assert positions_by_shard([position]) == {shard: [own]}


def test_what_shards_did_one_after_the_other_is_added() -> None:
    acted = [ResendResult(2, 5, 100, 1), ResendResult(3, 0, 250, 2)]
    assert added_acts(acted, "resent", 9) == ResendResult(5, 9, 250, 3)
    assert added_acts([DropResult(2, 5), DropResult(1, 0)], "dropped", 4) == DropResult(3, 4)
