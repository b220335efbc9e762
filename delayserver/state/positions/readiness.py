"""How far a start has come, and how requests are answered meanwhile. State only: no tasks, no files.

The stages follow each other: `OPENING` (the files are being opened), `REPLAYING` (message_log is being replayed),
`FOLLOWING` (another member of the cluster leads), `DELIVERING` (the replay waits for room, what is placed already goes out),
`READY`. A start may leave one out, but it never goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import trio

from delayserver.protocol.errors import DelayServerError, NotReady, ShuttingDown
from delayserver.runtime.room_wait import RoomWait

# A client that asks again this often costs nothing, and it notices a start of a second at once.
RETRY_AFTER_MS = 100
# A full disk is mended by a person.
RETRY_AFTER_FULL_MS = 1000
# A server that stops is there again after a second or more.
STOP_AGAIN_MS = 1000


class Stage(IntEnum):
    """How far a start has come."""

    OPENING = 0
    REPLAYING = 1
    FOLLOWING = 2
    DELIVERING = 3
    READY = 4


_REASONS = {
    Stage.OPENING: "the server is opening its data directory",
    Stage.REPLAYING: "the server is replaying what was accepted before its start",
    Stage.FOLLOWING: "this server follows: another member of the cluster leads",
    Stage.DELIVERING: "the server is replaying what was accepted before its start",
    Stage.READY: "",
}


class Readiness:
    """The stage of this start, and what it waits for."""

    __slots__ = ("_pause", "_stop_refusal", "_waits", "stage", "stopping")

    def __init__(self, waits: tuple[RoomWait, ...]) -> None:
        """`waits`: the parts of a start that may wait for room."""
        self.stage = Stage.OPENING
        # Set when a clean stop begins, at any stage.
        self.stopping = trio.Event()
        self._waits = waits
        self._pause: Callable[[], str] = lambda: ""
        self._stop_refusal: Callable[[], DelayServerError] = _stopping

    def pause_while(self, why: Callable[[], str], stop_refusal: Callable[[], DelayServerError]) -> None:
        """Whenever `why` gives a reason, a server whose start is over serves nothing. While a clean stop runs, who sends
        something new is refused by `stop_refusal`."""
        self._pause = why
        self._stop_refusal = stop_refusal

    def enter(self, stage: Stage) -> None:
        """The start has come to this stage."""
        assert stage > self.stage, f"a start never goes back from {self.stage} to {stage}"
        self.stage = stage

    @property
    def ready(self) -> bool:
        """Whether the start is over."""
        return self.stage is Stage.READY

    @property
    def serves(self) -> bool:
        """Whether all requests are served: the start is over, no stop has begun, and a member may act as the primary."""
        return self.ready and not self.stopping.is_set() and not self._pause()

    @property
    def reason(self) -> str:
        """Why requests are refused, for people; empty when the server is ready."""
        pause = self._pause()
        return pause and (self._waits_for or pause) if self.ready else self._waits_for or _REASONS[self.stage]

    @property
    def _waits_for(self) -> str:
        return next((f"{wait.text}; it goes on by itself" for wait in self._waits if wait.waiting), "")

    def refusal(self) -> NotReady:
        """The answer to a request that cannot be served yet."""
        return NotReady(self.reason, retry_after_ms=RETRY_AFTER_FULL_MS if self._waits_for else RETRY_AFTER_MS)

    def stop_refusal(self) -> DelayServerError:
        """The answer to who sends something new while a clean stop runs."""
        return self._stop_refusal()

    def check_invariants(self) -> None:
        """A server that is not ready says why."""
        assert self.ready or self.reason


def _stopping() -> ShuttingDown:
    return ShuttingDown("the server is stopping", retry_after_ms=STOP_AGAIN_MS)
