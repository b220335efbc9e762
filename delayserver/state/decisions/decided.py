"""Decisions about messages: outcomes, written or not, and the holds that stand in the way of a decision.

Stages that decide add outcomes here, in the step that decides. The recorder waits for them and writes them to dispatch_log;
it alone moves the mark `written`. Loader, publisher, cancel, lookup and retention ask here: no message may be delivered
twice because the disk was slow. An outcome counts as durable only after its sync.

This is the one part of `state` that reads files: the outcomes of a window are read when a stage first asks for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.marks import Bell, Mark
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.redeliveries import RedeliveryRows
from delayserver.state.counts.subject_counts import SubjectCounts
from delayserver.state.decisions.day_overlays import DayOverlays
from delayserver.state.decisions.holds import Holds
from delayserver.state.decisions.open_messages import OpenMessages
from delayserver.state.decisions.outcome_rows import suppressed_outcomes
from delayserver.state.decisions.promises import Promises
from delayserver.state.decisions.unwritten import Unwritten
from delayserver.state.positions.positions import Positions
from store.errors import CorruptionError, FormatError
from store.indexes.outcome_index import OutcomeIndex
from store.indexes.schedule_index import ScheduleIndex
from store.logs.dispatch_log import DispatchKey, DispatchLog, count_outcomes
from store.logs.due_windows import DAY_MS, day_of, window_of, window_starts
from store.records.batches import I64, U8, U32, MessageBatch, OutcomeBatch
from store.records.membership import is_member
from store.records.outcome_balance import in_balance
from store.tables.days import DayTable

# Indexes of windows that were asked for; 16 bytes a row.
INDEX_BYTES_MAX = 96 << 20
# A batch of so many rows belongs to a hot moment: the recorder lets more of them gather.
HOT_ROWS = 1024


class Decided:
    """Outcomes on their way to dispatch_log, and the questions that are asked of them. For the event loop. Writers: the
    verdicts of dispatch, cancels, the replay; the recorder takes what it writes."""

    def __init__(
        self,
        log: DispatchLog,
        days: DayTable,
        positions: Positions,
        subjects: SubjectCounts,
        rows_max: int,
        window_ms: int,
        runtime: Runtime,
    ) -> None:
        """`rows_max`: past so many unwritten rows `wait_for_room` waits."""
        self._log = log
        self._days = days
        self._positions = positions
        self._subjects = subjects
        self._workers = runtime.workers
        self._rows_max = rows_max
        self._window_ms = window_ms
        self._clock = runtime.clock
        self._settle = runtime.stages.settle
        self._damage = runtime.damage
        self.holds = Holds()
        self.overlays = DayOverlays()
        self.open_messages = OpenMessages()
        self._unwritten = Unwritten()
        # When the first outcome came of those that wait, and of those that are written (monotonic).
        self._waiting_since_us = 0
        self._writing_since_us = 0
        # Those of both that count as ends of messages: moved outcomes were counted before.
        self._buffer_counted: list[OutcomeBatch] = []
        self._writing_counted: list[OutcomeBatch] = []
        # Redeliveries among both.
        self._buffer_redelivered: list[RedeliveryRows] = []
        self._writing_redelivered: list[RedeliveryRows] = []
        # Held while outcomes are written, until they are counted as durable. A part that needs files and counts that belong
        # together holds it meanwhile.
        self.writes = trio.Lock()
        self._hot = False
        # Rows that were added since the start, and how many of them are durable. Writer of the mark: the recorder.
        self._added = 0
        self.written = Mark(0)
        # Rung when outcomes were added; when a part waits for an outcome that was promised; and when a part waits for all
        # of them to be written.
        self.arrived = Bell()
        self.hurry = Bell()
        self.wanted = Bell()
        # Rung each time that the recorder meets a full disk.
        self.disk_full = Bell()
        # Outcomes that promise that a message never comes, and are not durable.
        self._promises = Promises()
        self._given_up = trio.Event()
        # Counts of the balance (i64[16]) by outcome: of all that is decided, and of what is durable.
        self.totals: I64 = np.zeros(16, dtype=np.int64)
        self.durable_totals: I64 = np.zeros(16, dtype=np.int64)
        self._indexes: dict[DispatchKey, OutcomeIndex] = {}
        self._loading: dict[DispatchKey, list[OutcomeBatch]] = {}
        # Set when the load of an index has ended.
        self._loaded: dict[DispatchKey, trio.Event] = {}
        self._pins: dict[DispatchKey, int] = {}
        # Sequences decided before their round was published: of one round at most.
        self._early: list[I64] = []
        # Duplicates that loads met while the start had not replayed them yet. None once it has.
        self._copies_ahead: dict[int, ScheduleIndex] | None = {}

    # -- what stages add

    def add(self, batch: OutcomeBatch, groups: U32 | None = None, *, moved: bool = False) -> None:
        """Take outcomes. `groups` u32[n]: the consumer groups that the messages are for, 0 for all; None: no message is for
        one. `moved` rows were counted when they were first added (a drained day's)."""
        if not len(batch):
            return
        if not self._unwritten.waits:
            self._waiting_since_us = self._clock.monotonic_us()
        self._unwritten.add(batch)
        self._added += len(batch)
        self._promises.add(batch, self._added)
        self._hot |= len(batch) >= HOT_ROWS
        if not moved:
            self._buffer_counted.append(batch)
            balance = in_balance(batch.origin_sequence, batch.outcome)
            if batch.outcome.strides == (0,):
                self.totals[batch.outcome[0]] += np.count_nonzero(balance)
            else:
                self.totals += np.bincount(batch.outcome[balance], minlength=16)
        if groups is not None:
            redelivered = RedeliveryRows.of(batch.sequence, batch.subject, groups, batch.accepted_us)
            if redelivered is not None:
                self._subjects.redeliveries.count_decided(redelivered)
                self._buffer_redelivered.append(redelivered)
        if self._indexes or self._loading:
            self._feed_indexes(batch)
        self.open_messages.remove(batch.sequence)
        early = batch.sequence[batch.sequence > self._positions.replayed_sequence.value]
        if len(early):  # delivered by a load, while the round that placed them waits for room for the rest of it
            self._early.append(early)
        self.arrived.ring()

    def add_lost_copies(self, window_ms: int, copies: ScheduleIndex, missing: NDArray[np.bool_]) -> None:
        """Take the outcomes of duplicates of one window which a crash lost: `missing`, bool[n], says which of them have none
        in its file. The schedule file has the verdict. Duplicates of a round that is not published yet come with it, but for
        those that an earlier process has placed: see `copies_ahead`."""
        missing = missing & self.overlays.not_done(window_ms, copies.sequence)
        replayed = self._positions.has_replayed(copies.sequence)
        lost, ahead = np.flatnonzero(missing & replayed), np.flatnonzero(missing & ~replayed)
        if len(ahead) and self._copies_ahead is not None:
            before = self._copies_ahead.get(window_ms, copies.take(ahead[:0]))
            new = ahead[~is_member(copies.sequence[ahead], before.sequence)]  # a window may be loaded again and again
            self._copies_ahead[window_ms] = ScheduleIndex.concatenate([before, copies.take(new)])
        if len(lost):
            self.add(suppressed_outcomes(copies.take(lost), self._clock.now_us()))

    def copies_ahead(self) -> list[OutcomeBatch]:
        """The outcomes of duplicates that loads have met before the start had replayed them; to be called once it has. Their
        rows were in the files, so the replay passed over them, and no round has brought these outcomes. Some may be decided
        by now."""
        copies, self._copies_ahead = self._copies_ahead or {}, None
        return [suppressed_outcomes(each, self._clock.now_us()) for each in copies.values()]

    def open_round(self, messages: MessageBatch) -> None:
        """Adds the messages of a published round of the message_log to the open messages, without those that had an
        early outcome."""
        self.open_messages.add(messages)
        for early in self._early:
            self.open_messages.remove(early)
        self._early.clear()

    def count_durable(self, totals: I64) -> None:
        """The start has counted these outcomes (i64[16]) in the files."""
        self.totals += totals
        self.durable_totals += totals

    def leave_out(self, orphans: OutcomeBatch) -> None:
        """Subtracts durable outcomes whose messages are gone (orphans). The counts of their files include them."""
        self.count_durable(-count_outcomes(orphans)[0])

    def _feed_indexes(self, batch: OutcomeBatch) -> None:
        starts = window_starts(batch.due_ms, self._window_ms)
        if starts[0] != starts[-1]:
            # After a downtime a batch has rows of a thousand windows, and hardly any of them has an index.
            known = [start for start in np.unique(starts).tolist() if self._is_known(self.key_of(start))]
            batch = batch.take(np.flatnonzero(is_member(starts, np.array(known, np.int64))))
            if not len(batch):
                return
        for key, part in self.by_file(batch):
            index = self._indexes.get(key)
            if index is not None:
                index.add(part.sequence, part.outcome)
            elif key in self._loading:
                self._loading[key].append(part)

    def _is_known(self, key: DispatchKey) -> bool:
        return key in self._indexes or key in self._loading

    # -- what is not written yet

    @property
    def rows_waiting(self) -> int:
        """Rows that are decided and not durable yet."""
        return self._added - self.written.value

    def unwritten(self) -> list[OutcomeBatch]:
        """Batches that are decided and maybe not in their files yet."""
        return self._unwritten.batches()

    def unwritten_between(self, from_ms: int, to_ms: int) -> list[OutcomeBatch]:
        """The rows of `unwritten` that are due in [from_ms, to_ms)."""
        return self._unwritten.due_between(from_ms, to_ms)

    def unwritten_near(self, key: DispatchKey) -> list[OutcomeBatch]:
        """The rows of `unwritten` that are due in the window or the day of a file."""
        return self._unwritten.due_between(key.start_ms, key.start_ms + (DAY_MS if key.coarse else self._window_ms))

    async def wait_for_room(self) -> None:
        """Return when the disk keeps up with what was decided (bound of memory)."""
        while self.rows_waiting > self._rows_max:
            await self.written.reached(self._added - self._rows_max)

    async def wait_all_written(self) -> None:
        """Waits until all that is decided now is durable, and has it written at once. If the disk fails for good, the
        server ends first."""
        if self.rows_waiting:
            self.hurry.ring()
            self.wanted.ring()
            await self.written.reached(self._added)

    async def promises_written(self, sequences: I64) -> bool:
        """Return when those of these messages that were decided never to come have durable outcomes: True. False where the
        disk failed for good before."""
        position = self._promises.position_of(sequences)
        if position <= self.written.value:
            return True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_given_up, nursery.cancel_scope)
            self.hurry.ring()
            await self.written.reached(position)
            nursery.cancel_scope.cancel()
        return position <= self.written.value

    async def _cancel_when_given_up(self, scope: trio.CancelScope) -> None:
        await self._given_up.wait()
        scope.cancel()

    # -- for the recorder

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to begin with."""
        return self._unwritten.waits

    def was_hot(self) -> bool:
        """Whether a large batch came since the last call."""
        hot, self._hot = self._hot, False
        return hot

    def begin_write(self) -> list[OutcomeBatch]:
        """All that waits; `wrote` or `give_up` must follow before the next call."""
        self._promises.seal()
        self._writing_counted, self._buffer_counted = self._buffer_counted, []
        self._writing_redelivered, self._buffer_redelivered = self._buffer_redelivered, []
        self._writing_since_us = self._waiting_since_us
        return self._unwritten.begin_write()

    @property
    def writing_new(self) -> list[OutcomeBatch]:
        """Those of the write that was begun which do not only move from the file of a day."""
        return self._writing_counted

    def end_write(self, totals: I64) -> None:
        """Ends the write that was begun: it is durable. `totals` are the counts of that moment."""
        rows = self._unwritten.end_write()
        self._subjects.end(self._writing_counted, self._writing_redelivered)
        self._writing_counted, self._writing_redelivered = [], []
        self.durable_totals = totals
        self.written.advance(self.written.value + rows)
        self._promises.forget(self.written.value)
        self._settle.add(self._clock.monotonic_us() - self._writing_since_us)

    def give_up(self) -> None:
        """The write that was begun will never be durable. Its outcomes stay unwritten until the end."""
        self._given_up.set()
        self.arrived.ring()

    @property
    def gave_up(self) -> bool:
        """Whether outcomes could not be made durable: the server ends, and its next start decides again."""
        return self._given_up.is_set()

    # -- files

    def key_of(self, due_ms: int) -> DispatchKey:
        """The dispatch file of a message with this due time, as the days stand now."""
        if self._days.is_coarse(due_ms):
            return DispatchKey(day_of(due_ms), True)
        return DispatchKey(window_of(due_ms, self._window_ms), False)

    def by_file(self, batch: OutcomeBatch) -> list[tuple[DispatchKey, OutcomeBatch]]:
        """The rows of each dispatch file. For any thread."""
        if not len(batch):
            return []
        starts = window_starts(batch.due_ms, self._window_ms)
        first = int(starts[0])
        if bool((starts == first).all()):
            return [(self.key_of(first), batch)]
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        batch = batch.take(order)
        cuts = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
        parts: dict[DispatchKey, list[OutcomeBatch]] = {}
        for begin, end in pairwise(cuts):
            parts.setdefault(self.key_of(int(starts[begin])), []).append(batch.slice(begin, end))
        return [(key, OutcomeBatch.concatenate(list_)) for key, list_ in parts.items()]

    # -- what is decided

    def has_file(self, start_ms: int) -> bool:
        """Whether this window has a dispatch file, or had one that is lost. Otherwise its outcomes are all in
        `unwritten`."""
        key = DispatchKey(start_ms, self._days.is_whole(start_ms))
        return key in self._log or self._log.is_lost(key)

    def is_unknown(self, due_ms: I64, sequences: I64) -> NDArray[np.bool_]:
        """True where no outcome of a message waits to be written, bool[n]. Only those that are due at the same times are
        looked at: of an overdue backlog a hundred thousand may wait, of the windows before these."""
        if not len(sequences):
            return np.zeros(0, dtype=bool)
        waiting = self.unwritten_between(int(due_ms.min()), int(due_ms.max()) + 1)
        return ~is_member(sequences, np.concatenate([np.empty(0, np.int64), *[batch.sequence for batch in waiting]]))

    def outcome_of(self, key: DispatchKey, index: OutcomeIndex, sequences: I64) -> U8:
        """Outcome codes u8[n] of messages of one window or day, 0 where there is none yet; `index` as `pinned` gave it."""
        answer: U8 = index.lookup(sequences)
        if key.coarse or not self._days.is_draining(key.start_ms):
            return answer
        return np.where(answer == 0, self.overlays.outcomes(key.start_ms, sequences), answer)

    @asynccontextmanager
    async def pinned(self, key: DispatchKey) -> AsyncIterator[OutcomeIndex]:
        """Sequences with an outcome in this file, those not written yet included; kept up until the block ends.

        Raises CorruptionError where the file is damaged, or of another server: no part may take its messages for undecided
        then."""
        self._pins[key] = self._pins.get(key, 0) + 1
        try:
            while key not in self._indexes:
                if key in self._loading:
                    await self._loaded[key].wait()
                else:
                    await self._load_index(key)
            index = self._indexes.pop(key)
            self._indexes[key] = index  # most recently used last
            yield index
        finally:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
                if key in self._indexes and not len(self._indexes[key]):
                    del self._indexes[key]  # it costs nothing to make it anew, and a step for each outcome to keep it

    async def readable_codes(self, key: DispatchKey, sequences: I64) -> U8:
        """Outcome codes u8[n], for a file of which `pinned` raises. The outcomes that can be read are true all the
        same. The others are TOO_LATE, since an attempt may have been made."""
        # Before the file is read, because rows move from memory to the file.
        read = partial(self._read_codes, key, sequences, self.unwritten_near(key))
        with trio.CancelScope(shield=True):
            codes = await self._workers.run(read)
        return codes

    def _read_codes(self, key: DispatchKey, sequences: I64, unwritten: list[OutcomeBatch]) -> U8:
        written = []
        with suppress(CorruptionError, FormatError, KeyError):  # `pinned` has reported it
            written.append(self._log.rows_of(key, sequences, damages=[]))
        codes = OutcomeIndex.of([*written, *unwritten]).lookup(sequences)
        return np.where(codes == 0, np.uint8(Outcome.TOO_LATE), codes)

    def forget(self, key: DispatchKey) -> None:
        """The file is removed by retention."""
        self._indexes.pop(key, None)

    async def _load_index(self, key: DispatchKey) -> None:
        near = self.unwritten_near(key)
        captured = [part for batch in near for owner, part in self.by_file(batch) if owner == key]
        self._loading[key], self._loaded[key] = captured, trio.Event()
        read = partial(self._log.index, key, self._log.end(key))
        try:
            index = await self._workers.run(read) if self._log.end(key) else read()
            for part in captured:
                index.add(part.sequence, part.outcome)
            self._indexes[key] = index
        except FormatError as error:
            damage = error.as_damage()
            self._damage.report(damage)
            raise damage from error
        except CorruptionError as error:
            self._damage.report(error)
            raise
        finally:
            del self._loading[key]
            self._loaded.pop(key).set()
        self._evict()

    def _evict(self) -> None:
        total = sum([index.nbytes for index in self._indexes.values()])
        for key in list(self._indexes)[:-1]:
            if total <= INDEX_BYTES_MAX:
                return
            if key in self._pins:
                continue
            total -= self._indexes.pop(key).nbytes

    def check_invariants(self) -> None:
        """The outcomes that wait are those that were added and are not written, and none leaves its message open."""
        self.written.check_invariants()
        self.holds.check_invariants()
        self.overlays.check_invariants()
        self._promises.check_invariants(self.written.value, self._added)
        self._unwritten.check_invariants()
        assert self.rows_waiting == sum([len(batch) for batch in self.unwritten()])
        assert (self.durable_totals <= self.totals).all()
        assert not self._indexes.keys() & self._loading.keys()
        assert all(count > 0 for count in self._pins.values())
        for batch in self.unwritten():
            assert not self.open_messages.find(batch.sequence, batch.due_ms)[0].any()
