"""Finds the messages behind a group's position that match its filter, over many records at once.

For records in memory, the filter looks at columns in this step, within the work that the step may do. An expression with
more rows to look at runs in a worker thread. For records on disk, a worker thread reads the columns, asks the filter, and
verifies and keeps the wanted rows alone. So a group that passes over most messages costs the event loop little, and bodies
are not read of a record without a match. Each record is verified as far as it is read: its columns always, and its bodies
before one of them is handed out.

Records that do not verify are left to the ordinary way of reading: it names the damage and passes over it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.filters.filter import Filter
from delayserver.broker.pulled_batch import PullBudget
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.queue import ConsumeQueue, StoredRun
from delayserver.broker.reads import SELECTED, ReadNeeded, ReadPlan
from store.records.batches import I64, U32, StoredBatch
from store.records.lazy_record import LazyRecord, RowGatherer
from store.records.record import BadRecordError

# Selections kept of which a group has not taken all, with the rows of all groups together. The oldest is made again.
_KEPT_BYTES_MAX = 16 << 20
# Work of a filter in a worker thread for one plan, as the filter estimates it. A seek or a stop waits for no more.
_PLAN_NS = 50_000_000
# Work of the event loop for a selection, and for each of its rows: their ranges, leases and columns.
_SELECTION_NS = 100_000
_ROW_NS = 1_500


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that `wanted` wants of the positions from `start` to `stop`: i64[n], ascending, and their rows; None
    for none of them."""

    wanted: Filter
    start: int
    stop: int
    positions: I64
    batch: StoredBatch | None

    @property
    def size_bytes(self) -> int:
        """About the bytes that it takes."""
        if self.batch is None:
            return 0
        blobs = (self.batch.ids, self.batch.properties, self.batch.bodies, self.batch.order_keys)
        return sum([len(blob) for blob in blobs]) + 128 * len(self.positions)

    def work_ns(self, count: int) -> int:
        """About how long the event loop works when it takes so many of its messages."""
        return _SELECTION_NS + _ROW_NS * count


