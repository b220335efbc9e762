"""The replay of a start: what the checkpoint does not cover is placed, and what the files lost is found again."""

from __future__ import annotations

from functools import partial

from delayserver.keys.key_index import KeyIndex
from delayserver.outcomes.outcome_recorder import OutcomeRecorder
from delayserver.replay.day_outcomes import DayOutcomes
from delayserver.replay.message_log_reader import MessageLogReader
from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.runtime.marks import Bell
from delayserver.runtime.room_wait import RoomWait
from delayserver.runtime.runtime import Runtime
from delayserver.startup.directory_opening import Opened, count_placed
from delayserver.startup.lost_outcomes import LostOutcomes
from delayserver.startup.orphans import OrphanSearch, sequences_behind
from delayserver.startup.replay_ahead import HeldCancels
from delayserver.state.counts.balance import Balance
from delayserver.state.decisions.decided import Decided
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows


class StartOutcomes:
    """The outcomes that the replay of a start brings, and those that files lost."""

    def __init__(self, lost: LostOutcomes, rounds: RoundOutcomes, days: DayOutcomes, recorder: OutcomeRecorder) -> None:
        self._lost = lost
        self._rounds = rounds
        self._days = days
        self._recorder = recorder

    @property
    def may_be_lost(self) -> bool:
        """Whether cancels of files that lost outcomes are still to be restored."""
        return bool(self._lost.wanted())

    async def finish(self) -> None:
        """Restores lost outcomes from message_log, and returns when all are durable. A window or day whose outcomes stay
        unknown is held back."""
        for key in await self._lost.restore():
            if key.coarse:
                self._days.show(key.start_ms)
        await self._rounds.finish_recovery()
        await self._recorder.flush()


class StartCounts:
    """The corrections of the balance for what message_log or schedule files have lost."""

    def __init__(
        self,
        opened: Opened,
        reader: MessageLogReader,
        balance: Balance,
        decided: Decided,
        windows: Windows,
        keys: KeyIndex,
        runtime: Runtime,
    ) -> None:
        """`keys`: made again where schedule files have messages that no round brings."""
        self._keys = keys
        files, found = opened.files, opened.found
        self._files = files
        self._found = found
        self._reader = reader
        self._balance = balance
        self._decided = decided
        self._book = windows.book
        self._retired = windows.retired
        self._search = OrphanSearch(files, found.checkpoint, windows.book, windows.book.window_ms, runtime)
        self._workers = runtime.workers

    @property
    def are_known(self) -> bool:
        """Without a checkpoint the files are counted when the replay is complete."""
        return not self._found.lost

    async def count_unreplayed(self, replayed_sequence: int) -> None:
        """Counts messages and internal records in schedule files that neither the checkpoint nor a round up to this sequence
        has counted: message_log has lost them."""
        if not self.are_known:
            return
        files, checkpoint = self._files, self._found.checkpoint

        def count() -> tuple[int, int, int]:
            replayed = sequences_behind(files.log, checkpoint.replay_offset)
            return count_placed(files, checkpoint.replayed_sequence, replayed)

        if self._reader.met_damage or files.log.damages:
            behind = await self._workers.run(count)
        else:
            behind = count_placed(files, replayed_sequence)
        self._balance.place(*behind)
        if any(behind):
            self._balance.subjects.doubt()
            self._keys.start_over()

    async def finish(self) -> None:
        """Leaves out orphans, and ends the counts of the start: the book takes all windows into account."""
        met_damage, balance = self._reader.met_damage, self._balance
        uncounted = await self._search.find(self._retired.has, everywhere=met_damage)
        self._decided.leave_out(uncounted.outcomes)
        # Behind damage in message_log, schedule files may have messages that no round has counted.
        if len(uncounted.outcomes) or uncounted.accepted or met_damage:
            balance.subjects.doubt()
        balance.place(uncounted.accepted, uncounted.internal, 0)
        balance.start_from(balance.placed)
        balance.subjects.end_replay()
        self._book.open()


class Recovery:
    """Brings the state to where the last process left it. The replayer and the recorder run meanwhile."""

    def __init__(
        self,
        positions: Positions,
        room: RoomWait,
        cancels: HeldCancels,
        outcomes: StartOutcomes,
        counts: StartCounts,
        loadable: Bell,
    ) -> None:
        """Nothing new is accepted yet. `loadable` is rung when all windows may be loaded."""
        self._positions = positions
        self._room = room
        self._cancels = cancels
        self._outcomes = outcomes
        self._counts = counts
        self._loadable = loadable
        # The highest sequence, and the end of message_log, at the start.
        self._sequence = positions.accepted_sequence.value
        self._end = positions.durable.value

    async def try_replay(self) -> bool:
        """Wait until all is replayed, True, or the replay waits for room, False."""
        replayed = self._positions.replayed
        await self._room.end_when_blocked(partial(replayed.reached, self._end))
        return replayed.value >= self._end

    def may_deliver_meanwhile(self) -> bool:
        """Not without a checkpoint: then the files are counted when the replay is complete. Not where a file of outcomes
        lost some: their cancels are restored when the replay is complete."""
        return self._counts.are_known and not self._outcomes.may_be_lost

    async def hold_cancels(self) -> None:
        """Hold what cancels end that are not replayed yet, so that the rest may be delivered before they are."""
        await self._cancels.hold()

    async def finish(self) -> None:
        """Replay what the checkpoint does not cover before anything may be loaded, or with its cancels held: a cancel
        among it must count."""
        await self._positions.replayed.reached(self._positions.durable.value)
        await self._counts.count_unreplayed(self._positions.replayed_sequence.value)
        self._positions.skip_unused(self._sequence)
        await self._outcomes.finish()
        await self._counts.finish()
        self._cancels.release()
        self._loadable.ring()
