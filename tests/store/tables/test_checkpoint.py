"""The checkpoint comes back as it was written, or says that it can't."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import CorruptionError, FormatError
from store.logs.due_windows import TIME_MS_MAX
from store.tables import checkpoint as checkpoints
from store.tables.checkpoint import (
    OUTCOMES,
    Checkpoint,
    CoarseDays,
    ColumnTable,
    DispatchFiles,
    LostFiles,
    PendingSubjects,
    ScheduleFiles,
)
from tests.fakes.disk import SimulatedCrash, new_disk

PATH = "/d/checkpoint"


def sample(replayed: int = 99) -> Checkpoint:
    outcomes = np.zeros((3, OUTCOMES), np.int64)
    outcomes[1, 4], outcomes[2, 8] = 5, 7
    return Checkpoint(
        7,
        replay_offset=1234,
        replayed_sequence=replayed,
        schedule=ScheduleFiles.filled(
            2, start_ms=np.array([60_000, 120_000]), source=1, end=np.array([64, 640]), rows=3
        ),
        dispatch=DispatchFiles.filled(3, start_ms=np.arange(3), outcomes=outcomes, internal_rows=2),
        coarse_days=CoarseDays.filled(1, start_ms=86_400_000, drain_offset=640),
        totals={"accepted": 1 << 60, "delivered": 3},
        clean=True,
        written_us=1_700_000_000_000_000,
    )


def same(left: Checkpoint, right: Checkpoint) -> bool:
    for name in Checkpoint.__slots__:
        a, b = getattr(left, name), getattr(right, name)
        if isinstance(a, ColumnTable):
            if not all(np.array_equal(getattr(a, column), getattr(b, column)) for column, _, _ in a.columns):
                return False
        elif a != b:
            return False
    return True


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    fs = new_disk()
    assert checkpoints.read(fs, PATH) is None
    lost = LostFiles.filled(
        2, log=np.array([0, 1]), start_ms=60_000, kind=1, rows=9, outcomes=np.full((2, OUTCOMES), 3), searched=1
    )
    for written in (sample(), replace(sample(), lost=lost), Checkpoint(7)):
        checkpoints.write(fs, PATH, written)
        read = checkpoints.read(fs, PATH)
        assert read is not None and same(read, written)
    assert read is not None
    assert read.schedule.start_ms.shape == (0,) and read.dispatch.outcomes.shape == (0, OUTCOMES)


@given(st.integers(0, 40), st.integers(0, 1 << 32))
@settings(max_examples=40)
def test_tables_of_any_content_come_back(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    written = Checkpoint(
        (1 << 48) - 1,
        dispatch=DispatchFiles.filled(
            count,
            start_ms=random.integers(0, TIME_MS_MAX, count),
            coarse=random.integers(0, 2, count),
            outcomes=random.integers(0, 3, (count, OUTCOMES)) * random.integers(0, 2, OUTCOMES),
        ),
    )
    assert same(checkpoints.decode(checkpoints.encode(written), PATH), written)


@pytest.mark.parametrize("start_ms", [-60_000, 59_907, 60_000 * (1 << 40)])
def test_an_impossible_window_in_a_checkpoint_is_damage(start_ms: int) -> None:
    for table in (
        {"schedule": ScheduleFiles.filled(1, start_ms=start_ms)},
        {"dispatch": DispatchFiles.filled(1, start_ms=start_ms)},
        {"schedule": ScheduleFiles.filled(1, source=3)},
        {"dispatch": DispatchFiles.filled(1, coarse=2)},
    ):
        data = checkpoints.encode(Checkpoint(1, window_ms=60_000, **table))
        with pytest.raises(CorruptionError, match="window that is none"):
            checkpoints.decode(data, PATH)


def test_every_changed_byte_and_every_cut_is_detected() -> None:
    data = checkpoints.encode(sample())
    for offset in range(len(data)):
        mutated = bytearray(data)
        mutated[offset] ^= 0x10
        with pytest.raises((CorruptionError, FormatError)):
            checkpoints.decode(bytes(mutated), PATH)
        with pytest.raises(CorruptionError):
            checkpoints.decode(data[:offset], PATH)


def test_a_crash_leaves_the_old_or_the_new_checkpoint() -> None:
    for point in range(1, 8):
        for seed in range(8):
            fs = new_disk()
            checkpoints.write(fs, PATH, sample(1))
            fs.crash_after(point)
            try:
                checkpoints.write(fs, PATH, sample(2))
            except SimulatedCrash:
                pass
            fs.crash(Random(seed))
            read = checkpoints.read(fs, PATH)
            assert read is not None and read.replayed_sequence in (1, 2)


def test_a_newer_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "FORMAT_VERSION", 3)
    data = checkpoints.encode(replace(sample(), lost=LostFiles.filled(1)))
    monkeypatch.undo()
    with pytest.raises(FormatError, match="newer"):
        checkpoints.decode(data, PATH)


def test_older_programs_read_a_checkpoint_unless_files_lost_rows() -> None:
    """They would forget what is held back."""
    versions = [
        int.from_bytes(checkpoints.encode(written)[8:10], "little")
        for written in (sample(), replace(sample(), lost=LostFiles.filled(1)))
    ]
    assert versions == [1, 2]


def test_programs_of_before_pass_over_the_counts_of_the_subjects() -> None:
    """They know no other key of the map, and read of `totals` what they know."""
    counts = np.array([0, 3, 0, -1, 5], np.int64)
    written = replace(sample(), pending=PendingSubjects.of(counts))
    data = checkpoints.encode(written)
    assert int.from_bytes(data[8:10], "little") == 1
    values, before = msgpack.unpackb(data[64:]), msgpack.unpackb(checkpoints.encode(sample())[64:])
    assert values.keys() == before.keys()
    assert values["totals"].pop("pending")["count"] == 3
    assert values == before
    read = checkpoints.decode(data, PATH)
    assert read.pending is not None and read.pending.by_subject().tolist() == counts.tolist()
    assert read.totals == sample().totals


def test_an_impossible_subject_in_a_checkpoint_is_corruption() -> None:
    wrong = PendingSubjects.filled(1, subject=1 << 24, rows=1)
    with pytest.raises(CorruptionError, match="a subject that is none"):
        checkpoints.decode(checkpoints.encode(replace(sample(), pending=wrong)), PATH)


def test_ten_thousand_files_stay_small() -> None:
    outcomes = np.zeros((10_000, OUTCOMES), np.int64)
    outcomes[:, 4] = 3
    full = Checkpoint(
        7, schedule=ScheduleFiles.filled(10_000), dispatch=DispatchFiles.filled(10_000, outcomes=outcomes)
    )
    assert len(checkpoints.encode(full)) < 800_000


def test_uncertain_messages_stand_where_older_programs_pass_over_them() -> None:
    written = replace(sample(), uncertain=checkpoints.Uncertain(1_000, 7))
    values = msgpack.unpackb(checkpoints.encode(written)[64:])
    assert values["totals"].pop("uncertain") == [1_000, 7] and "uncertain" not in values
    assert checkpoints.decode(checkpoints.encode(written), PATH).uncertain == written.uncertain
    assert checkpoints.decode(checkpoints.encode(sample()), PATH).uncertain is None