class Selecting:
    """Finds selections for pulls. Keeps those of which a part was taken."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._kept: OrderedDict[GroupKey, Selection] = OrderedDict()
        self._kept_bytes = 0

    def forget(self, key: GroupKey) -> None:
        """Forgets what was selected for a group, because it has another filter."""
        gone = self._kept.pop(key, None)
        self._kept_bytes -= 0 if gone is None else gone.size_bytes

    def find(
        self, key: GroupKey, wanted: Filter, queue: ConsumeQueue, span: tuple[int, int], budget: PullBudget
    ) -> Selection | None:
        """The messages that match the group's filter, from the first position of `span` on. Its end bounds the search.

        None if that record is to be taken as a whole: the filter wants all of it, or it does not verify. Raises
        ReadNeeded."""
        start = span[0]
        found = self._kept.get(key)
        if found is not None:
            if found.wanted is wanted and found.start <= start < found.stop:
                return found
            self.forget(key)
        found = self._state.files.reads.find(SELECTED, (key, wanted, start))
        if found is None:
            found = self._made(key, wanted, queue, span, budget)
        if found is None or found.stop <= start:
            return None
        self._keep(key, found)
        return found

    def _keep(self, key: GroupKey, found: Selection) -> None:
        self._kept[key] = found
        self._kept_bytes += found.size_bytes
        while self._kept_bytes > _KEPT_BYTES_MAX and len(self._kept) > 1:
            self.forget(next(iter(self._kept)))

    def _read(self, key: GroupKey, found: dict[tuple[GroupKey, Filter, int], Selection]) -> None:
        """A plan has made a selection. It is kept for the next pull, which may come later: the plan may have run ahead."""
        for selection in found.values():
            self.forget(key)
            self._keep(key, selection)

    def _made(
        self, key: GroupKey, wanted: Filter, queue: ConsumeQueue, span: tuple[int, int], budget: PullBudget
    ) -> Selection | None:
        store = self._state.files.store
        start, stop = span
        run = self._state.messages.run_at((key[0], 0), start)
        if run.store_offset < store.first:
            return None
        runs = queue.runs_between(start, stop, self._state.files.blocks)
        if not store.holds(run.store_offset):
            to_read = list(takewhile(lambda each: not store.holds(each.store_offset), runs))
            raise ReadNeeded(self._plan(key, wanted, to_read, span, budget.wanted))
        if not wanted.is_dear:
            return self._look(wanted, self._in_memory(runs), span, budget)
        found, work_ns = self._within_plan(wanted, runs, span)
        if work_ns > self._state.limits.filter_step_ns:
            raise ReadNeeded(self._look_plan(key, wanted, found, span, budget.wanted))
        return self._look(wanted, found, span, budget)

    def _in_memory(self, runs: Iterable[StoredRun]) -> Iterator[tuple[StoredRun, StoredBatch]]:
        """The first of these runs, with their records, up to one that is not in memory."""
        for run in runs:
            batch = self._state.files.store.in_memory(run.store_offset)
            if batch is None:
                return
            yield run, batch

    def _within_plan(
        self, wanted: Filter, runs: Iterable[StoredRun], span: tuple[int, int]
    ) -> tuple[list[tuple[StoredRun, StoredBatch]], int]:
        """The runs in memory that a plan may look at, and about how long that takes."""
        found: list[tuple[StoredRun, StoredBatch]] = []
        work_ns = 0
        for run, batch in self._in_memory(runs):
            first = run.row_start + max(0, span[0] - run.position)
            behind = run.row_start + min(run.row_count, span[1] - run.position)
            lengths = batch.properties_length[first:behind]
            found.append((run, batch))
            work_ns += wanted.work_ns(behind - first, int(lengths.sum(dtype=np.int64)))
            if work_ns > _PLAN_NS:
                break
        return found, work_ns

    def _look(
        self, wanted: Filter, found: Iterable[tuple[StoredRun, StoredBatch]], span: tuple[int, int], budget: PullBudget
    ) -> Selection | None:
        """Look at records in memory, in this step."""
        gathering = _Gathering(wanted, *span, budget.look_ns, (budget.messages, budget.bytes))
        _take_batches(gathering, found)
        return gathering.selection()

    def _look_plan(
        self,
        key: GroupKey,
        wanted: Filter,
        found: list[tuple[StoredRun, StoredBatch]],
        span: tuple[int, int],
        most: tuple[int, int],
    ) -> ReadPlan:
        """A look at records in memory, which a thread does because the filter has much to do."""

        def look() -> dict[tuple[GroupKey, Filter, int], Selection]:
            gathering = _Gathering(wanted, *span, _PLAN_NS, most)
            _take_batches(gathering, found)
            return {(key, wanted, span[0]): gathering.selection()}

        reach = (found[0][0].store_offset, found[-1][0].store_offset + 1)
        put = partial(self._read, key)
        return ReadPlan(SELECTED, (key, wanted, span[0]), reach, self._state.limits.pull_bytes_max, look, put)

    def _plan(
        self, key: GroupKey, wanted: Filter, runs: list[StoredRun], span: tuple[int, int], most: tuple[int, int]
    ) -> ReadPlan:
        """A read of these runs, until it has `most` messages and bytes."""
        store = self._state.files.store
        end = store.end
        bytes_max = self._state.limits.pull_bytes_max

        def read() -> dict[tuple[GroupKey, Filter, int], Selection]:
            gathering = _Gathering(wanted, *span, _PLAN_NS, most)
            records = store.records_at([run.store_offset for run in runs], end)
            looked = 0
            for run, record in zip(runs, records, strict=False):
                if looked > bytes_max or not gathering.may_look(run) or not _take_rows(gathering, run, record):
                    break
                looked += record.header.body_bytes
            return {(key, wanted, span[0]): gathering.selection()}

        reach = (runs[0].store_offset, runs[-1].store_offset + 1)
        return ReadPlan(SELECTED, (key, wanted, span[0]), reach, bytes_max, read, partial(self._read, key))


def _take_batches(gathering: _Gathering, found: Iterable[tuple[StoredRun, StoredBatch]]) -> None:
    """Gather from records in memory, up to the first one that is not as it should be."""
    for run, batch in found:
        if not gathering.may_look(run) or not _take_batch(gathering, run, batch):
            return


def _take_batch(gathering: _Gathering, run: StoredRun, batch: StoredBatch) -> bool:
    """Whether a batch in memory is that of the run. If it comes first and a tag wants all of it, it is not copied."""
    if int(batch.position[run.row_start]) != run.position:
        return False
    row, count, size = gathering.rows_of(run, batch.properties_length)
    rows = gathering.wanted.rows(batch, row, row + count)
    if rows is None and gathering.nothing_yet and not gathering.wanted.is_dear:
        return False
    if rows is None or len(rows):
        gathering.gatherer.add_batch(batch, row + (np.arange(count) if rows is None else rows))
    gathering.add(count, size, rows)
    return True


def _take_rows(gathering: _Gathering, run: StoredRun, record: LazyRecord) -> bool:
    """Whether the record of a run verifies, and is that of the run."""
    try:
        if run.row_start + run.row_count > len(record) or int(record.column("position")[run.row_start]) != run.position:
            return False
        row, count, size = gathering.rows_of(run, record.column("properties_length"))
        rows = gathering.wanted.rows(_Columns(record), row, row + count)
        if rows is None or len(rows):
            gathering.gatherer.add_record(record, row + (np.arange(count) if rows is None else rows))
    except BadRecordError:
        return False
    gathering.add(count, size, rows)
    return True


class _Columns:
    """The columns of a stored record, for a filter."""

    __slots__ = ("_record",)

    def __init__(self, record: LazyRecord) -> None:
        self._record = record

    @property
    def tag(self) -> U32:
        return self._record.column("tag")

    @property
    def properties(self) -> memoryview:
        return self._record.blobs()["properties"]

    @property
    def properties_length(self) -> U32:
        return self._record.column("properties_length")


class _Gathering:
    """Gathers a selection run by run, within the work, messages and bytes that it may have."""

    def __init__(self, wanted: Filter, start: int, stop: int, work_ns: int, most: tuple[int, int]) -> None:
        self.wanted = wanted
        self.gatherer = RowGatherer(StoredBatch)
        self._start = self._next = start
        self._stop = stop
        self._work_ns = work_ns
        self._messages, self._bytes = most
        self._positions: list[I64] = []

    @property
    def nothing_yet(self) -> bool:
        """Whether it has looked at nothing."""
        return self._next == self._start

    def may_look(self, run: StoredRun) -> bool:
        """Whether it may look at one more run, which must be the next one."""
        if self._next >= self._stop or not run.position <= self._next < run.position + run.row_count:
            return False
        full = self.gatherer.rows >= self._messages or self.gatherer.blob_bytes >= self._bytes
        return self.nothing_yet or (not full and self._work_ns > 0)

    def rows_of(self, run: StoredRun, lengths: U32) -> tuple[int, int, int]:
        """The rows of the run's record to look at: the first one, how many, and the bytes of their properties. `lengths`
        u32[n]: those of all rows of the record."""
        first = run.row_start + self._next - run.position
        lengths = lengths[first : first + min(self._stop, run.position + run.row_count) - self._next]
        count = self.wanted.rows_within(self._work_ns, lengths)
        return first, count, int(lengths[:count].sum(dtype=np.int64))

    def add(self, count: int, properties_bytes: int, rows: NDArray[np.intp] | None) -> None:
        """It looked at so many rows of a run, with so many bytes of properties. Those that are wanted; None: all of them."""
        if rows is None:
            self._positions.append(np.arange(self._next, self._next + count))
        elif len(rows):
            self._positions.append(rows + self._next)
        self._next += count
        self._work_ns -= self.wanted.work_ns(count, properties_bytes)

    def selection(self) -> Selection:
        """The messages that it has gathered."""
        if not self._positions:
            return Selection(self.wanted, self._start, self._next, np.empty(0, np.int64), None)
        return Selection(self.wanted, self._start, self._next, np.concatenate(self._positions), self.gatherer.batch())
