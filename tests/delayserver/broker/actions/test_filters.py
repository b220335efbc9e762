"""A group with a filter, in the broker's core: what it gets, what moves its position, and what the disk learns of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import msgpack
import numpy as np
import pytest

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.filters.filter import Filter
from delayserver.broker.filters.program import compile_expression
from delayserver.broker.reads import SELECTED, ReadNeeded
from store.records.batches import StoredBatch
from store.records.file_header import FILE_HEADER_BYTES
from store.records.record import BadRecordError, decode_header, decode_record
from tests.delayserver.broker.brokers import GROUP, NOW_US, SERVER, SUBJECT, DirectBroker, open_broker
from tests.fakes.disk import FakeDisk

ALL = GROUP + 1
LIMITS = BrokerLimits(segment_bytes=1 << 20, queue_segment_bytes=1 << 20)
PAID = Filter([1], None)


def messages(tags: list[int], first: int = 1, prices: list[str] | None = None, expires_ms: int = 0) -> StoredBatch:
    """A message for each tag, with sequences from `first` on."""
    packed = [msgpack.packb({"price": price}) if price else b"" for price in prices or [""] * len(tags)]
    return StoredBatch.filled(
        len(tags),
        sequence=np.arange(first, first + len(tags)),
        server_id=SERVER,
        window_ms=60_000,
        subject=SUBJECT,
        tag=np.array(tags, np.uint32),
        expires_ms=expires_ms,
        properties_length=np.array([len(each) for each in packed], np.uint32),
        properties=b"".join(packed),
        bodies_length=2,
        bodies=bytes(2 * len(tags)),
    )


def filtered_broker(disk: FakeDisk, wanted: Filter | None = PAID, limits: BrokerLimits = LIMITS) -> DirectBroker:
    broker = open_broker(disk, limits)
    broker.consuming.use_filter((SUBJECT, GROUP), wanted)
    return broker


def pulled(broker: DirectBroker, count: int = 100, group: int = GROUP, lease_us: int = NOW_US) -> dict[int, int]:
    """What one pull hands out: deliveries by sequence."""
    found = broker.pull(SUBJECT, group, count, 1 << 20, NOW_US, lease_us)
    if found is None:
        return {}
    return dict(zip(found.batch.sequence.tolist(), found.delivery.tolist(), strict=True))


def ack(broker: DirectBroker, deliveries: dict[int, int]) -> None:
    assert broker.consuming.ack((SUBJECT, GROUP), np.array(list(deliveries.values()))).unknown == 0


def committed(broker: DirectBroker) -> int:
    row = broker.group_row((SUBJECT, GROUP))
    assert row is not None
    return row.position


def rows_in_log(broker: DirectBroker) -> list[tuple[int, int, int]]:
    return [(row.change, row.start, row.stop) for row in broker.state.files.progress.rows() if row.group == GROUP]


def test_a_group_gets_the_messages_that_its_filter_matches_and_other_groups_get_all() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([1, 2, 1, 0, 3, 1]), False, NOW_US)
    assert list(pulled(broker)) == [1, 3, 6]
    assert list(pulled(broker, group=ALL)) == [1, 2, 3, 4, 5, 6]
    row = broker.group_row((SUBJECT, GROUP))
    assert row is not None and (row.filtered, row.lag, row.leased) == (3, 3, 3)
    assert broker.status()["filtered"] == 3


@pytest.mark.parametrize(
    ("wanted", "sequences"),
    [
        (Filter([], compile_expression("price > 3")), [2, 4]),
        (Filter([1], compile_expression("price > 3")), [2]),
        (Filter([1, 2], compile_expression("price > 3")), [2, 4]),
        (Filter([1, 2], None), [1, 2, 3, 4]),
        (Filter([2], compile_expression("price is null")), []),
        (Filter([], compile_expression("price like '_%'")), [1, 2, 4]),
        (Filter([9], None), []),
        (Filter([], compile_expression("1 = 1")), [1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_tags_and_an_expression_both_have_to_match(wanted: Filter, sequences: list[int], together: bool) -> None:
    broker = filtered_broker(FakeDisk(), wanted)
    tags, prices = [1, 1, 1, 2], ["3", "4", "", "5"]
    if together:
        broker.deliver(messages(tags, 1, prices), False, NOW_US)
    else:
        for index in range(4):
            broker.deliver(messages([tags[index]], 1 + index, [prices[index]]), False, NOW_US)
    assert list(pulled(broker)) == sequences
    assert committed(broker) == (0 if 1 in sequences else sequences[0] - 1 if sequences else 4)


def test_a_pull_takes_as_many_as_it_asks_for_and_the_next_goes_on_there() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([2, 1, 2, 1, 1, 2, 1]), False, NOW_US)
    assert [list(pulled(broker, 2)), list(pulled(broker, 1)), list(pulled(broker, 5))] == [[2, 4], [5], [7]]
    broker.check_invariants()


def test_a_match_that_does_not_fit_is_the_first_of_the_next_pull() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([2, 1, 2, 2, 1, 2]), False, NOW_US)
    first = broker.pull(SUBJECT, GROUP, 10, 70, NOW_US, NOW_US)  # one row has 66 bytes
    assert first is not None and first.batch.sequence.tolist() == [2]
    assert list(pulled(broker)) == [5]


def test_filtered_messages_move_the_position_and_cause_no_write_of_their_own() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([2] * 100), False, NOW_US)
    broker.durability.sync()
    assert pulled(broker) == {} and committed(broker) == 100
    assert not broker.durability.needs_sync()
    assert not [row for row in rows_in_log(broker) if row[0] == 0]
    broker.deliver(messages([2], 101), False, NOW_US)
    broker.durability.sync()  # its own reason: the message
    assert [row for row in rows_in_log(broker) if row[0] == 0] == [(0, 0, 100)]


def test_one_row_of_the_progress_log_covers_a_thousand_acks_between_messages_that_were_passed_over() -> None:
    disk = FakeDisk()
    broker = filtered_broker(disk)
    broker.deliver(messages([1, *[2] * 9] * 1000), False, NOW_US)
    found = pulled(broker, 1000)
    assert len(found) == 1000
    ack(broker, found)
    broker.durability.sync()
    assert [row for row in rows_in_log(broker) if row[0] == 0] == [(0, 0, 10_000)]
    broker.abandon()
    disk.kill()
    broker = filtered_broker(disk)
    assert committed(broker) == 10_000 and pulled(broker) == {}


def test_acks_above_a_message_that_is_not_acked_take_a_row_for_each_gap(disk: FakeDisk) -> None:
    broker = filtered_broker(disk)
    broker.deliver(messages([1, 2, 2, 1, 2, 1, 2, 1, 2]), False, NOW_US)
    found = pulled(broker)
    ack(broker, {sequence: found[sequence] for sequence in (4, 6)})
    broker.durability.sync()
    assert [row for row in rows_in_log(broker) if row[0] == 0] == [(0, 1, 7)]
    ack(broker, {1: found[1]})
    broker.durability.sync()
    assert [row for row in rows_in_log(broker) if row[0] == 0] == [(0, 1, 7), (0, 0, 7)]
    broker.abandon()
    disk.crash(Random(1))
    broker = filtered_broker(disk)
    assert committed(broker) == 7 and list(pulled(broker)) == [8]


def test_after_a_crash_the_present_filter_looks_again_at_messages_that_were_passed_over(disk: FakeDisk) -> None:
    broker = filtered_broker(disk)
    broker.deliver(messages([2, 2, 1]), False, NOW_US)
    broker.durability.sync()
    assert list(pulled(broker)) == [3]
    broker.abandon()
    disk.crash(Random(1))
    broker = filtered_broker(disk, Filter([2], None))
    assert list(pulled(broker)) == [1, 2]


def test_a_redelivery_comes_also_when_the_filter_has_changed() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([1, 2, 1, 2]), False, NOW_US)
    found = pulled(broker)
    batch = broker.nack(SUBJECT, GROUP, np.array([found[1]]), 0, NOW_US, NOW_US)
    assert batch.messages is not None and batch.messages.origin_sequence.tolist() == [1]
    broker.retries.settle(batch)
    broker.consuming.use_filter((SUBJECT, GROUP), Filter([2], None))
    broker.deliver(messages([1], 9).with_columns(target_group=GROUP, origin_sequence=1), False, NOW_US)
    assert list(pulled(broker)) == [9]


def test_a_redelivery_in_its_place_comes_also_when_the_filter_has_changed() -> None:
    broker = filtered_broker(FakeDisk(), limits=replace(LIMITS, redelivery_bytes_max=1))
    broker.deliver(messages([1, 2, 1, 2]), False, NOW_US)
    found = pulled(broker)
    broker.nack(SUBJECT, GROUP, np.array([found[1], found[3]]), 0, NOW_US, NOW_US)
    broker.consuming.use_filter((SUBJECT, GROUP), Filter([2], None))
    assert list(pulled(broker, lease_us=NOW_US + 1)) == [1, 3]


def test_only_matches_come_again_when_a_lease_ends() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([1, 2, 2, 1, 2]), False, NOW_US)
    assert list(pulled(broker)) == [1, 4]
    late_us = NOW_US + 61_000_000
    [batch] = broker.expired_leases(late_us, late_us, 100)
    assert batch.messages is not None and batch.messages.origin_sequence.tolist() == [1, 4]


def test_expired_messages_that_do_not_match_count_as_filtered() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([1, 2, 1, 2], expires_ms=NOW_US // 1000 - 1), False, NOW_US)
    assert pulled(broker) == {}
    row = broker.group_row((SUBJECT, GROUP))
    assert row is not None and (row.expired, row.filtered, row.lag) == (2, 2, 0)


def test_a_step_is_bounded_by_the_work_of_its_filter() -> None:
    broker = filtered_broker(FakeDisk(), PAID, replace(LIMITS, filter_step_ns=100_000))
    for index in range(40):
        broker.deliver(messages([2] * 10, 1 + 10 * index), False, NOW_US)
    broker.deliver(messages([1], 401), False, NOW_US)
    steps = 0
    while not (found := pulled(broker)):
        assert broker.consuming.is_unfinished((SUBJECT, GROUP)), "it gave up before the match"
        steps += 1
    assert list(found) == [401] and steps > 5
    assert pulled(broker) == {} and not broker.consuming.is_unfinished((SUBJECT, GROUP))


def test_an_expression_with_much_to_look_at_leaves_the_event_loop() -> None:
    wanted = Filter([], compile_expression("price > 3"))
    broker = filtered_broker(FakeDisk(), wanted)
    rows = wanted.rows_at_most(LIMITS.filter_step_ns) + 1
    broker.deliver(messages([1] * rows, 1, ["1"] * (rows - 1) + ["5"]), False, NOW_US)
    with pytest.raises(ReadNeeded) as needed:
        broker.consuming.pull((SUBJECT, GROUP), 100, 1 << 20, NOW_US, NOW_US)
    assert needed.value.plan.kind == SELECTED
    assert list(pulled(broker)) == [rows]
    broker.deliver(messages([1, 1], rows + 1, ["9", "1"]), False, NOW_US)
    few = broker.consuming.pull((SUBJECT, GROUP), 100, 1 << 20, NOW_US, NOW_US)
    assert few is not None and few.batch.sequence.tolist() == [rows + 1]


@pytest.mark.parametrize("where", ["price LIKE '%z_%'", f"price LIKE '%{'x' * 90}z%'", "price > 'z'"])
def test_long_properties_count_by_their_bytes(where: str) -> None:
    """A filter that looks at thousands of short properties in a step looks at few of 16 KiB."""
    wanted = Filter([], compile_expression(" OR ".join([where] * 15)))
    broker = filtered_broker(FakeDisk(), wanted)
    rows = 200
    assert wanted.work_ns(rows, 10 * rows) < wanted.work_ns(rows, 16_384 * rows) / 2
    short, long = np.full(rows, 10, np.uint32), np.full(rows, 16_384, np.uint32)
    of_short, of_long = (wanted.rows_within(3_000_000, lengths) for lengths in (short, long))
    assert of_long < of_short / 2 and wanted.rows_within(1, long) == 1
    assert wanted.rows_within(3_000_000, np.array([16_384] * 100 + [10] * 100, np.uint32)) <= of_long
    broker.deliver(messages([1] * of_short, 1, ["x" * 16_000] * of_short), False, NOW_US)
    with pytest.raises(ReadNeeded) as needed:
        broker.consuming.pull((SUBJECT, GROUP), 100, 1 << 20, NOW_US, NOW_US)
    assert needed.value.plan.kind == SELECTED
    assert pulled(broker) == {}


def test_an_arrival_with_long_properties_takes_its_turn() -> None:
    broker = filtered_broker(FakeDisk(), Filter([], compile_expression(f"price LIKE '%{'x' * 90}z%'")))
    broker.deliver(messages([1], 1, ["x" * 10]), False, NOW_US)
    assert pulled(broker) == {}
    broker.deliver(messages([1], 2, ["x" * 10]), False, NOW_US)
    assert broker.consuming.passes_over((SUBJECT, GROUP)) and committed(broker) == 2
    broker.deliver(messages([1], 3, ["x" * 16_000]), False, NOW_US)
    assert not broker.consuming.passes_over((SUBJECT, GROUP))
    assert pulled(broker) == {} and committed(broker) == 3


def test_an_expensive_filter_looks_at_one_message_at_least() -> None:
    broker = filtered_broker(FakeDisk(), PAID, replace(LIMITS, filter_step_ns=1))
    broker.deliver(messages([2, 2, 1]), False, NOW_US)
    assert [pulled(broker), pulled(broker), list(pulled(broker))] == [{}, {}, [3]]


def test_a_message_that_is_not_acked_does_not_stop_a_group_whose_filter_passes_over_many() -> None:
    """Messages passed over do not count as outstanding: a group may have 10 of those."""
    broker = filtered_broker(FakeDisk(), limits=replace(LIMITS, outstanding_max=10))
    broker.deliver(messages([1, *[2] * 50, 1]), False, NOW_US)
    assert list(pulled(broker, 1)) == [1]
    assert list(pulled(broker)) == [52]
    broker.deliver(messages([1] * 20, 53), False, NOW_US)
    assert len(pulled(broker)) == 8, "ten are outstanding"


def test_ranges_of_acked_positions_stay_bounded_as_well() -> None:
    broker = filtered_broker(FakeDisk(), limits=replace(LIMITS, outstanding_max=10))
    broker.deliver(messages([1, 2] * 40), False, NOW_US)
    total = 0
    while found := pulled(broker, 4):
        total += len(found)
    assert total <= 10
    assert len(broker.state.groups[SUBJECT, GROUP].main.acked) <= 6


def test_an_arrival_that_matches_nothing_is_passed_over_without_a_pull() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([1]), False, NOW_US)
    ack(broker, pulled(broker))
    broker.deliver(messages([2, 3], 2), False, NOW_US)
    assert not broker.consuming.passes_over((SUBJECT, ALL)), "a group without a filter"
    assert broker.consuming.passes_over((SUBJECT, GROUP)) and committed(broker) == 3
    assert not broker.consuming.passes_over((SUBJECT, GROUP)), "it has looked at them"
    broker.deliver(messages([2, 1], 4), False, NOW_US)
    assert not broker.consuming.passes_over((SUBJECT, GROUP)), "one of them matches"
    broker.deliver(messages([2], 6), False, NOW_US)
    assert not broker.consuming.passes_over((SUBJECT, GROUP)), "there are older ones"
    assert list(pulled(broker)) == [5]


def test_a_filter_that_is_taken_away_gives_the_group_all_that_comes() -> None:
    broker = filtered_broker(FakeDisk())
    broker.deliver(messages([2, 1, 2]), False, NOW_US)
    assert list(pulled(broker)) == [2]
    broker.consuming.use_filter((SUBJECT, GROUP), None)
    broker.deliver(messages([2, 3], 4), False, NOW_US)
    assert list(pulled(broker)) == [4, 5]


def test_the_store_does_not_keep_messages_that_were_passed_over(disk: FakeDisk) -> None:
    limits = replace(LIMITS, segment_bytes=4096, retention_ms=1000, cache_bytes_max=4096)
    broker = filtered_broker(disk, limits=limits)
    for index in range(60):
        broker.deliver(messages([2] * 20, 1 + 20 * index), False, NOW_US)
        broker.durability.sync()
    broker.arrivals.window_complete(SERVER, [60_000])
    while pulled(broker) or broker.consuming.is_unfinished((SUBJECT, GROUP)):
        pass
    assert broker.retention.retire(NOW_US + 3_600_000_000)
    assert broker.positions.bounds(SUBJECT)[0] > 0
    broker.abandon()
    disk.crash(Random(3))
    broker = filtered_broker(disk, limits=limits)
    assert pulled(broker) == {} and committed(broker) > 0


def test_a_restart_with_messages_in_their_place_hands_out_nothing_that_was_passed_over(disk: FakeDisk) -> None:
    """After it the log does not say which positions before the place were leased and which were passed over."""
    limits = replace(LIMITS, redelivery_bytes_max=1)
    broker = filtered_broker(disk, limits=limits)
    broker.deliver(messages([1, 2, 2, 1, 2, 1, 2]), False, NOW_US)
    found = pulled(broker)
    broker.nack(SUBJECT, GROUP, np.array([found[6]]), 0, NOW_US, NOW_US)
    broker.durability.sync()
    for _ in range(2):
        broker.abandon()
        disk.crash(Random(1))
        broker = filtered_broker(disk, limits=limits)
        assert [list(pulled(broker, 1)), list(pulled(broker))] == [[1], [4, 6]]
        broker.check_invariants()
        broker.durability.sync()


COLD = replace(LIMITS, segment_bytes=4096, cache_bytes_max=0, read_ahead_bytes=512)


def cold_broker(disk: FakeDisk, batches: list[StoredBatch], wanted: Filter | None = PAID) -> DirectBroker:
    """A broker after a restart, which has none of its messages in memory."""
    broker = filtered_broker(disk, wanted, COLD)
    for batch in batches:
        broker.deliver(batch, False, NOW_US)
    broker.durability.sync()
    broker.close()
    disk.kill()
    return filtered_broker(disk, wanted, COLD)


def all_pulled(broker: DirectBroker, count: int) -> list[int]:
    """Pulls so many at a time, without acks, until nothing comes."""
    found: list[int] = []
    while part := pulled(broker, count):
        assert len(part) <= count
        found += part
    return found


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (PAID, lambda tag, _price: tag == 1),
        (Filter([], compile_expression("price > 3")), lambda _tag, price: price == "5"),
        (Filter([9], None), lambda _tag, _price: False),
    ],
    ids=["a tag", "an expression", "a tag of no message"],
)
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_a_filter_selects_from_a_cold_backlog(wanted: Filter, matches: Callable[[int, str], bool], count: int) -> None:
    disk, random = FakeDisk(), Random(count)
    tags = [[random.choice([1, 2, 2, 2]) for _ in range(random.choice([1, 9, 40]))] for _ in range(60)]
    prices = [[random.choice(["1", "5", ""]) for _ in each] for each in tags]
    firsts = np.cumsum([1, *map(len, tags)]).tolist()
    broker = cold_broker(disk, [messages(*row) for row in zip(tags, firsts[:-1], prices, strict=True)], wanted)
    rows = [
        (tag, price) for one, other in zip(tags, prices, strict=True) for tag, price in zip(one, other, strict=True)
    ]
    expected = [sequence for sequence, row in enumerate(rows, 1) if matches(*row)]
    assert all_pulled(broker, count) == expected
    row = broker.group_row((SUBJECT, GROUP))
    assert row is not None and (row.filtered, row.leased) == (len(rows) - len(expected), len(expected))
    broker.check_invariants()


def test_messages_passed_over_in_a_cold_backlog_stay_so_after_a_crash(disk: FakeDisk) -> None:
    broker = cold_broker(disk, [messages([2] * 20, 1 + 20 * index) for index in range(30)] + [messages([1], 601)])
    found = pulled(broker)
    assert list(found) == [601]
    ack(broker, found)
    broker.durability.sync()
    disk.crash(Random(1))
    broker = filtered_broker(disk, PAID, COLD)
    assert pulled(broker) == {} and committed(broker) == 601


def test_a_new_filter_uses_no_results_of_the_one_before(disk: FakeDisk) -> None:
    broker = cold_broker(disk, [messages([1, 1, 2, 2, 1, 2], 1 + 6 * index) for index in range(10)])
    assert list(pulled(broker, 1)) == [1]
    broker.consuming.use_filter((SUBJECT, GROUP), Filter([2], None))
    assert list(pulled(broker, 5)) == [3, 4, 6, 9, 10]


def test_messages_that_have_expired_or_whose_key_is_not_free_stay_back_in_a_cold_backlog(disk: FakeDisk) -> None:
    keyed = messages([1, 2, 1, 1, 2, 1]).with_columns(order_hash=np.array([5, 5, 5, 0, 0, 6], np.uint64))
    broker = cold_broker(disk, [keyed, messages([1, 2], 7, expires_ms=NOW_US // 1000 - 1), messages([1, 2], 9)])
    found = pulled(broker, 1)
    assert [list(found), all_pulled(broker, 100)] == [[1], [4, 6, 9]]
    row = broker.group_row((SUBJECT, GROUP))
    assert row is not None and (row.expired, row.filtered) == (1, 4)
    ack(broker, found)
    assert list(pulled(broker)) == [3]


def record_places(disk: FakeDisk, sequences: list[int]) -> list[tuple[str, int]]:
    """The file, and the last byte of the body, of the messages with these sequences."""
    found: dict[int, tuple[str, int]] = {}
    for path in disk.files("/data/broker/store/"):
        data = disk.content(path)
        position = FILE_HEADER_BYTES
        while (end := _end_of(data, position)) is not None:
            batch = decode_record(data[position:end], position)
            assert isinstance(batch, StoredBatch)
            header = decode_header(data, position, position)
            last = header.blob_offset + header.blob_bytes - 1
            found |= dict.fromkeys(batch.sequence.tolist(), (path, last))
            position = end
    return [found[sequence] for sequence in sequences]


def _end_of(data: bytes, position: int) -> int | None:
    try:
        return decode_header(data, position, position).end
    except BadRecordError:
        return None


def test_damage_costs_a_group_the_messages_that_it_wanted_and_no_others(disk: FakeDisk) -> None:
    """A body of a record of which it wants nothing is not looked at."""
    tags = [[1, 2, 1], [2, 2, 2], [1, 2, 1], [1, 1, 1], [2, 1, 2]]
    cold_broker(disk, [messages(row, 1 + 3 * index) for index, row in enumerate(tags)]).close()
    for path, offset in record_places(disk, [4, 7]):
        disk.flip_bit(path, offset)
    disk.kill()
    broker = filtered_broker(disk, PAID, COLD)
    assert all_pulled(broker, 2) == [1, 3, 10, 11, 12, 14]
    status = broker.status()
    assert status["damaged_messages"] == 3 and len(broker.state.damages.texts) == 1
    assert "blob checksum" in broker.state.damages.texts[0] and "/data/broker/store/" in broker.state.damages.texts[0]
    assert [row.filtered for row in [broker.group_row((SUBJECT, GROUP))] if row] == [6]
