"""Taking over the files of a log after a start: from a checkpoint's marks, scanning only what lies behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic

from store.errors import CorruptionError
from store.logs.window_files import MISPLACED_SUFFIX, MisplacedError, WindowFiles
from store.logs.window_state import FileMark, FileState, Key, Loss, WindowDamage, loss_between
from store.records.record import ALIGN, BadRecordError
from store.records.segment import FILE_HEADER_BYTES, Damage, ScanReport, Segment, is_unfinished

_UNKNOWN = FileMark(FILE_HEADER_BYTES)


class WindowRecovery(Generic[Key]):
    """`damages` collects corruption, `strangers` the paths in the folders that are not files of this log."""

    def __init__(self, files: WindowFiles[Key]) -> None:
        self._files = files
        self.damages: list[WindowDamage[Key]] = []
        self.strangers: list[str] = []
        # Files whose loss no checkpoint knows yet.
        self.newly_lost: set[Key] = set()

    def recover_all(self, known: Mapping[Key, FileMark], lost: Mapping[Key, Loss] | None = None) -> None:
        """Take over every file there is: one listing a folder, one look at the size of a file, and a scan only where
        something lies behind the checkpoint. `lost`: files that had lost rows before."""
        fs, directory = self._files.fs, self._files.directory
        self._files.lost.update(lost or {})
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

    def cut_unreadable_end(self, key: Key) -> None:
        """Cut off what the disk could not read at the end of a file, durably. Raises StoreError."""
        state = self._files.states[key]
        end = state.end
        for damage in reversed([found.damage for found in self.damages if found.key == key]):
            if damage.errno and damage.start >= FILE_HEADER_BYTES and -(-damage.stop // ALIGN) * ALIGN == end:
                end = damage.start
        if end == state.end:
            return
        segment = self._files.open_segment(key, state)
        try:
            segment.file.truncate(end)
            segment.file.datasync()
        finally:
            segment.close()
        state.move_end(end)
        state.note_durable(state.mark())

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
        # A file that had lost rows may have been put back by the operator: it is counted anew, whatever the mark says.
        again = key in self._files.lost
        state = self._files.adopt(key, _UNKNOWN if again else mark or _UNKNOWN)
        try:
            if not again and mark is not None and self._files.fs.size(state.path) == mark.end:
                state.settle()
            else:
                self._recover(key, state)
            if again and mark is not None and (left := self._left(key).end) < mark.end:
                self._damaged(key, state, Damage(left, mark.end, "the file is shorter than the checkpoint says"))
                self._note_loss(key, mark)
        except MisplacedError as error:
            self._misplaced(key, state, error)
        except FileNotFoundError:  # retired by the running server while a tool takes it over
            self._files.forget(key, state)

    def _recover(self, key: Key, state: FileState) -> None:
        files = self._files
        size, known_end = files.fs.size(state.path), state.durable.end
        if is_unfinished(files.fs, state.path):
            if known_end > FILE_HEADER_BYTES:
                self._lost(key, state, f"nothing is left of the {known_end} bytes that the checkpoint knows")
            else:
                files.forget(key, state)
            if files.write:
                files.fs.remove(state.path)
            return
        if size < known_end:
            self._damaged(key, state, Damage(size, known_end, "the file is shorter than the checkpoint says"))
            known = state.durable
            state = files.adopt(key, _UNKNOWN)  # what is left has to be counted anew
            self._read_back(key, state)
            self._note_loss(key, known)
            return
        self._read_back(key, state)

    def _read_back(self, key: Key, state: FileState) -> None:
        segment = self._files.open_segment(key, state)
        if state.header_damage:
            self._damaged(key, state, Damage(0, FILE_HEADER_BYTES, state.header_damage, state.header_errno))
        try:
            self._scan(key, state, segment)
        finally:
            segment.close()

    def _scan(self, key: Key, state: FileState, segment: Segment) -> None:
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
        state.move_end(-(-report.end // ALIGN) * ALIGN)
        only_header = state.durable.end <= FILE_HEADER_BYTES  # or not known at all: maybe not synced either
        if self._files.write and (size != state.end or state.end > state.durable.end or only_header):
            if size != state.end:
                segment.file.truncate(state.end)
            # Also what was read back whole: after a mere restart it may be in the page cache only, and after a failed
            # sync in pages that the kernel takes for clean.
            segment.write_again(max(report.synced, state.durable.end), state.end)
            segment.file.datasync()
        state.note_durable(state.mark())
        state.settle()

    def _damaged(self, key: Key, state: FileState, damage: Damage) -> None:
        self.damages.append(WindowDamage(key, state.path, damage))

    def _misplaced(self, key: Key, state: FileState, error: MisplacedError) -> None:
        self._files.misplaced[key] = error
        self._damaged(key, state, Damage(0, state.durable.end, error.detail))
        self._files.forget(key, state)

    def _lost(self, key: Key, state: FileState, detail: str) -> None:
        self._damaged(key, state, Damage(0, state.durable.end, detail))
        self._files.forget(key, state)
        self._note_loss(key, state.durable)

    def _left(self, key: Key) -> FileMark:
        state = self._files.states.get(key)
        return state.mark() if state is not None else FileMark(0)

    def _note_loss(self, key: Key, known: FileMark) -> None:
        before = self._files.lost.get(key)
        loss = loss_between(known, self._left(key), before)
        if loss is not None and loss is not before:
            self._files.lost[key] = loss
            self.newly_lost.add(key)
