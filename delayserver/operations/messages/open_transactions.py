"""The operation `transactions`: lists the transactions that are neither committed nor rolled back, by pages.

Each open transaction has one timer without an outcome. So a list of the timers is a list of the transactions, also after a
restart, and no table of them is kept. The columns of schedule files are read, up to the latest timer that there may be.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.cancellation import PREPARED, Cancellation, Ends
from delayserver.operations.messages.locator import Locator
from delayserver.operations.messages.timer_files import WINDOW_ITEMS, TimerFiles, TimerPlace, rank_of
from delayserver.operations.sending.prepare import CHECK_SUFFIX, POLICIES
from delayserver.protocol.receipts import format_receipt
from delayserver.protocol.schema.transactions import ListTransactions, OpenTransaction, OpenTransactionsPage
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.positions import Positions
from store.logs.schedule_log import ScheduleKey, SubjectRows
from store.records.transaction_timer import TIMERS_SUBJECT, read_timers
from store.tables.names import OWN, Names

ROWS_SCANNED_MAX: Final = 262_144
"""Rows of schedule files that are read for a reply: some 50 ms of work in a thread. A page without a match ends here too."""

FILE_ROWS: Final = 256
"""What a file costs besides its rows, in rows."""

_TIMERS_AT_ONCE: Final = 256
_POLICY_NAMES: Final = {code: name for name, code in POLICIES.items()}


class OpenTransactions:
    """Lists open transactions by their timers, the next check first, as far as files are in that order."""

    def __init__(
        self,
        timers: TimerFiles,
        positions: Positions,
        cancellation: Cancellation,
        locator: Locator,
        names: Names,
        server_id: str,
        runtime: Runtime,
    ) -> None:
        self._timers = timers
        self._positions = positions
        self._cancellation = cancellation
        self._locator = locator
        self._names = names
        self._server_id = server_id
        self._workers = runtime.workers

    async def page(self, asked: ListTransactions, work: Work, access: Access = EVERYTHING) -> OpenTransactionsPage:
        """The first open transactions behind a place whose subjects are open to the client. All that were prepared before
        the call are on some page. One whose check-back is made, or whose day moves to minutes, may be on two pages.
        Raises InvalidArgument."""
        place = TimerPlace(0, 0, 0) if asked.after is None else TimerPlace.parse(asked.after)
        await self._positions.replayed_sequence.reached(self._positions.accepted_sequence.value)
        timers = self._names.code(OWN, TIMERS_SUBJECT)
        found: dict[str, OpenTransaction] = {}
        scanned = 0
        while timers and (key := self._timers.file_from(place)) is not None:
            rank = rank_of(key)
            behind = place.sequence if (place.start_ms, place.rank) == (key.start_ms, rank) else 0
            rows = await self._workers.run(partial(self._timers.rows, key, timers, behind, ROWS_SCANNED_MAX - scanned))
            scanned += rows.scanned + FILE_ROWS
            for start in range(0, len(rows.sequence), _TIMERS_AT_ONCE):
                for sequence, each in await self._open(key, rows.slice(start, start + _TIMERS_AT_ONCE), work):
                    if not access.may(each.subject):
                        continue
                    if len(found) == asked.max and each.receipt not in found:
                        return OpenTransactionsPage([*found.values()], str(place))
                    found[each.receipt] = each
                    place = TimerPlace(key.start_ms, rank, sequence)
            place = (
                TimerPlace(key.start_ms, rank + 1, 0)
                if rows.last is None
                else TimerPlace(key.start_ms, rank, rows.last)
            )
            if scanned >= ROWS_SCANNED_MAX:
                return OpenTransactionsPage([*found.values()], str(place))
            await work.items(WINDOW_ITEMS)
        return OpenTransactionsPage([*found.values()], None)

    async def _open(self, key: ScheduleKey, rows: SubjectRows, work: Work) -> list[tuple[int, OpenTransaction]]:
        """The open transactions of some timers of a file, each with the sequence of its timer."""
        rows = rows.take(await self._timers.without_outcome(rows, work))
        if not len(rows.sequence):
            return []
        batch = await self._workers.run(partial(self._timers.read, key, rows.sequence))
        timers, sound = read_timers(batch.bodies, batch.bodies_length)
        transaction, due_ms = batch.origin_sequence, np.ascontiguousarray(timers["due_ms"])
        located = await self._cancellation.locate(transaction, due_ms)
        state = await self._cancellation.decide(located, transaction, due_ms, Ends.NONE)
        # A copy that a retried `prepare` made has a timer as well.
        places = np.flatnonzero(sound & (state == PREPARED) & (located.message == transaction))
        accepted_us = await self._workers.run(partial(self._locator.accepted_us, transaction[places], due_ms[places]))
        result: list[tuple[int, OpenTransaction]] = []
        for place, accepted in zip(places.tolist(), accepted_us.tolist(), strict=True):
            await work.items()
            subject = self._names.name(int(located.subject[place]))
            result.append(
                (
                    int(batch.sequence[place]),
                    self._shown(int(transaction[place]), subject, accepted, int(batch.due_ms[place]), timers[place]),
                )
            )
        return result

    def _shown(self, sequence: int, subject: str, accepted_us: int, check_ms: int, timer: Any) -> OpenTransaction:
        due_ms = int(timer["due_ms"])
        return OpenTransaction(
            receipt=format_receipt(self._server_id, due_ms, sequence),
            subject=subject,
            due_ms=due_ms,
            group=_group(self._names, int(timer["check_subject"])),
            accepted_us=accepted_us,
            next_check_ms=check_ms,
            checks=int(timer["check"]) - 1,
            checks_max=int(timer["checks_max"]),
            policy=_POLICY_NAMES.get(int(timer["policy"]), ""),
        )


def _group(names: Names, check_subject: int) -> str:
    return names.name(check_subject).removesuffix(CHECK_SUFFIX) if check_subject else ""
