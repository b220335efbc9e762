"""What a primary decides at once may be more than one record of the log takes: it becomes several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from delayserver.follow.proposing import Proposing
from delayserver.follow.shard_ledger_writer import ROWS_MAX, ShardLedgerWriter
from delayserver.follow.shard_outcome_writer import ShardOutcomeWriter
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.shared_log import RECORD_BYTES_MAX
from delayserver.state.positions.positions import Positions
from store.logs.dispatch_log import DispatchKey
from store.records.batches import LedgerBatch, OutcomeBatch
from store.records.segment import Appendable
from store.shared.payload import encode_records


class Kept(Proposing):
    """Keeps what is proposed, and refuses what a log does not take."""

    def __init__(self) -> None:
        self.records: list[Appendable] = []

    @property
    def decides(self) -> bool:
        return True

    async def decide(self, records: Sequence[Appendable]) -> int:
        assert sum(map(len, encode_records(records))) < RECORD_BYTES_MAX
        self.records += records
        return 0


class Written:
    """The files of outcomes."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.rows = 0

    async def write(self, batches: list[OutcomeBatch], _new: list[OutcomeBatch]) -> set[DispatchKey]:
        assert self._kept.records, "the log has them first"
        self.rows += sum(map(len, batches))
        return set()


def varied(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column without a constant."""
    return np.arange(count, dtype=np.int64)


async def test_the_outcomes_of_a_burst_become_several_records_in_their_order() -> None:
    count = 450_000
    names = ("due_ms", "accepted_us", "loaded_us", "released_us", "queued_us", "dispatched_us", "settled_us")
    batch = OutcomeBatch.filled(
        count,
        sequence=varied(count),
        outcome=int(Outcome.DELIVERED),
        **{name: varied(count)[::-1] for name in (*names, "replaced_by_sequence", "replaced_by_due_ms")},
    )
    kept = Kept()
    local = Written(kept)
    batches = [batch, OutcomeBatch.filled(1, outcome=int(Outcome.CANCELLED))]
    await ShardOutcomeWriter(kept, local).write(batches, batches)
    assert len(kept.records) > 1 and local.rows == count + 1
    proposed = OutcomeBatch.concatenate([each for each in kept.records if isinstance(each, OutcomeBatch)])
    assert np.array_equal(proposed.sequence, batch.sequence)


def ledger(windows: Sequence[int]) -> LedgerBatch:
    """Counts of windows with so many subjects each."""
    count = sum(windows)
    names = ("accepted", "delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "rolled_back")
    return LedgerBatch.filled(
        count,
        start_ms=np.repeat(60_000 * np.arange(len(windows)), windows),
        subject=varied(count).astype(np.uint32),
        last_sequence=7,
        **{name: varied(count) for name in names},
    )


def writer() -> tuple[Kept, ShardLedgerWriter]:
    kept = Kept()
    return kept, ShardLedgerWriter(kept, Positions(durable=0, accepted_sequence=0, replayed=0, replayed_sequence=0))


@pytest.mark.parametrize(
    ("windows", "parts"),
    [
        ([3, 4], [7]),
        ([ROWS_MAX], [ROWS_MAX]),
        ([100_000] * 7, [300_000, 300_000, 100_000]),
        ([200_000, 200_000, 50_000, ROWS_MAX], [200_000, 250_000, ROWS_MAX]),
    ],
)
async def test_the_counts_of_a_day_become_records_of_whole_windows(windows: list[int], parts: list[int]) -> None:
    kept, counts = writer()
    batch = ledger(windows)
    counts.append(batch)
    await counts.finish()
    assert [len(each) for each in kept.records] == parts
    proposed = [each for each in kept.records if isinstance(each, LedgerBatch)]
    assert np.array_equal(LedgerBatch.concatenate(proposed).subject, batch.subject)
    starts = [set(each.start_ms.tolist()) for each in proposed]
    assert sum(map(len, starts)) == len(set.union(*starts)) == len(windows)


async def test_a_window_that_no_record_takes_is_not_retired() -> None:
    kept, counts = writer()
    counts.append(ledger([5, ROWS_MAX + 1]))
    counts.append(ledger([3]))
    await counts.finish()
    assert [len(each) for each in kept.records] == [3], "it keeps its files"
