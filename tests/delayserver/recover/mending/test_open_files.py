"""A rebuild closes the files that it opens."""

from __future__ import annotations

import gc
import os

import pytest

from delayserver.recover.reading import capture
from tests.delayserver.recover.directories import Made, in_process


def test_a_rebuild_of_more_files_than_are_held_leaves_none_open(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in made.path.glob("schedule_log/*/*.log"):
        path.unlink()
    monkeypatch.setattr(capture, "HELD_MAX", 0)
    monkeypatch.setattr(capture, "HELD_SEGMENTS_MAX", 0)
    gc.collect()  # what a test before it left open is closed now, and not in the middle
    before = len(os.listdir("/proc/self/fd"))
    done = in_process("rebuild", str(made.path), "--yes")
    assert (done.code, len(os.listdir("/proc/self/fd"))) == (0, before), done
