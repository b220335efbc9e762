"""Reads message_log for the replay, around damage."""

from __future__ import annotations

from functools import partial

from delayserver.replay.placing_waits import READ_AGAIN_MS
from delayserver.runtime.runtime import Runtime
from store.errors import CorruptionError, DiskError, UnreadableError
from store.failed_reads import PATIENCE_MS, READ_TRIES
from store.logs.message_log import LogEntry, MessageLog

# Far behind, larger rounds: rows spread over many files then come in fewer, longer records.
ROUND_BYTES_BEHIND = 16 << 20
FAR_BEHIND_BYTES = 64 << 20
ROUND_BYTES_FAR_BEHIND = 32 << 20


class MessageLogReader:
    """Reads the next entries. `met_damage`: whether it passed some over since the start."""

    def __init__(self, log: MessageLog, runtime: Runtime) -> None:
        self._log = log
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._damage = runtime.damage
        self.met_damage = False
        # How long the replay still waits for bytes that the disk cannot read. Beside that, each place has some tries. So
        # many bad sectors do not take a minute each. A place that is read after all restores it, and so does the end.
        self._patience_ms = PATIENCE_MS

    async def read(self, position: int, stop: int) -> list[LogEntry]:
        """The next entries, around damage; none at the end. No round comes back to what was passed over, so the replay
        waits where the disk may read it soon."""
        if position >= stop:
            self._patience_ms = PATIENCE_MS
        size = ROUND_BYTES_FAR_BEHIND if stop - position > FAR_BEHIND_BYTES else ROUND_BYTES_BEHIND
        failed = 0
        while position < stop:
            try:
                entries = await self._workers.run(partial(self._log.read, position, stop, size))
            except (CorruptionError, DiskError) as error:
                self._damage.report(error)
                waits = isinstance(error, DiskError)
                if isinstance(error, UnreadableError):
                    failed += 1
                    self._patience_ms -= READ_AGAIN_MS
                    waits = failed < READ_TRIES or self._patience_ms > 0
                if waits:
                    await self._clock.sleep_ms(READ_AGAIN_MS)
                    continue
            else:
                if failed:
                    self._patience_ms = PATIENCE_MS
                return entries
            self.met_damage = True
            following = await self._workers.run(partial(self._log.skip_damage, position))
            if following > position:  # not so where the disk reads it again
                position, failed = following, 0
        return []
