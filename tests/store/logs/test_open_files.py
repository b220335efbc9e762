"""The table of open segments gives descriptors back when another part of the process needs one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from store.disk.filesystem import RealFileSystem
from store.errors import DiskError, DiskFullError, TooManyFilesError
from store.logs.open_files import OpenFiles
from store.records.segment import FileHeader, Segment

SERVER_ID = 7


class Table:
    """An `OpenFiles` on real files, by number."""

    def __init__(self, fs: RealFileSystem, directory: Path) -> None:
        self.opened = 0
        self._fs = fs
        self._directory = directory
        self.files: OpenFiles[int] = OpenFiles(64, self._open)
        fs.relieve_with(self.files.relieve)

    def _open(self, number: int) -> Segment:
        self._fs.open(f"{self._directory}/{number}", create=True).close()
        self.opened += 1
        return Segment.open_by_name(self._fs, f"{self._directory}/{number}", FileHeader(1, SERVER_ID, number))

    def use(self, number: int) -> None:
        self.files.unpin(self.files.pin(number))


def lacking(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the system refuse the next `times` opens for lack of descriptors."""
    left, real = [times], os.open

    def refuse(*arguments: object) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)


def test_the_older_half_of_the_idle_files_is_closed_for_a_file_that_finds_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    table = Table(fs, tmp_path)
    for number in range(8):
        table.use(number)
    pinned = table.files.pin(0)
    lacking(monkeypatch, 1)
    fs.open(f"{tmp_path}/other", create=True).close()
    assert [table.files.is_open(number) for number in range(8)] == [True, *[False] * 4, *[True] * 3]
    table.files.unpin(pinned)
    table.files.check_invariants()
    table.files.close()


def test_a_table_without_idle_files_cannot_help_and_the_error_can_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    table = Table(fs, tmp_path)
    pinned = table.files.pin(0)
    lacking(monkeypatch, 1)
    with pytest.raises(TooManyFilesError, match="ulimit -n") as raised:
        table.use(1)
    assert isinstance(raised.value, DiskFullError) and isinstance(raised.value, DiskError)
    table.use(1)
    table.files.unpin(pinned)
    table.files.close()


def test_a_table_that_is_gone_is_not_kept_for_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RealFileSystem()
    table = Table(fs, tmp_path)
    table.use(0)
    table.files.close()
    del table
    lacking(monkeypatch, 1)
    with pytest.raises(TooManyFilesError):
        fs.open(f"{tmp_path}/other", create=True)
