"""The replay of a start: what the checkpoint does not cover is placed, and what the files lost is found again."""

from __future__ import annotations

from functools import partial

from delayserver.server.parts import Parts
from delayserver.startup.directory_opening import count_placed
from delayserver.startup.lost_outcomes import LostOutcomes, cancels_in
from delayserver.startup.orphans import OrphanSearch, sequences_behind
from delayserver.startup.replay_ahead import read_ahead


class Recovery:
    """Brings the state to where the last process left it. The replayer and the recorder run meanwhile."""

    def __init__(self, parts: Parts) -> None:
        """`parts` are as they were opened: nothing new is accepted yet."""
        self._parts = parts
        self._files = parts.files
        self._found = parts.opened.found
        self._state = parts.state
        self._window_ms = parts.ground.settings.storage.window_ms
        self._workers = parts.ground.runtime.workers
        # The highest sequence, and the end of message_log, at the start.
        self._sequence = parts.state.positions.accepted_sequence.value
        self._end = parts.state.positions.durable.value

    async def try_replay(self) -> bool:
        """Wait until all is replayed, True, or the replay waits for room, False."""
        replayed = self._state.positions.replayed
        await self._parts.ground.outside.replay_room.end_when_blocked(partial(replayed.reached, self._end))
        return replayed.value >= self._end

    def may_deliver_meanwhile(self) -> bool:
        """Not without a checkpoint: then the files are counted when the replay is complete. Not where a file of outcomes
        lost some: their cancels are restored when the replay is complete."""
        lost = self._files.dispatch.lost.values()
        return not self._found.lost and all(loss.searched for loss in lost)

    async def hold_cancels(self) -> None:
        """Hold what cancels end that are not replayed yet, so that the rest may be delivered before they are."""
        log, position = self._files.log, self._found.checkpoint.replay_offset
        read = partial(read_ahead, log, max(position, log.first), log.synced)
        ahead = await self._workers.run(read, abandon_on_cancel=True)
        self._state.decided.holds.hold_at_start(ahead.cancelled)
        self._state.balance.start_from(self._found.checkpoint.totals.get("accepted", 0) + ahead.accepted)

    async def finish(self) -> None:
        """Replay what the checkpoint does not cover before anything may be loaded, or with its cancels held: a cancel
        among it must count."""
        state, replay = self._state, self._parts.replay
        await state.positions.replayed.reached(state.positions.durable.value)
        if not self._found.lost:
            behind = await self._count_unreplayed()
            state.balance.place(*behind)
            if any(behind):
                state.balance.subjects.doubt()
        state.positions.skip_unused(self._sequence)
        await self._restore_outcomes()
        await replay.round_outcomes.finish_recovery()
        await self._parts.outcomes.recorder.flush()
        search = OrphanSearch(
            self._files, self._found.checkpoint, state.book, self._window_ms, self._parts.ground.runtime
        )
        met_damage = replay.reader.met_damage
        uncounted = await search.find(state.windows.retired.has, everywhere=met_damage)
        state.decided.leave_out(uncounted.outcomes)
        # Behind damage in message_log, schedule files may have messages that no round has counted.
        if len(uncounted.outcomes) or uncounted.accepted or met_damage:
            state.balance.subjects.doubt()
        state.balance.place(uncounted.accepted, uncounted.internal, 0)
        state.balance.start_from(state.balance.placed)
        state.balance.subjects.end_replay()
        state.decided.holds.release_start()
        state.book.open()
        state.residency.loadable.ring()

    async def _count_unreplayed(self) -> tuple[int, int, int]:
        """Counts messages and internal records that are in schedule files, and that neither the checkpoint nor a round has
        counted: message_log has lost them."""
        files, checkpoint = self._files, self._found.checkpoint
        if not self._parts.replay.reader.met_damage and not files.log.damages:
            return count_placed(files, self._state.positions.replayed_sequence.value)

        def count() -> tuple[int, int, int]:
            replayed = sequences_behind(files.log, checkpoint.replay_offset)
            return count_placed(files, checkpoint.replayed_sequence, replayed)

        return await self._workers.run(count)

    async def _restore_outcomes(self) -> None:
        """Restores lost outcomes from message_log. A window or day whose outcomes stay unknown is held back."""
        files, replay = self._files, self._parts.replay
        record = replay.round_outcomes.record_missing_cancels
        lost = LostOutcomes(files.dispatch, files.days, self._state.decided, record, self._window_ms)
        wanted = lost.wanted()
        if not wanted:
            return
        search = partial(cancels_in, files.log, wanted, self._window_ms, self._found.checkpoint.replay_offset)
        for key in await lost.restore(await self._workers.run(search)):
            if key.coarse:
                replay.day_outcomes.show(key.start_ms)
