"""The server's facts about windows and days, beside their files."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.state.windows.closed_windows import ClosedWindows
from delayserver.state.windows.drains import Drains
from delayserver.state.windows.retired import Retired
from delayserver.state.windows.window_book import WindowBook
from wheel.cursors import LoadCursors


@dataclass(frozen=True, slots=True)
class Windows:
    """Which are incomplete (`book`), which are loaded (`cursors`), which went (`retired`), which accept nothing more
    (`closed`), which days are drained."""

    book: WindowBook
    cursors: LoadCursors
    retired: Retired
    closed: ClosedWindows
    drains: Drains
