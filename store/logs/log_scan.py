"""Reads a range of message_log to its end, whatever is damaged in it. May run in a thread beside the writer."""

from __future__ import annotations

from collections.abc import Iterator

from store.errors import CorruptionError, DiskError, UnreadableError
from store.failed_reads import READ_TRIES
from store.logs.message_log import LogEntry, MessageLog

_READ_BYTES = 4 << 20


class LogScan:
    """The readable entries of a range. Iterate once; `has_gaps` is known after that."""

    def __init__(self, log: MessageLog, start: int, stop: int) -> None:
        """The range is from `start`, a record boundary, to `stop`. Both are logical offsets."""
        self._log = log
        self._offset = start
        self._stop = stop
        self.has_gaps = False
        """True if something in the range was skipped. The replayer reports it."""

    def __iter__(self) -> Iterator[LogEntry]:
        """Raises DiskError, if the disk goes on to refuse."""
        while self._offset < self._stop:
            entries = self._read()
            if not entries:
                return
            yield from entries
            self._offset = entries[-1].end

    def _read(self) -> list[LogEntry]:
        """The next entries: none at the end."""
        while self._offset < self._stop:
            try:
                return self._read_patiently()
            except CorruptionError:
                self.has_gaps = True
                self._offset = self._log.skip_damage(self._offset)
        return []

    def _read_patiently(self) -> list[LogEntry]:
        """A disk that fails for a moment is asked again."""
        for _ in range(READ_TRIES - 1):
            try:
                return self._log.read(self._offset, self._stop, _READ_BYTES)
            except (DiskError, UnreadableError):
                continue
        return self._log.read(self._offset, self._stop, _READ_BYTES)
