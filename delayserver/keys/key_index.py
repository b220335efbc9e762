"""The key index of a running server: the round step that adds messages, and the search by keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import trio

from delayserver.protocol.errors import KeysIncomplete
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.positions import Positions
from delayserver.state.replay_round import Round
from store.errors import CorruptionError, DiskError, DiskFullError, StoreError
from store.keys.key_rows import KeyRows, key_rows, name_keys, newest_first, no_rows
from store.keys.key_table import KeyTable
from store.records.batches import I64, U64, MessageBatch
from store.records.column_batch import has_any

# Rows in memory that go to disk before the next checkpoint: 24 MB.
YOUNG_ROWS_MAX = 1 << 20
# A client that asks for an id while the index is made asks again after this time.
RETRY_AFTER_MS = 1_000


class KeyIndex:
    """Round → rows; keys → messages that may bear them. `table` is None while there is no index.

    `work` is rung when `KeyUpkeep` has something to do."""

    def __init__(self, table: KeyTable | None, positions: Positions, runtime: Runtime) -> None:
        """`table`: as the start found it, or None where it has to be made."""
        self.table = table
        self.work = Bell()
        self._positions = positions
        self._workers = runtime.workers
        self._damage = runtime.damage
        self._writing = trio.Lock()
        # A start brings rounds again that a run has already.
        self._added = 0 if table is None else table.covered

    # -- rows

    def publish(self, done: Round) -> None:
        """Add the messages of a round that have an id."""
        if self.table is None or done.messages is None:
            return
        self.table.add(rows_of(done.messages, self._added))
        self._added = max(self._added, done.last_sequence)
        if self.table.young_rows > YOUNG_ROWS_MAX:
            self.work.ring()

    async def make_durable(self) -> None:
        """Write the rows of memory to a run: before each checkpoint, so that the index covers what the checkpoint covers.

        A disk that refuses stops no checkpoint. Then the rows stay in memory, and a crash before the next checkpoint costs
        the time to make the index again."""
        async with self._writing:
            table, covered = self.table, self._positions.replayed_sequence.value
            if table is None or (not table.young_rows and covered <= table.covered):
                return
            captured, written = table.capture(covered), False
            try:
                with trio.CancelScope(shield=True):
                    await self._workers.run(partial(table.write, captured))
                written = True
            except DiskFullError:
                pass  # `Housekeeping` tells it
            except StoreError as error:
                self._damage.report(error, own=False)
            finally:
                table.settle_capture(captured, written=written)
        self.work.ring()

    # -- another table

    def start_over(self) -> None:
        """Give the index up: it is made again. No search finds anything until then."""
        table, self.table = self.table, None
        if table is not None:
            table.close()
        self.work.ring()

    async def use(self, make: Callable[[], KeyTable]) -> None:
        """Use a new table, which gets all rounds from now on. Raises the errors of `make`."""
        async with self._writing:
            assert self.table is None
            self.table, self._added = await self._workers.run(make), 0

    def close(self) -> None:
        """Closes the files, without a sync."""
        if self.table is not None:
            self.table.close()

    def give_up(self, table: KeyTable, error: CorruptionError | DiskError) -> None:
        """The files of a table cannot be read: report it, and make the index again."""
        if self.table is table:
            self._damage.report(error, own=False)
            self.start_over()

    # -- searches

    async def find(self, keys: U64, newest: int) -> tuple[I64, KeyRows]:
        """The last `newest` messages that may bear each of n keys, of all that are accepted: positions in `keys` i64[m]
        ascending, and the rows, of each key the newest first. Raises KeysIncomplete."""
        await self._positions.replayed_sequence.reached(self._positions.accepted_sequence.value)
        table = self._complete_table()
        found = table.find_young(keys, newest)  # first: a row that moves to a run meanwhile is found twice
        try:
            if table.run_count:
                found += await self._workers.run(partial(table.find_in_runs, keys, newest))
        except (CorruptionError, DiskError) as error:
            self.give_up(table, error)
            raise _incomplete() from error
        return newest_first(found)

    @property
    def has_gaps(self) -> bool:
        """Whether damage was passed over when the index was made, so that a message may be missing."""
        return self.table is not None and self.table.gaps

    def _complete_table(self) -> KeyTable:
        if self.table is None or not self.table.complete:
            raise _incomplete()
        return self.table


def rows_of(messages: MessageBatch, behind: int) -> KeyRows:
    """The rows of messages with an id and a sequence above `behind`. Internal records have none."""
    if not has_any(messages.id_hash) or not len(messages):
        return no_rows()
    wanted = messages.id_hash != 0
    if has_any(messages.origin_sequence):
        wanted &= messages.origin_sequence == 0
    if int(messages.sequence[0]) <= behind:
        wanted &= messages.sequence > behind
    rows = np.flatnonzero(wanted)
    key = name_keys(messages.id_hash[rows], messages.subject[rows])
    return key_rows(key, messages.sequence[rows], messages.due_ms[rows])


def _incomplete() -> KeysIncomplete:
    return KeysIncomplete(
        "the index of ids is being made; a receipt, or an id with its due time, finds the message now",
        retry_after_ms=RETRY_AFTER_MS,
    )
