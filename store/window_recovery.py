"""Taking over the files of a log after a start: from a checkpoint's marks, scanning only what lies behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic

from store.errors import CorruptionError
from store.record import BadRecordError
from store.segment import FILE_HEADER_BYTES, Damage, ScanReport, Segment, is_unfinished
from store.window_files import MISPLACED_SUFFIX, MisplacedError, WindowFiles
from store.window_state import FileMark, FileState, Key, WindowDamage

_UNKNOWN = FileMark(FILE_HEADER_BYTES)
_RECORD_ALIGN = 8


class WindowRecovery(Generic[Key]):
    """`damages` collects corruption, `strangers` the paths in the folders that are not files of this log."""

    def __init__(self, files: WindowFiles[Key]) -> None:
        self._files = files
        self.damages: list[WindowDamage[Key]] = []
        self.strangers: list[str] = []

    def recover(self, key: Key) -> ScanReport:
        """Scan behind the known end, count on, cut a torn tail off, remember damages.

        A file that is missing, or never got its header, is not known any more afterwards. Raises FormatError for a file
        of another server or of a newer version.
        """
        state = self._files.states.get(key) or self._files.adopt(key, _UNKNOWN)
        if not self._files.fs.exists(state.path):
            self._lost(key, state, "the file is missing, but the checkpoint knows it")
            return ScanReport(0)
        try:
            return self._recover(key, state)
        except MisplacedError as error:
            self._misplaced(key, state, error)
            return ScanReport(0)

    def recover_all(self, known: Mapping[Key, FileMark]) -> None:
        """Take over every file there is: one listing a folder, one look at the size of a file, and a scan only where
        something lies behind the checkpoint."""
        fs, directory = self._files.fs, self._files.directory
        present: set[Key] = set()
        for day in fs.listdir(directory):
            for name in fs.listdir(f"{directory}/{day}"):
                if name.endswith(MISPLACED_SUFFIX):
                    self._set_aside(day, name)
                    continue
                key = self._files.layout.parse(day, name)
                if key is None:
                    self.strangers.append(f"{directory}/{day}/{name}")
                    continue
                present.add(key)
                self._take_over(key, known.get(key))
        # The process may have died between making a file and its first sync, and the machine not: the name is there, but
        # not on the disk yet, and the next checkpoint will point to it.
        if self._files.write:
            self._files.list_names(
                [state for key, state in self._files.states.items() if key in present and key not in known]
            )
        for key, mark in known.items():
            # One of nothing but its header may be gone: a start that removed it did not live to write a checkpoint.
            if key not in present and mark.end > FILE_HEADER_BYTES:
                self._lost(key, self._files.adopt(key, mark), "the file is missing, but the checkpoint knows it")

    def _set_aside(self, day: str, name: str) -> None:
        """An earlier process needed its place. As long as it lies here, what belongs to its former name is not known."""
        path = f"{self._files.directory}/{day}/{name}"
        key = self._files.layout.parse(day, name.removesuffix(MISPLACED_SUFFIX))
        if key is None:
            self.strangers.append(path)
            return
        detail = "another window's file bore this name and was set aside; find the window's own, or remove this one"
        error = self._files.misplaced[key] = CorruptionError(path, 0, detail)
        self.damages.append(WindowDamage(key, path, Damage(0, self._files.fs.size(path), error.detail)))

    def _take_over(self, key: Key, mark: FileMark | None) -> None:
        state = self._files.adopt(key, mark or _UNKNOWN)
        try:
            if mark is not None and self._files.fs.size(state.path) == mark.end:
                state.settled = True
            else:
                self._recover(key, state)
        except MisplacedError as error:
            self._misplaced(key, state, error)
        except FileNotFoundError:  # retired by the running server while a tool takes it over
            self._files.forget(key, state)

    def _recover(self, key: Key, state: FileState) -> ScanReport:
        files = self._files
        size, known_end = files.fs.size(state.path), state.durable.end
        if is_unfinished(files.fs, state.path):
            if known_end > FILE_HEADER_BYTES:
                self._lost(key, state, f"nothing is left of the {known_end} bytes that the checkpoint knows")
            else:
                files.forget(key, state)
            if files.write:
                files.fs.remove(state.path)
            return ScanReport(0)
        if size < known_end:
            self._damaged(key, state, Damage(size, known_end, "the file is shorter than the checkpoint says"))
            state = files.adopt(key, _UNKNOWN)  # what is left has to be counted anew
        segment = files.open_segment(key, state)
        if state.header_damage:
            self._damaged(key, state, Damage(0, FILE_HEADER_BYTES, state.header_damage))
        try:
            return self._scan(key, state, segment)
        finally:
            segment.close()

    def _scan(self, key: Key, state: FileState, segment: Segment) -> ScanReport:
        size = segment.end
        report = ScanReport(state.end)
        for header, batch in segment.records(state.end, size, report):
            try:
                self._files.count(state, batch)
            except BadRecordError as error:
                report.damages.append(Damage(header.offset, header.end, str(error)))
        for damage in report.damages:
            self._damaged(key, state, damage)
        # Records are aligned; a range of damage up to the end of a file may not be.
        state.end = -(-report.end // _RECORD_ALIGN) * _RECORD_ALIGN
        only_header = state.durable.end <= FILE_HEADER_BYTES  # or not known at all: maybe not synced either
        if self._files.write and (size != state.end or state.end > state.durable.end or only_header):
            if size != state.end:
                segment.file.truncate(state.end)
            # Also what was read back whole: after a mere restart it may be in the page cache only, and after a failed
            # sync in pages that the kernel takes for clean.
            segment.write_again(max(report.synced, state.durable.end), state.end)
            segment.file.datasync()
        state.durable = state.mark()
        state.settled = True
        return report

    def _damaged(self, key: Key, state: FileState, damage: Damage) -> None:
        self.damages.append(WindowDamage(key, state.path, damage))

    def _misplaced(self, key: Key, state: FileState, error: MisplacedError) -> None:
        self._files.misplaced[key] = error
        self._lost(key, state, error.detail)

    def _lost(self, key: Key, state: FileState, detail: str) -> None:
        self._damaged(key, state, Damage(0, state.durable.end, detail))
        self._files.forget(key, state)
