"""What a check holds in memory does not grow with what the logs hold."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from delayserver.recover.checking.cancel_check import CancelLots, Cancels
from delayserver.recover.checking.log_check import LogCheck
from delayserver.recover.mending.copies import mark_copies
from delayserver.recover.mending.mended_marks import Marks
from delayserver.recover.mending.restore import Restore
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Reader
from delayserver.recover.reading.findings import Findings
from delayserver.recover.reading.outcomes_of_file import OutcomeRows
from delayserver.recover.reading.subject_balances import ACCEPTED, SubjectBalances
from delayserver.recover.reading.window_units import Units
from store.disk.filesystem import RealFileSystem
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import CancelBatch, MessageBatch
from store.records.file_header import FILE_HEADER_BYTES
from store.records.id_hash import hash_ids
from tests.delayserver.recover.directories import Made, in_process

MIB = 1 << 20


def log_cancels(made: Made, number: int, rows: int) -> None:
    """Cancels behind all that the log has, of messages that no client sent, as records of so many rows."""
    log = MessageLog.open(RealFileSystem(), f"{made.path}/message_log", int(made.server_id, 16), segment_bytes=64 << 10)
    for first in range(0, number, rows):
        sequence = np.arange(1 << 40, (1 << 40) + rows) + first
        log.append([CancelBatch.filled(rows, sequence=sequence, due_ms=sequence % 600_000, subject=1)])
    log.sync()
    log.close()


def log_messages(made: Made, due_ms: int, records: int, rows: int, body: bytes) -> None:
    """Messages behind all that the log has, as records of so many rows."""
    log = MessageLog.open(RealFileSystem(), f"{made.path}/message_log", int(made.server_id, 16), segment_bytes=4 << 20)
    for number in range(records):
        sequence = np.arange(1 << 40, (1 << 40) + rows) + number * rows
        bodies, lengths = body * rows, np.full(rows, len(body))
        log.append(
            [
                MessageBatch.filled(
                    rows, sequence=sequence, due_ms=due_ms, subject=1, bodies=bodies, bodies_length=lengths
                )
            ]
        )
        log.sync()
    log.close()


def named(ids: dict[int, bytes]) -> MessageBatch:
    """Messages for one due time, by sequence."""
    blob, lengths = b"".join(ids.values()), np.array([len(name) for name in ids.values()], np.uint32)
    return MessageBatch.filled(
        len(ids), sequence=np.array(list(ids)), due_ms=60_000, subject=1,
        ids=blob, ids_length=lengths, id_hash=hash_ids(blob, lengths),
    )  # fmt: skip


def settled(made: Made, cancels_max: int) -> list[Cancels]:
    """What a pass over the log hands on, with everything counted as replayed."""
    taken = capture(RealFileSystem(), str(made.path), Findings())
    taken = taken.with_checkpoint(type(taken.marks.checkpoint)(taken.server_id, replay_offset=1 << 62))
    found: list[Cancels] = []
    lots = CancelLots(found.append, cancels_max)
    log = LogCheck(Reader(taken), Units(taken), OutcomeRows.empty(), Range(), cancels=lots)
    log.run()
    taken.close()
    return found


def test_cancels_are_looked_up_a_bounded_number_at_a_time_and_each_once(made: Made) -> None:
    log_cancels(made, 1000, 30)
    lots = settled(made, 64)
    assert max(map(len, lots)) <= 64
    [everything] = settled(made, 1 << 20)
    assert len(everything) > 1000
    joined = Cancels.concatenate(lots)
    for name in ("sequence", "due_ms", "outcome", "offset"):
        assert getattr(joined, name).tolist() == getattr(everything, name).tolist()


def test_a_pass_over_many_cancels_holds_a_lot_of_them_and_no_more(made: Made) -> None:
    log_cancels(made, 1_200_000, 40_000)
    peaks = []
    taken = capture(RealFileSystem(), str(made.path), Findings())
    taken = taken.with_checkpoint(type(taken.marks.checkpoint)(taken.server_id, replay_offset=1 << 62))
    for cancels_max in (1 << 16, 1 << 22):
        lots = CancelLots(lambda _cancels: None, cancels_max)
        log = LogCheck(Reader(taken), Units(taken), OutcomeRows.empty(), Range(), cancels=lots)
        tracemalloc.start()
        log.run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    taken.close()
    # 25 bytes a cancel, and as much again while they are joined: 58 MB that the bound keeps away.
    assert peaks[1] - peaks[0] > 24 * 1_000_000, peaks


def test_cancels_beyond_one_lot_change_no_finding_of_a_check(made: Made) -> None:
    log_cancels(made, 90, 30)
    done = in_process("check", str(made.path), "--json")
    assert done.last["accepted"] == made.accepted


def test_a_rebuild_holds_some_of_the_messages_that_it_restores(made: Made) -> None:
    due_ms = int(time.time() * 1000) // 60_000 * 60_000 + 20 * 60_000
    log_messages(made, due_ms, records=64, rows=32, body=b"x" * 16_384)  # 34 MB for one minute
    taken = capture(RealFileSystem(), str(made.path), Findings())
    taken = taken.with_checkpoint(type(taken.marks.checkpoint)(taken.server_id, replay_offset=1 << 62))
    restore = Restore(taken, Marks(taken), lambda _text: None)
    tracemalloc.start()
    restore.run([due_ms * 2])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    schedule = ScheduleLog(RealFileSystem(), f"{made.path}/schedule_log", taken.server_id, taken.files.window_ms)
    key = ScheduleKey(due_ms, ScheduleSource.DIRECT)
    schedule.recover_all({})
    assert sum(len(batch) for _, batch in schedule.batches(key)) == 64 * 32
    taken.close()
    schedule.close()
    assert peak < 8 * MIB, peak


def test_a_message_restored_beside_its_original_is_a_duplicate_and_the_original_is_not(made: Made) -> None:
    taken = capture(RealFileSystem(), str(made.path), Findings())
    key = ScheduleKey(60_000, ScheduleSource.DIRECT)
    taken.files.schedule[key] = FILE_HEADER_BYTES
    kept = named({5: b"a", 9: b"b"})
    lost = [named({4: b"c", 6: b"a", 7: b"d"}), named({8: b"c", 10: b"e"})]
    marked = list(mark_copies(taken, key, lambda: iter(lost), lambda _file: iter([kept])))
    taken.close()
    assert [batch.duplicate_of.tolist() for batch in marked] == [[0, 5, 0], [4, 0]]


def test_copies_among_many_ids_are_those_that_a_plain_search_finds(stopped: Made) -> None:
    taken = capture(RealFileSystem(), str(stopped.path), Findings())
    key = ScheduleKey(60_000, ScheduleSource.DIRECT)
    taken.files.schedule[key] = FILE_HEADER_BYTES
    draw = np.random.default_rng(8)
    sequences = np.arange(400) + 1
    ids = {sequence: b"%d" % draw.integers(150) for sequence in sequences.tolist()}
    where = draw.integers(6, size=len(ids))  # four records are kept, two are restored
    parts = [named({s: ids[s] for s in sequences[where == part].tolist()}) for part in range(6)]
    marked = list(mark_copies(taken, key, lambda: iter(parts[4:]), lambda _file: iter(parts[:4])))
    taken.close()
    originals = {name: min(s for s, other in ids.items() if other == name) for name in ids.values()}
    for batch in marked:
        expected = [originals[ids[s]] if originals[ids[s]] != s else 0 for s in batch.sequence.tolist()]
        assert batch.duplicate_of.tolist() == expected


def test_a_subject_code_that_no_table_holds_costs_an_entry_and_not_a_table_up_to_it() -> None:
    balance, other = SubjectBalances(), SubjectBalances()
    tracemalloc.start()
    balance.add(ACCEPTED, np.array([3, 0xFFFF_FFF0, 3, 0xFFFF_FFFF], np.uint32))
    other.add(ACCEPTED, np.full(5, 0xFFFF_FFFF, np.uint32))
    balance.merge(other)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    subjects, counts = balance.rows()
    assert subjects.tolist() == [3, 0xFFFF_FFF0, 0xFFFF_FFFF]
    assert counts[:, ACCEPTED].tolist() == [2, 1, 6]
    assert int(balance.totals()[ACCEPTED]) == 9
    assert peak < MIB
