"""Searches by id and key over the segments of a store, with indexes that are there, missing, damaged or in memory."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import msgpack
import numpy as np
import pytest

from delayserver.broker.actions.find_plan import StoredQuery
from delayserver.broker.broker_limits import DAY_MS
from store.errors import DiskError, UnreadableError
from store.records.batches import U32, U64, StoredBatch
from store.records.id_hash import hash_id
from tests.delayserver.broker.brokers import GROUP, LIMITS, NOW_US, SERVER, SUBJECT, DirectBroker, drain, open_broker
from tests.fakes.disk import FakeDisk

INDEXES = "/data/broker/index/"


def batch_of(first: int, ids: list[str], keys: list[str] | None = None, **columns: int) -> StoredBatch:
    """Messages with these ids ("" for none) and keys, with sequences from `first` on."""
    properties = [msgpack.packb({"keys": text, "n": "1"}) if text else b"" for text in keys or [""] * len(ids)]
    names = [text.encode() for text in ids]
    return StoredBatch.filled(
        len(ids),
        **{"subject": SUBJECT, "server_id": SERVER, "window_ms": 60_000, **columns},
        sequence=np.arange(first, first + len(ids)),
        dispatched_us=np.arange(first, first + len(ids)),
        ids=b"".join(names),
        ids_length=np.array([len(name) for name in names], np.uint32),
        properties=b"".join(properties),
        properties_length=np.array([len(one) for one in properties], np.uint32),
        bodies=b"".join([b"%05d" % number for number in range(first, first + len(ids))]),
        bodies_length=5,
    )


def filled(disk: FakeDisk, count: int = 400) -> DirectBroker:
    """Messages 1 to `count`, ten a record, over several segments: id `m-N`, none for every seventh; keys `k-(N mod 50)`
    and `all`."""
    broker = open_broker(disk)
    for first in range(1, count + 1, 10):
        numbers = range(first, first + 10)
        broker.deliver(
            batch_of(first, ["" if n % 7 == 0 else f"m-{n}" for n in numbers], [f"k-{n % 50} all" for n in numbers]),
            False,
            NOW_US,
        )
    broker.durability.sync()
    return broker


def find(broker: DirectBroker, *, messages_max: int = 1000, **query: object) -> list[int]:
    """The sequences of all messages that a search finds, over all its pages."""
    found: list[int] = []
    after = (-1, 0)
    while True:
        plan = broker.indexes.find_plan(StoredQuery(**query, after=after, messages_max=messages_max))  # type: ignore[arg-type]
        result = plan.run()
        broker.indexes.finish_find(result)
        batch = result.messages()
        assert len(batch) <= messages_max
        assert [bytes(batch.slice(n, n + 1).bodies) for n in range(len(batch))] == [
            b"%05d" % number for number in batch.sequence.tolist()
        ]
        found += batch.sequence.tolist()
        if result.next is None:
            return found
        assert result.next > after, "a search goes forward"
        after = result.next


def make_indexes(broker: DirectBroker) -> int:
    count = 0
    while (plan := broker.indexes.index_plan()) is not None:
        plan.run()
        broker.indexes.finish_index(plan.segment.base)
        count += 1
    return count


@pytest.mark.parametrize("indexed", [True, False])
def test_messages_are_found_by_id_and_by_key_in_every_segment(indexed: bool, disk: FakeDisk) -> None:
    broker = filled(disk)
    segments = len(disk.files("/data/broker/store/"))
    assert segments > 4
    if indexed:
        assert make_indexes(broker) == segments - 1, "the segment that grows has none"
    for number in (1, 2, 8, 200, 400):
        assert find(broker, message_id=b"m-%d" % number) == [number]
    assert find(broker, message_id=b"m-7") == [] == find(broker, message_id=b"m-401")
    assert find(broker, key=b"k-3") == list(range(3, 400, 50))
    assert find(broker, key=b"nothing") == []
    assert broker.indexes.index_plan() is None, "a search makes the indexes that it misses"
    assert broker.state.damages.texts == []


@pytest.mark.parametrize("messages_max", [1, 7, 1000])
def test_pages_hold_every_message_once(messages_max: int) -> None:
    broker = filled(FakeDisk())
    assert find(broker, key=b"all", messages_max=messages_max) == list(range(1, 401))


def test_a_page_ends_at_its_bytes_and_holds_one_message_at_least() -> None:
    broker = filled(FakeDisk())
    result = broker.indexes.find_plan(StoredQuery(key=b"k-3", messages_max=1000, bytes_max=1)).run()
    assert len(result.messages()) == 1 and result.next is not None


def test_a_page_ends_at_its_bytes_within_a_record_and_counts_properties_too() -> None:
    broker = filled(FakeDisk())
    found: list[int] = []
    after = (-1, 0)
    while True:
        result = broker.indexes.find_plan(StoredQuery(key=b"all", after=after, messages_max=1000, bytes_max=400)).run()
        batch = result.messages()
        assert len(batch) <= 4 and len(batch.bodies) + len(batch.properties) + 64 * len(batch) <= 400
        found += batch.sequence.tolist()
        if result.next is None:
            break
        after = result.next
    assert found == list(range(1, 401))


@pytest.mark.parametrize("name", [b"\xa4keys", b"\xd9\x04keys", b"\xda\x00\x04keys", b"\xdb\x00\x00\x00\x04keys"])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_key_is_found_however_a_client_packs_the_name_of_the_property(name: bytes, indexed: bool) -> None:
    broker = open_broker(FakeDisk())
    properties = b"\x81" + name + b"\xa1k"
    for first in range(1, 400, 10):
        batch = batch_of(first, [""] * 10).with_columns(properties_length=np.full(10, len(properties), np.uint32))
        broker.deliver(replace(batch, properties=memoryview(10 * properties)), False, NOW_US)
    if indexed:
        assert make_indexes(broker) > 2
    assert find(broker, key=b"k") == list(range(1, 401))


def test_a_message_without_an_id_is_found_by_its_derived_id() -> None:
    broker = filled(FakeDisk())
    for number in (7, 147, 399 // 7 * 7):
        assert find(broker, message_id=b"%012x-%012x" % (SERVER, number), derived=(SERVER, number)) == [number]
    assert find(broker, message_id=b"x", derived=(SERVER, 8)) == [], "number 8 has an id of its own"
    assert find(broker, message_id=b"x", derived=(SERVER + 1, 7)) == []


def test_subject_and_time_of_dispatch_narrow_a_search() -> None:
    broker = filled(FakeDisk())
    broker.deliver(batch_of(1001, ["m-1"], ["all"], subject=SUBJECT + 1), False, NOW_US)
    assert find(broker, message_id=b"m-1") == [1, 1001]
    assert find(broker, message_id=b"m-1", subject=SUBJECT + 1) == [1001]
    assert find(broker, key=b"all", from_us=395, to_us=399) == [395, 396, 397, 398]


def test_messages_with_one_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(blob: bytes, lengths: U32) -> U64:
        return np.where(lengths != 0, np.uint64(hash_id(b"m-1")), np.uint64(0))

    monkeypatch.setattr("delayserver.broker.actions.indexing.hash_ids", same)
    broker = filled(FakeDisk(), 60)
    assert find(broker, message_id=b"m-1") == [1]
    monkeypatch.setattr("delayserver.broker.actions.indexing.hash_id", lambda _: hash_id(b"m-1"))
    assert find(broker, message_id=b"m-33") == [33]


def test_a_search_finds_messages_stored_after_the_search_before() -> None:
    broker = filled(FakeDisk(), 30)
    for number in range(1001, 1101):
        broker.deliver(batch_of(number, [f"m-{number}"]), False, NOW_US)
        assert find(broker, message_id=b"m-%d" % number) == [number]
    assert find(broker, message_id=b"m-1002") == [1002]


def test_redeliveries_of_a_message_are_not_found_beside_it() -> None:
    broker = filled(FakeDisk(), 10)
    broker.deliver(batch_of(500, ["m-1"], target_group=GROUP, origin_sequence=1, redelivery=1), False, NOW_US)
    assert find(broker, message_id=b"m-1") == [1]


def test_a_damaged_index_is_named_and_made_again(disk: FakeDisk) -> None:
    broker = filled(disk)
    make_indexes(broker)
    path = sorted(disk.files(INDEXES))[0]
    for offset in (8, 100, disk.size(path) - 90):
        disk.flip_bit(path, offset)
    assert find(broker, message_id=b"m-2") == [2]
    assert path in broker.state.damages.texts[-1] and "made again" in broker.state.damages.texts[-1]
    told = len(broker.state.damages.texts)
    assert find(broker, message_id=b"m-2") == [2] and len(broker.state.damages.texts) == told


def test_damage_of_the_store_hides_only_its_record(disk: FakeDisk) -> None:
    broker = filled(disk)
    path = sorted(disk.files("/data/broker/store/"))[0]
    disk.flip_bit(path, 400)
    assert set(range(1, 401)) - set(find(broker, key=b"all")) == set(range(1, 11))


@pytest.mark.parametrize("offset", [3, 20, 41])
def test_messages_of_segments_with_a_damaged_file_header_are_found(offset: int, disk: FakeDisk) -> None:
    broker = filled(disk)
    broker.close()
    first, *_, tail = sorted(disk.files("/data/broker/store/"))
    for path in (first, tail):
        disk.flip_bit(path, offset)
    broker = open_broker(disk)
    assert find(broker, key=b"all") == list(range(1, 401))
    assert find(broker, message_id=b"m-2") == [2]
    assert make_indexes(broker) == 0, "the search has made them"


def test_records_that_the_disk_cannot_read_for_a_while_are_found_afterwards(disk: FakeDisk) -> None:
    broker = filled(disk)
    first, *_, tail = sorted(disk.files("/data/broker/store/"))
    disk.unreadable |= {first: [(400, 401)], tail: [(400, 401)]}
    plan = broker.indexes.index_plan()
    assert plan is not None
    with pytest.raises(UnreadableError):
        plan.run()
    everything = set(range(1, 401))
    hidden = everything - set(find(broker, key=b"all"))
    assert set(range(1, 11)) < hidden and len(hidden) < 40, "all that the disk can read is found"
    assert broker.indexes.index_plan() == plan, "an index without these messages would hide them for ever"
    disk.unreadable.clear()
    assert find(broker, key=b"all") == sorted(everything)
    assert broker.indexes.index_plan() is None


def test_a_search_that_the_disk_refuses_loses_no_message_of_the_segment_that_grows(disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, segment_bytes=64 << 20))
    for first in range(1, 90_000, 100):
        broker.deliver(batch_of(first, [f"m-{n}" for n in range(first, first + 100)]), False, NOW_US)
    broker.durability.sync()
    reads = 0

    def third_read(operation: str, path: str) -> int:
        nonlocal reads
        reads += operation == "pread"
        return errno.EINVAL if reads == 3 else 0

    disk.refuse = third_read
    with pytest.raises(DiskError):
        find(broker, message_id=b"m-2")
    disk.refuse = None
    assert find(broker, message_id=b"m-2") == [2] and find(broker, message_id=b"m-89999") == [89_999]


def test_indexes_outlive_a_restart_and_go_with_their_segments(disk: FakeDisk) -> None:
    broker = filled(disk)
    made = make_indexes(broker)
    broker.close()
    broker = open_broker(disk)
    assert broker.indexes.index_plan() is None and len(disk.files(INDEXES)) == made
    broker.arrivals.window_complete(SERVER, [60_000])
    drain(broker)
    broker.durability.sync()
    removed = broker.retention.retire(NOW_US + 2 * DAY_MS * 1000)
    assert len(removed) == made and disk.files(INDEXES) == []
    assert find(broker, message_id=b"m-2") == []


def test_an_index_whose_segment_goes_meanwhile_goes_as_well(disk: FakeDisk) -> None:
    broker = filled(disk)
    plan = broker.indexes.index_plan()
    assert plan is not None
    broker.arrivals.window_complete(SERVER, [60_000])
    drain(broker)
    broker.durability.sync()
    search = broker.indexes.find_plan(StoredQuery(key=b"all", messages_max=1000))
    assert broker.retention.retire(NOW_US + 2 * DAY_MS * 1000)
    with pytest.raises(FileNotFoundError):
        plan.run()
    assert len(search.run().messages()) < 400
    disk.make_directory("/data/broker/index")
    disk.open(plan.path, create=True).close()
    broker.indexes.finish_index(plan.segment.base)
    assert disk.files(INDEXES) == []


def test_an_index_left_behind_by_a_crash_is_removed_at_the_start(disk: FakeDisk) -> None:
    broker = filled(disk, 10)
    broker.close()
    disk.make_directory(INDEXES.rstrip("/"))
    disk.open(f"{INDEXES}{99:020d}.index", create=True).close()
    open_broker(disk)
    assert disk.files(INDEXES) == []


def test_a_full_disk_keeps_no_message_from_being_found(disk: FakeDisk) -> None:
    broker = filled(disk)
    disk.capacity_bytes = 0
    assert find(broker, message_id=b"m-2") == [2]
    assert broker.indexes.index_plan() is not None


def beyond_the_prepared_segment(broker: DirectBroker) -> int:
    """Messages from sequence 9000 on until the store goes on in a prepared segment, which has no name before the next
    sync; how many."""
    log = broker.state.files.logs[0]
    while (made := log.preparation()) is None:
        broker.deliver(batch_of(5000 + log.end, [f"x-{log.end}"]), False, NOW_US)
        broker.durability.sync()
    made.make()
    log.adopt_prepared(made)
    before, sent = len(log.segments()), 0
    while len(log.segments()) == before:
        broker.deliver(batch_of(9000 + sent, ["last"]), False, NOW_US)
        sent += 1
    return sent


def test_messages_are_found_in_a_segment_that_grows_again_after_a_crash(disk: FakeDisk) -> None:
    broker = filled(disk, 40)
    beyond_the_prepared_segment(broker)
    segments = len(broker.state.files.logs[0].segments())
    assert find(broker, message_id=b"m-2") == [2] and disk.files(INDEXES), "the segment before has an index now"
    disk.crash(Random(5))
    broker = open_broker(disk)
    assert len(broker.state.files.logs[0].segments()) == segments - 1, "the crash took the new segment"
    first = last = 20_000
    while len(broker.state.files.logs[0].segments()) < segments:
        last += 1
        broker.deliver(batch_of(last, [f"y-{last}"]), False, NOW_US)
        broker.durability.sync()
    for number in range(first + 1, last + 1):
        assert find(broker, message_id=b"y-%d" % number) == [number]


def test_a_segment_that_gets_its_name_during_a_search_is_searched(disk: FakeDisk) -> None:
    broker = filled(disk, 40)
    sent = beyond_the_prepared_segment(broker)
    plan = broker.indexes.find_plan(StoredQuery(message_id=b"last", messages_max=1000))
    assert plan.segments[-1].path != plan.segments[-1].name, "the new segment has the name of a prepared one"
    broker.durability.sync()
    assert plan.segments[-1].path not in disk.files("/data/broker/store/")
    assert plan.run().messages().sequence.tolist() == list(range(9000, 9000 + sent))
