"""Carries out a plan of `repair` or `rebuild`, under the lock of the directory.

Every byte that is taken away is in a quarantine file, synced, before the file is touched. Records know their place, so
a file without one of its ranges is written anew beside the old one and put in its place at once; message_log, whose
offsets others point to, gets a placeholder of the same length instead. Interrupted anywhere, it can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

from delayserver.recover.checking.days_derived import rebuild_days
from delayserver.recover.checking.log_check import UNITS_AT_ONCE
from delayserver.recover.mending.mended_marks import Marks
from delayserver.recover.mending.plan import KEYS, Deed, MendingStep, Plan
from delayserver.recover.mending.quarantine import write_quarantine
from delayserver.recover.mending.repair_plan import MOVING
from delayserver.recover.mending.restore import Restore
from delayserver.recover.mending.rewriting import lost_name, lost_names, placeholders, with_lost_names, write_file
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Reader
from store.disk.filesystem import File, FileSystem, directory_of
from store.errors import CorruptionError
from store.records.file_header import FILE_NAMES, FileHeader
from store.tables.checkpoint import FILE_NAME as CHECKPOINT
from store.tables.identity import IDENTITY, LOCK, SEQUENCES, SequenceReservation, rebuild_identity
from store.tables.names import FILE_NAME as NAMES
from store.tables.names import NAMES_MAX, SUBJECT, Names

Tell = Callable[[str], None]
_OF_FILES = (
    Deed.CUT, Deed.REMOVE, Deed.HEADER, Deed.TAKE_OUT, Deed.FILL, Deed.CUT_BEHIND, Deed.MOVE_FILE,
)  # fmt: skip


@contextmanager
def locked(fs: FileSystem, path: str) -> Iterator[None]:
    """The directory for us alone. Raises LockedError: a server or another tool works on it."""
    lock = fs.lock(f"{path}/{LOCK}", b"delayserver recover")
    try:
        yield
    finally:
        lock.close()


def carry_out(taken: Capture, plan: Plan, tell: Tell = lambda _text: None) -> None:
    """Do the steps of a plan that was made of the same capture. The caller holds the lock.

    `tell` gets a line for each file that has changed. Raises DiskFullError (nothing was lost), StoreError.
    """
    _Mender(taken, plan, tell).run()


class _Mender:
    """Carries out one plan."""

    def __init__(self, taken: Capture, plan: Plan, tell: Tell) -> None:
        self._taken = taken
        self._fs = taken.fs
        self._plan = plan
        self._tell = tell
        self._marks = Marks(taken)

    def run(self) -> None:
        """All steps, in an order that an interruption does not hurt: the checkpoint comes last."""
        renamed = self._plan.steps_of(Deed.RENAME)
        self._marks.forget({path for step in renamed for path in (step.path, step.target)})
        self._rename(renamed)
        for path, steps in groupby(self._plan.steps_of(*_OF_FILES), key=lambda step: step.path):
            self._mend_file(path, list(steps))
        made = {step.path.removeprefix(f"{self._taken.path}/") for step in self._plan.steps_of(Deed.MAKE)}
        self._make_tables(made)
        self._restore()
        if SEQUENCES in made:
            above = self._plan.highest_sequence
            SequenceReservation.rebuild(self._fs, self._taken.path, self._taken.server_id, above=above)
            self._tell(f"{self._taken.path}/{SEQUENCES} is written anew, above {above}")
        if KEYS in made:
            self._fs.remove(f"{self._taken.path}/{KEYS}")
            self._fs.sync_directory(directory_of(f"{self._taken.path}/{KEYS}"))
            self._tell(f"{self._taken.path}/{KEYS} is removed")
        if CHECKPOINT in made:
            self._tell(self._marks.write_anew(self._plan))
        elif self._plan.changed():
            self._marks.recount()

    # -- files of records

    def _rename(self, steps: list[MendingStep]) -> None:
        """Two renames a file, so that two files that were swapped can change places. A file that an interrupted repair left
        between two names needs the second rename alone."""
        fs, between = self._fs, dict[str, str]()
        for step in steps:
            between[step.path] = _between(fs, step.path)
            if between[step.path] != step.path:
                fs.replace(step.path, between[step.path])
        for step in steps:
            fs.make_directory(directory_of(step.target))
            fs.replace(between[step.path], step.target)
            self._tell(f"{step.path} is {step.target} now")
        for folder in {directory_of(path) for step in steps for path in (step.path, step.target)}:
            fs.sync_directory(folder)

    def _mend_file(self, path: str, steps: list[MendingStep]) -> None:
        fs = self._fs
        if any(step.deed == Deed.REMOVE for step in steps):
            fs.remove(path)
            fs.sync_directory(directory_of(path))
            self._tell(f"{path} is removed")
            return
        taken_out = [step for step in steps if step.deed == Deed.TAKE_OUT]
        file = fs.open(path)
        try:
            for step in steps:
                if step.deed != Deed.CUT or _holds_anything(file, step.start, step.stop):
                    end = min(step.stop, file.size())
                    if end <= step.start:
                        self._tell(
                            f"{path}: of bytes {step.start} to {step.stop} nothing is left: the file ended before"
                        )
                        continue
                    aside = write_quarantine(fs, self._taken.path, file, step.start, end, str(step.detail))
                    self._tell(f"{path}: bytes {step.start} to {end} are in {aside}")
                    if end < step.stop:
                        self._tell(f"{path}: of bytes {end} to {step.stop} nothing is left: the file ended there")
            if any(step.deed == Deed.MOVE_FILE for step in steps):
                fs.remove(path)
                fs.sync_directory(directory_of(path))
                return
            for step in steps:
                if step.deed == Deed.HEADER:
                    assert step.header is not None
                    file.pwrite(0, [step.header.encode()])
                elif step.deed == Deed.FILL:
                    for position, data in placeholders(step.start, step.stop):
                        file.pwrite(position, data)
            file.datasync()
            # A file that is written anew keeps its torn end until then. A header in the torn end says how far the file was
            # durable; without it, damage before it would look torn too. In message_log placeholders go first.
            for step in [] if taken_out else steps:
                if step.deed in (Deed.CUT, Deed.CUT_BEHIND):
                    file.truncate(step.start)
            file.datasync()
        finally:
            file.close()
        if taken_out:
            self._write_without(path, taken_out[0])

    def _write_without(self, path: str, step: MendingStep) -> None:
        """The same records behind one another, without what does not verify."""
        assert step.header is not None and step.expected is not None
        synced = step.expected.synced

        def forget_if_longer(end: int) -> None:
            if end >= synced:  # the old mark would look right for the new file, and its place may be inside a record
                self._marks.forget({path})

        size = self._fs.size(path)
        whole = (batch for _, batch in Reader(self._taken).batches(path, size, min(synced, size)))
        batches = with_lost_names(whole) if step.header.kind == FILE_NAMES else whole
        write_file(self._fs, path, step.header, batches, forget_if_longer)
        self._marks.forget({path})
        self._tell(f"{path} is written anew")

    # -- what rebuild makes anew

    def _make_tables(self, made: set[str]) -> None:
        fs, root, server_id, code_max = self._fs, self._taken.path, self._taken.server_id, self._plan.code_max
        if IDENTITY in made:
            rebuild_identity(fs, root, server_id)
            self._tell(f"{root}/{IDENTITY} is written anew")
        if NAMES in made:
            header = FileHeader(FILE_NAMES, server_id, 0)
            write_file(fs, f"{root}/{NAMES}", header, [lost_names(1, code_max)] if code_max else [])
            self._tell(f"{root}/{NAMES} is written anew, with stand-ins for {code_max} names")
        for step in self._plan.steps_of(Deed.ADD_NAMES):
            lost = self._add_lost_names()
            self._tell(f"{step.path} has stand-ins for {lost} names that it lost")
        if "days" in made:
            self._taken.tables.use_days(rebuild_days(self._taken))
            self._tell(f"{root}/days is written anew")

    def _add_lost_names(self) -> int:
        """Behind the last name that is left, or the next start would give the codes of the lost ones to others."""
        taken, code_max = self._taken, self._plan.code_max
        names = Names.open(taken.fs, taken.path, taken.server_id, max(NAMES_MAX, code_max))
        try:
            lost = range(len(names) + 1, code_max + 1)
            names.intern(SUBJECT, [lost_name(code) for code in lost])
        finally:
            names.close()
        return len(lost)

    def _restore(self) -> None:
        """Units some at a time: memory holds the sequences of those."""
        restore = Restore(self._taken, self._marks, self._tell)
        units = [step.unit for step in self._plan.steps_of(Deed.RESTORE)]
        for begin in range(0, len(units), UNITS_AT_ONCE):
            restore.run(units[begin : begin + UNITS_AT_ONCE])
        for step in self._plan.steps_of(Deed.FILL_UP):
            assert step.key is not None
            restore.fill_up(step.key)


def _between(fs: FileSystem, path: str) -> str:
    """A free name for a file on its way to another name. The next repair finds every file whose name ends like it."""
    if path.endswith(MOVING):
        return path
    between = f"{path}{MOVING}"
    while fs.exists(between):
        between += MOVING
    return between


def _holds_anything(file: File, start: int, stop: int) -> bool:
    try:
        return any(file.pread(start, stop - start))
    except CorruptionError:  # the disk cannot read it, so it may hold something
        return True
