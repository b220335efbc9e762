"""The message_log over segments, restarts, crashes and damage."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.errors import CorruptionError, DiskFullError, FormatError, StoreError, SyncFailedError
from store.logs.message_log import WARM_STEP_BYTES, WARM_STEP_BYTES_MAX, MessageLog
from store.logs.message_log_opening import segment_path
from store.records.batches import CancelBatch, MessageBatch
from store.records.segment import FILE_HEADER_BYTES, FILE_MESSAGE_LOG, FILE_STORE, FileHeader, Segment
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash
from tests.store.message_logs import DIRECTORY, SEGMENT_BYTES, batch, fill, lose_power, opened, sequences


def test_the_message_log_rolls_at_the_segment_boundary_and_offsets_go_on() -> None:
    log = opened(FakeDisk())
    starts = fill(log, 30)
    segments = log.segments()
    assert len(segments) > 2
    assert [base for base, _, _ in segments[1:]] == [end for _, end, _ in segments[:-1]]
    assert segments[1][2] == f"{DIRECTORY}/{segments[1][0]:020d}.log"
    assert starts == sorted(set(starts))
    assert all(end - base >= SEGMENT_BYTES for base, end, _ in segments[:-1])
    assert sequences(log) == list(range(1, 31))


def test_reading_goes_on_from_any_entry_and_in_bounded_pieces() -> None:
    log = opened(FakeDisk())
    starts = fill(log, 30)
    assert sequences(log, starts[17]) == list(range(18, 31))
    offset, found = log.first, []
    while offset < log.synced:
        entries = log.read(offset, log.synced, 1500)
        assert 1 <= len(entries) <= 2
        found += [int(entry.batch.sequence[0]) for entry in entries if isinstance(entry.batch, MessageBatch)]
        offset = entries[-1].end
    assert found == list(range(1, 31))
    assert log.read(log.synced, log.synced, 1500) == []
    assert [entry.start for entry in log.read(starts[3], starts[5], 1 << 20)] == starts[3:5]


def test_a_group_of_several_kinds_is_read_in_its_order() -> None:
    log = opened(FakeDisk())
    group = [batch(1), CancelBatch.filled(2, sequence=np.array([1, 1]), due_ms=5), batch(2)]
    entries = log.append(group)
    log.sync()
    read = log.read(log.first, log.synced, 1 << 20)
    assert [(entry.start, entry.end, type(entry.batch)) for entry in read] == [
        (entry.start, entry.end, type(entry.batch)) for entry in entries
    ]


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_message_log_reopens_as_it_was(from_checkpoint: bool, disk: FakeDisk) -> None:
    log = opened(disk)
    starts = fill(log, 30)
    end = log.end
    log.close()
    disk.kill()
    log = opened(disk, valid_to=starts[20] if from_checkpoint else 0)
    assert (log.end, log.synced, log.damages) == (end, end, [])
    assert sequences(log) == list(range(1, 31))
    fill(log, 5, first=31)
    assert sequences(log) == list(range(1, 36))


def test_a_torn_end_is_cut_and_an_unsynced_group_is_whole_or_gone() -> None:
    for seed in range(30):
        fs = FakeDisk()
        log = opened(fs)
        fill(log, 8)
        log.append([batch(9, 6000)])
        fs.crash(Random(seed))
        log = opened(fs)
        assert log.damages == []
        assert sequences(log) in (list(range(1, 9)), list(range(1, 10)))


def test_damage_in_a_sealed_segment_is_corruption_and_is_not_cut_off() -> None:
    for place in ("first", "middle", "last"):
        fs = FakeDisk()
        log = opened(fs)
        starts = fill(log, 30)
        base, end, path = log.segments()[0]
        inside = [start for start in starts if start < end]
        offset = {"first": inside[0], "middle": inside[4], "last": inside[-1]}[place]
        fs.flip_bit(path, offset - base + 3)
        size = fs.size(path)
        fs.kill()
        log = opened(fs)
        assert fs.size(path) == size
        assert [(found.path, found.damage.start) for found in log.damages] == [(path, offset - base)]
        lost = starts.index(offset) + 1
        readable, at = [], log.first
        while at < log.synced:
            try:
                entries = log.read(at, log.synced, 1 << 20)
                readable += [int(entry.batch.sequence[0]) for entry in entries if isinstance(entry.batch, MessageBatch)]
                at = entries[-1].end
            except CorruptionError as error:
                assert error.path == path
                at = log.skip_damage(at)
        assert readable == [sequence for sequence in range(1, 31) if sequence != lost]


def test_a_sealed_segment_that_is_cut_is_corruption(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 30)
    base, end, path = log.segments()[1]
    disk.open(path).truncate(end - base - 100)
    disk.kill()
    for valid_to in (0, log.end):
        again = opened(disk, valid_to=valid_to)
        assert {found.path for found in again.damages} == {path}
        assert max(found.damage.stop for found in again.damages) == end - base
        assert again.end == log.end


def test_a_missing_segment_is_reported_and_the_others_are_read(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 40)
    (_, first_end, first_path), (_, missing_end, missing) = log.segments()[:2]
    disk.remove(missing)
    disk.kill()
    log = opened(disk)
    assert [found.path for found in log.damages] == [first_path]
    assert log.damages[0].damage.stop - log.damages[0].damage.start == missing_end - first_end
    assert str(log.damages[0]).startswith(f"{first_path}: corrupt at offset {log.damages[0].damage.start}: ")
    entries = log.read(log.first, log.synced, 1 << 20)
    assert entries[-1].end == first_end
    with pytest.raises(CorruptionError, match="goes on at offset"):
        log.read(first_end, log.synced, 1 << 20)
    assert log.skip_damage(first_end) == missing_end
    assert sequences(log, missing_end)[-1] == 40


def test_segments_missing_before_the_checkpoint_are_reported(disk: FakeDisk) -> None:
    log = opened(disk)
    starts = fill(log, 30)
    path, second = log.segments()[0][2], log.segments()[1][0]
    disk.remove(path)
    disk.kill()
    assert opened(disk, valid_to=0).damages == []  # nothing says that they were not retired
    disk.kill()
    log = opened(disk, valid_to=starts[1])
    assert f"to {second} are missing" in log.damages[0].damage.detail


def test_a_log_that_lost_its_end_goes_on_behind_the_checkpoint_and_uses_no_offset_twice(disk: FakeDisk) -> None:
    log = opened(disk)
    starts = fill(log, 5)
    valid_to = log.end
    path = log.segments()[0][2]
    disk.open(path).truncate(starts[2] + 10)
    disk.kill()
    log = opened(disk, valid_to=valid_to)
    assert [found.path for found in log.damages] == [path]
    assert log.append([batch(9)])[0].start >= valid_to
    log.sync()
    disk.kill()
    log = opened(disk, valid_to=valid_to)
    assert sequences(log, valid_to) == [9]
    disk.remove(path)
    for other in disk.files(DIRECTORY):
        disk.remove(other)
    disk.kill()
    log = opened(disk, valid_to=valid_to)
    assert log.damages and log.end >= valid_to


@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize("offset", [3, 20, 41, 50])
def test_the_records_behind_a_corrupt_file_header_are_read_all_the_same(index: int, offset: int) -> None:
    fs = FakeDisk()
    log = opened(fs)
    fill(log, 30)
    _, _, path = log.segments()[index]
    fs.flip_bit(path, offset)
    for number in range(31, 33):
        fs.kill()
        log = opened(fs)
        assert [(found.path, found.damage.start, found.damage.stop) for found in log.damages] == [(path, 0, 64)]
        assert sequences(log) == list(range(1, number))
        log.append([batch(number)])
        log.sync()


@pytest.mark.parametrize("index", [0, 1])
def test_a_segment_that_is_cut_within_its_file_header_takes_only_its_own_records(index: int, disk: FakeDisk) -> None:
    log = opened(disk)
    starts = fill(log, 30)
    base, _, path = log.segments()[index]
    following = log.segments()[index + 1][0]
    disk.open(path).truncate(20)
    disk.kill()
    log = opened(disk)
    assert path in {found.path for found in log.damages}
    log.append([batch(31)])
    log.sync()
    assert sequences(log, following) == [
        number for number in range(1, 32) if number == 31 or starts[number - 1] > following
    ]
    assert log.skip_damage(base) == following


def test_a_renamed_segment_and_one_of_another_server_or_kind_are_refused(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 30)
    paths = [path for _, _, path in log.segments()]
    with pytest.raises(FormatError, match="belongs to server"):
        MessageLog.open(disk, DIRECTORY, 8, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(FormatError, match="file kind"):
        MessageLog.open(disk, DIRECTORY, 7, segment_bytes=SEGMENT_BYTES, kind=FILE_STORE)
    disk.replace(paths[1], paths[1].replace("0.log", "8.log").replace("4.log", "8.log").replace("2.log", "8.log"))
    with pytest.raises(FormatError, match="give it its name back"):
        opened(disk)


def test_files_of_other_names_are_left_alone(disk: FakeDisk) -> None:
    opened(disk).close()
    disk.open(f"{DIRECTORY}/notes.log", create=True).pwrite(0, [b"mine"])
    disk.kill()
    assert opened(disk).damages == []
    assert disk.content(f"{DIRECTORY}/notes.log") == b"mine"


def test_retiring_removes_segments_below_an_offset_and_never_the_tail(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 30)
    segments = log.segments()
    assert log.retire(segments[1][1] - 1) == [segments[0][2]]
    assert log.first == segments[1][0] + FILE_HEADER_BYTES
    log.retire(1 << 60)
    assert [path for _, _, path in log.segments()] == [segments[-1][2]] == disk.files(DIRECTORY)
    fill(log, 1, first=31)
    assert sequences(log)[-1] == 31


def test_an_interrupted_retirement_leaves_no_gap() -> None:
    for point in range(1, 8):
        for seed in range(8):
            fs = FakeDisk()
            log = opened(fs)
            fill(log, 60)
            fs.crash_after(point)
            try:
                log.retire(1 << 60)
            except SimulatedCrash:
                pass
            fs.crash(Random(seed))
            log = opened(fs)
            assert log.damages == [] and sequences(log)[-1] == 60


def test_a_full_disk_refuses_the_group_and_leaves_the_log_usable() -> None:
    fs = FakeDisk(capacity_bytes=5 * PAGE)
    log = opened(fs)
    accepted = []
    for sequence in range(1, 60):
        try:
            log.append([batch(sequence, 300), batch(sequence + 1000, 1500)])
        except DiskFullError:
            break
        log.sync()
        accepted += [sequence, sequence + 1000]
    assert accepted and sequences(log) == accepted
    with pytest.raises(DiskFullError):
        log.append([batch(998), batch(999, 20_000)])
    fs.capacity_bytes = None
    log.append([batch(500)])
    log.sync()
    assert sequences(log) == [*accepted, 500]
    fs.crash(Random(1))
    assert sequences(opened(fs)) == [*accepted, 500]


def test_a_failed_sync_is_final(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 3)
    synced = log.synced
    log.append([batch(4)])
    disk.fail_next_sync("message_log")
    with pytest.raises(SyncFailedError):
        log.sync()
    with pytest.raises(SyncFailedError):
        log.sync()
    with pytest.raises(SyncFailedError):
        log.append([batch(5)])
    assert log.synced == synced and sequences(log) == [1, 2, 3]


def test_an_interrupted_roll_is_taken_up_again() -> None:
    for point in range(1, 12):
        for seed in range(6):
            fs = FakeDisk()
            log = opened(fs)
            done = 0
            while log.end < SEGMENT_BYTES:
                done += 1
                fill(log, 1, first=done)
            fs.crash_after(point)
            try:
                fill(log, 1, first=done + 1)
                done += 1
                fill(log, 1, first=done + 1)
                done += 1
            except SimulatedCrash:
                pass
            lose_power(fs, seed, done)


def test_warming_writes_only_ahead_and_stops_at_the_allocated_end(disk: FakeDisk) -> None:
    log = opened(disk, segment_bytes=3 * WARM_STEP_BYTES_MAX)
    fill(log, 5)
    stops = []
    while step := log.warm_ahead(1 << 30):
        stops.append(step.stop)
    first = -(-log.end // PAGE) * PAGE
    assert stops == [first + WARM_STEP_BYTES_MAX, first + 2 * WARM_STEP_BYTES_MAX, 3 * WARM_STEP_BYTES_MAX]
    assert log.warm_ahead(0) is None
    fill(log, 5, first=6)
    assert sequences(log) == list(range(1, 11))
    disk.kill()
    assert sequences(opened(disk)) == list(range(1, 11))


def test_steps_of_zeros_are_small_once_half_of_them_are_ahead() -> None:
    log = opened(FakeDisk(), segment_bytes=16 * WARM_STEP_BYTES_MAX)
    fill(log, 5)
    first = -(-log.end // PAGE) * PAGE
    stops = [first]
    while step := log.warm_ahead(4 * WARM_STEP_BYTES_MAX):
        stops.append(step.stop)
    lengths = [stop - start for start, stop in itertools.pairwise(stops)]
    assert lengths[:2] == [WARM_STEP_BYTES_MAX] * 2
    assert set(lengths[2:]) == {WARM_STEP_BYTES}


def test_an_unfinished_file_at_the_end_is_made_anew(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 3)
    end = log.end
    disk.open(f"{DIRECTORY}/{end:020d}.log", create=True).allocate(SEGMENT_BYTES)
    disk.kill()
    log = opened(disk)
    assert log.damages == [] and log.end == end
    header = FileHeader(FILE_MESSAGE_LOG, 7, 0).encode()
    assert disk.content(log.segments()[0][2])[:64] == header


class MessageLogMachine(RuleBasedStateMachine):
    """Append, sync, roll, retire, fill up, kill and crash at random: what was synced is read back exactly."""

    @initialize(seed=st.integers(0, 1 << 32), capacity=st.sampled_from([None, 20 * PAGE]))
    def begin(self, seed: int, capacity: int | None) -> None:
        self.random = Random(seed)
        self.fs = FakeDisk(capacity)
        self.log = opened(self.fs)
        self.synced: list[tuple[int, int]] = []  # logical start and sequence
        self.waiting: list[tuple[int, int]] = []
        self.attempted: set[int] = set()
        self.sequence = 0

    @rule(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        group = []
        for size in sizes:
            self.sequence += 1
            group.append(batch(self.sequence, size))
        try:
            entries = self.log.append(group)
        except DiskFullError:
            return
        if self.waiting and self.log.synced > self.waiting[-1][0]:  # it rolled, and rolling syncs
            self.acknowledge()
        self.waiting += [(entry.start, int(part.sequence[0])) for entry, part in zip(entries, group, strict=True)]
        self.attempted.update(int(part.sequence[0]) for part in group)

    @rule(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=4))
    def append_durably(self, sizes: list[int]) -> None:
        group = [batch(self.sequence + 1 + place, size) for place, size in enumerate(sizes)]
        self.sequence += len(sizes)
        self.attempted.update(int(part.sequence[0]) for part in group)
        try:
            entries = self.log.append_durably(group)
        except DiskFullError:
            self.attempted.difference_update(int(part.sequence[0]) for part in group)
            if self.waiting and self.log.synced > self.waiting[-1][0]:
                self.acknowledge()
            return
        self.waiting += [(entry.start, int(part.sequence[0])) for entry, part in zip(entries, group, strict=True)]
        self.acknowledge()

    def acknowledge(self) -> None:
        self.synced += self.waiting
        self.waiting = []

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.log.end
        self.acknowledge()

    @rule(use=st.booleans())
    def warm(self, use: bool) -> None:
        step = self.log.warm_ahead(4 * PAGE)
        if step is not None and use:
            self.log.sync_warm(step)
            self.acknowledge()  # whatever was in the file is durable with them
            self.log.use_warm(step)

    @rule(zero_bytes=st.sampled_from([0, PAGE]))
    def prepare(self, zero_bytes: int) -> None:
        plan = self.log.preparation(zero_bytes)
        if plan is None:
            return
        try:
            plan.make()
        except DiskFullError:
            self.log.give_up_preparing()
        else:
            self.log.adopt_prepared(plan)

    @precondition(lambda self: len(self.synced) > 2)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        below = data.draw(st.sampled_from([start for start, _ in self.synced]))
        self.log.retire(below)
        self.synced = [(start, sequence) for start, sequence in self.synced if start >= self.log.first]

    @rule(checkpoint=st.booleans(), power=st.booleans(), fails=st.booleans())
    def crash(self, checkpoint: bool, power: bool, fails: bool) -> None:
        if fails:
            self.fs.fail_next_sync("message_log")
            try:
                self.log.append([batch(self.sequence + 1, 100)])
                self.attempted.add(self.sequence + 1)
                self.sequence += 1
                self.log.sync()
            except StoreError:
                pass
            self.fs.no_more_faults()
        self.restart(checkpoint, power)

    @rule(operations=st.integers(1, 12), checkpoint=st.booleans(), through=st.booleans())
    def crash_in_the_middle(self, operations: int, checkpoint: bool, through: bool) -> None:
        self.fs.crash_after(operations)
        try:
            for _ in range(5):
                self.prepare(0)
                if through:
                    self.warm(True)
                    self.append_durably([300])
                    continue
                self.append([3000])
                self.sync()
        except SimulatedCrash:
            self.attempted.add(self.sequence)
        self.restart(checkpoint, power=True)

    def restart(self, checkpoint: bool, power: bool) -> None:
        if power:
            self.fs.crash(self.random)
        else:
            self.fs.kill()
        valid_to = self.synced[-1][0] if checkpoint and self.synced else 0
        capacity, self.fs.capacity_bytes = self.fs.capacity_bytes, None
        self.log = opened(self.fs, valid_to=valid_to)
        self.fs.capacity_bytes = capacity
        assert self.log.damages == []
        entries = self.log.read(self.log.first, self.log.synced, 1 << 40)
        found = [
            (entry.start, int(entry.batch.sequence[0])) for entry in entries if isinstance(entry.batch, MessageBatch)
        ]
        assert set(self.synced) <= set(found)
        assert {sequence for _, sequence in found} <= self.attempted
        self.synced, self.waiting = found, []

    @invariant()
    def what_was_synced_is_read_back_exactly(self) -> None:
        if hasattr(self, "log"):
            entries = self.log.read(self.log.first, self.log.end, 1 << 40)
            found = [
                (entry.start, int(entry.batch.sequence[0]))
                for entry in entries
                if isinstance(entry.batch, MessageBatch)
            ]
            assert found == [*self.synced, *self.waiting]
            assert [sequence for _, sequence in found] == sorted({sequence for _, sequence in found})


MessageLogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_random_histories = MessageLogMachine.TestCase


@pytest.mark.parametrize("seed", range(8))
def test_a_tail_whose_name_was_not_durable_at_a_kill_keeps_its_synced_records(seed: int, disk: FakeDisk) -> None:
    log = opened(disk)
    log.append([batch(1)])
    log.sync()
    end = log.end
    log.close()
    first = disk.open(segment_path(DIRECTORY, 0))
    first.truncate(end)
    first.datasync()
    Segment.create(disk, segment_path(DIRECTORY, end), FileHeader(FILE_MESSAGE_LOG, 7, end), listed=False)
    disk.kill()
    log = opened(disk)
    log.append([batch(2)])
    log.sync()
    disk.crash(Random(seed))
    again = opened(disk)
    found = [entry.batch for entry in again.read(again.first, again.end, 1 << 20)]
    assert [part.sequence.tolist() for part in found if isinstance(part, MessageBatch)] == [[1], [2]]
