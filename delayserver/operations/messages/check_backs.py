"""Asks producers about their transactions, and ends transactions without an answer, when their timers are due.

A timer that is due is answered by one record, which holds the check-back, a message for the producer's group, and the
next timer, which replaces this one. So a crash leaves either both or none, and a transaction is asked about as often as
its terms say. After the last one its policy decides.

Timers go through wheel and queue like any row, to an internal group (`TIMERS`). `DueTask` takes them from its queue.
The count of check-backs is in the timers, not in the clock. After a downtime each transaction is asked
before its policy decides, and the next timer counts from the moment of the check-back, so a downtime of days is no
storm.

`expired` of a check-back comes with the next one, so a producer that was away finds one of each transaction.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack
import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.operations.messages.cancellation import CANCELLED, INLINE_MESSAGES_MAX, PREPARED, Cancellation, Ends
from delayserver.operations.messages.locator import Located, Locator
from delayserver.operations.messages.rescheduling import READ_BYTES_MAX, MovedColumns, Moves, Rescheduling
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import DeliverOutcome, Outcome
from delayserver.protocol.receipts import format_receipts
from delayserver.receive.group_commit import ROW_OVERHEAD_BYTES, GroupCommit
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.due_records import RECORDED
from delayserver.upkeep.kept_room import KeptRoom
from store.errors import DiskFullError
from store.records.batches import I64, U8, MessageBatch, StoredBatch
from store.records.column_batch import ragged_offsets
from store.records.transaction_timer import COMMIT, read_timers, timer_batch
from store.tables.names import Names

_STORED, _REFUSED = int(DeliverOutcome.STORED), int(DeliverOutcome.REFUSED)
_ROLLED_BACK, _TOO_LATE = int(Outcome.ROLLED_BACK), int(Outcome.TOO_LATE)
# Names of the properties of a check-back, beside those of the prepared message.
TRANSACTION, TRANSACTION_SUBJECT, TRANSACTION_DUE_MS = "transaction", "transaction_subject", "transaction_due_ms"
TRANSACTION_CHECK, TRANSACTION_CHECKS_MAX = "transaction_check", "transaction_checks_max"


class CheckBacks:
    """Answers timers that are due."""

    def __init__(
        self,
        server_id: int,
        names: Names,
        cancellation: Cancellation,
        rescheduling: Rescheduling,
        pipeline: Pipeline,
        runtime: Runtime,
    ) -> None:
        self._server_id = f"{server_id:012x}"
        self._names = names
        self._cancellation = cancellation
        self._rescheduling = rescheduling
        self._pipeline = pipeline
        self._workers = runtime.workers
        self._clock = runtime.clock
        # Check-backs so far, and transactions that their policy ended.
        self.asked = 0
        self.ended = 0

    async def answer(self, batch: StoredBatch) -> U8:
        """See `DueWork.answer`."""
        answer = np.full(len(batch), _STORED, np.uint8)
        timers, sound = read_timers(batch.bodies, batch.bodies_length)
        transaction, due_ms = batch.origin_sequence, np.ascontiguousarray(timers["due_ms"])
        located = await self._cancellation.locate(transaction, due_ms)
        state = await self._cancellation.decide(located, transaction, due_ms, Ends.NONE)
        answer[located.hidden | (state == _TOO_LATE)] = _REFUSED  # damage: look again later
        # A copy that a retried `prepare` made has a timer as well; the first one's is enough.
        waiting = sound & (state == PREPARED) & (located.message == transaction)
        last = timers["check"] > timers["checks_max"]
        await self._end(answer, np.flatnonzero(waiting & last), transaction, due_ms, timers)
        await self._ask(answer, np.flatnonzero(waiting & ~last), batch, located, timers)
        return answer

    async def _end(
        self, answer: U8, places: NDArray[np.intp], transaction: I64, due_ms: I64, timers: NDArray[Any]
    ) -> None:
        """Lets the policy decide. Where another decision came first, that one counts."""
        commit = timers["policy"][places] == COMMIT
        back = places[~commit]
        if len(back):
            sequence, due = transaction[back], due_ms[back]
            located = await self._cancellation.locate(sequence, due)
            ended = await self._cancellation.end(located, sequence, due, Ends.TRANSACTIONS, _ROLLED_BACK)
            answer[back[ended == PREPARED]] = _REFUSED
            self.ended += int(np.count_nonzero(ended == CANCELLED))
        places = places[commit]
        while len(places):
            sequence, due = transaction[places], due_ms[places]
            moves = Moves(sequence, due, np.maximum(due, self._now_ms()))
            moved = MovedColumns.nothing(len(places))
            done = await self._rescheduling.move_some(moves, np.arange(len(places)), moved, Ends.TRANSACTIONS)
            answer[places[list(moved.errors)]] = _REFUSED
            self.ended += int(np.count_nonzero(moved.new_sequence))
            places = places[done:]

    async def _ask(
        self, answer: U8, places: NDArray[np.intp], batch: StoredBatch, located: Located, timers: NDArray[Any]
    ) -> None:
        """Makes a check-back of each transaction, and its next timer, in records of a bounded size.

        A record that is durable has answered its timers. So once there is one, no error and no cancel ends the others: those
        that cannot be asked now are refused, and come again alone."""
        begun = False
        while len(places):
            message, due_ms = located.message[places], np.ascontiguousarray(timers["due_ms"][places])
            try:
                with trio.CancelScope(shield=begun):
                    count, prepared = await self._read(message, due_ms)
                    await self._pipeline.ask(
                        self._check_backs(prepared, batch.origin_sequence[places[:count]], timers[places[:count]]),
                        self._next_timers(batch, timers, places[:count]),
                        batch.sequence[places[:count]],
                    )
            except (DelayServerError, DiskFullError):
                if not begun:
                    raise
                answer[places] = _REFUSED
                return
            answer[places[:count]] = RECORDED
            self.asked += len(prepared)
            places, begun = places[count:], True
            if trio.current_effective_deadline() <= trio.current_time():
                answer[places] = _REFUSED
                return

    async def _read(self, message: I64, due_ms: I64) -> tuple[int, MessageBatch]:
        read = partial(self._pipeline.locator.read_first, message, due_ms, READ_BYTES_MAX)
        if len(message) <= INLINE_MESSAGES_MAX:
            return read()
        return await self._workers.run(read)

    def _next_timers(self, batch: StoredBatch, timers: NDArray[Any], places: NDArray[np.intp]) -> list[MessageBatch]:
        """The timers that replace these, in one batch for each pause: after a downtime each transaction gets its whole
        pause again."""
        following = timers[places].copy()
        following["check"] += 1
        now_ms, subject = self._now_ms(), int(batch.subject[0])
        batches = []
        for pause_ms in np.unique(following["check_after_ms"]).tolist():
            mine = following["check_after_ms"] == pause_ms
            rows = places[mine]
            batches.append(
                timer_batch(
                    following[mine],
                    now_ms + pause_ms,
                    subject,
                    batch.origin_sequence[rows],
                    (batch.sequence[rows], batch.due_ms[rows]),
                )
            )
        return batches

    def _check_backs(self, prepared: MessageBatch, transaction: I64, timers: NDArray[Any]) -> MessageBatch | None:
        """The check-backs of the transactions that could be read: internal records, each with the message that it asks
        about. One expires when the next one comes: so a group that is gone finds one of each transaction."""
        if not len(prepared):
            return None
        order = np.argsort(transaction, kind="stable")
        mine = timers[order[np.searchsorted(transaction, prepared.sequence, sorter=order)]]
        properties = self._properties(prepared, mine)
        now_ms = self._now_ms()
        return MessageBatch.filled(
            len(prepared),
            due_ms=now_ms,
            expires_ms=now_ms + mine["check_after_ms"],
            origin_sequence=prepared.sequence,
            subject=mine["check_subject"].astype(np.uint32),
            ids=prepared.ids,
            ids_length=prepared.ids_length,
            properties=b"".join(properties),
            properties_length=np.array([len(one) for one in properties], np.uint32),
            bodies=prepared.bodies,
            bodies_length=prepared.bodies_length,
        )

    def _properties(self, prepared: MessageBatch, timers: NDArray[Any]) -> list[bytes]:
        """One map for each. A loop over messages: a check-back is the exception, and each has a receipt of its own."""
        offsets = ragged_offsets(prepared.properties_length).tolist()
        packed = bytes(prepared.properties)
        receipts = format_receipts(self._server_id, prepared.due_ms, prepared.sequence)
        columns = zip(
            receipts,
            prepared.subject.tolist(),
            prepared.due_ms.tolist(),
            timers["check"].tolist(),
            timers["checks_max"].tolist(),
            strict=True,
        )
        maps = []
        for row, (receipt, subject, due_ms, check, checks_max) in enumerate(columns):
            own = packed[offsets[row] : offsets[row + 1]]
            properties: dict[str, str] = msgpack.unpackb(own) if own else {}
            properties |= {
                TRANSACTION: receipt,
                TRANSACTION_SUBJECT: self._names.name(subject),
                TRANSACTION_DUE_MS: str(due_ms),
                TRANSACTION_CHECK: str(check),
                TRANSACTION_CHECKS_MAX: str(checks_max),
            }
            maps.append(msgpack.packb(properties))
        return maps

    def _now_ms(self) -> int:
        return -(-self._clock.now_us() // 1000)


class Pipeline:
    """The way of check-backs and timers back to the begin of the pipeline."""

    def __init__(self, commit: GroupCommit, decided: Decided, room: KeptRoom, locator: Locator) -> None:
        self._commit = commit
        self._holds = decided.holds
        self._room = room
        self.locator = locator

    async def ask(self, check_backs: MessageBatch | None, following: list[MessageBatch], timers: I64) -> None:
        """Commits check-backs and the timers behind them in one record. `timers` i64[n] are those that they replace: no part
        loads them until the replay has given them their outcome. Raises DiskFullError, and the named
        error of the commit: nothing was done."""
        parts = following if check_backs is None else [check_backs, *following]
        batch = MessageBatch.concatenate(parts)
        size = len(batch.bodies) + len(batch.properties) + len(batch.ids) + ROW_OVERHEAD_BYTES * len(batch)
        self._room.require_redelivery(size)
        with trio.CancelScope(shield=True):  # the caller learns of each commit, so it does not try again
            self._holds.hold(timers)
            try:
                await self._commit.commit(batch)
            except DelayServerError:
                self._holds.release(timers)
                raise
