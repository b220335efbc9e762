"""The line about a full disk names what is missing: bytes, descriptors, or room that the system keeps for others."""

from __future__ import annotations

import errno
import logging

import pytest

from delayserver.runtime.clock import SystemClock
from delayserver.runtime.room_wait import RoomWait
from store.disk.filesystem import refusal_of
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import DiskFullError, StoreError

MIB = 1 << 20


def said(free: int, needed: int, refusal: StoreError, caplog: pytest.LogCaptureFixture) -> str:
    assert isinstance(refusal, DiskFullError)
    room = RoomWait(MemoryFileSystem(free), "/data", "the start of the server", SystemClock())
    with caplog.at_level(logging.WARNING):
        room.full(needed, refusal)
    room.check_invariants()
    line = caplog.records[-1].getMessage()
    assert room.text in line or str(refusal) in room.text
    return line


def test_a_disk_too_small_for_what_the_call_asked_for_names_those_bytes(caplog: pytest.LogCaptureFixture) -> None:
    line = said(120 * MIB, 64 * 1024, DiskFullError("cannot allocate", 256 * MIB), caplog)
    assert f"needs about {256 * MIB} bytes on a disk with {120 * MIB} bytes free" in line
    assert f"at least {136 * MIB} bytes more" in line


def test_room_that_the_system_refuses_to_give_is_not_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    line = said(120 * MIB, 64 * 1024, refusal_of(errno.EDQUOT, "/data/message_log/0.log", "write"), caplog)
    assert "quotas" in line and "/data/message_log/0.log: cannot write" in line and "bytes more" not in line


def test_a_lack_of_descriptors_is_no_lack_of_room(caplog: pytest.LogCaptureFixture) -> None:
    line = said(0, 64 * 1024, refusal_of(errno.EMFILE, "/data/a", "open"), caplog)
    assert "ulimit -n" in line and "bytes" not in line and "disk full" not in line


def test_a_file_system_says_how_much_an_allocation_asked_for() -> None:
    disk = MemoryFileSystem(MIB)
    with pytest.raises(DiskFullError) as raised:
        disk.open("a", create=True).allocate(2 * MIB)
    assert raised.value.needed_bytes == 2 * MIB
