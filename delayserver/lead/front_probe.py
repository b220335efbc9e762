"""Members ask each other's fronts. A primary whose front no member reaches hands over: clients do not reach it either.

It reaches the log, so it beats on, and no standby would claim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from delayserver.logs.events import EventLogger
from delayserver.protocol.errors import DelayServerError
from delayserver.runtime.clock import Clock
from delayserver.state.shard.fronts import Fronts, MemberFront
from delayserver.state.shard.standing import Standing

events = EventLogger()

PROBE_MS = 2_000
ANSWER_S = 2.0
"""A front that answers later is as good as none to most clients."""

Answers = Callable[[str], Awaitable[bool]]
"""Whether whoever listens at an address answers. It may take as long as it likes."""


class FrontProbe:
    """Asks the fronts of the other members of the shard, and hands over for its own."""

    def __init__(
        self,
        fronts: Fronts,
        standing: Standing,
        answers: Answers,
        hand_over: Callable[[str], Awaitable[object]],
        clock: Clock,
    ) -> None:
        """`hand_over` ends the leadership in favour of a member by name; it raises DelayServerError."""
        self._fronts = fronts
        self._standing = standing
        self._answers = answers
        self._hand_over = hand_over
        self._clock = clock

    async def run(self) -> None:
        """Ask until cancelled."""
        fronts, standing = self._fronts, self._standing
        while True:
            async with trio.open_nursery() as nursery:
                for front in fronts.others:
                    nursery.start_soon(self._ask, front)
            fronts.look(self._clock.monotonic_us())
            if fronts.heir and standing.took_over.is_set() and standing.leads:
                await self._leave()
            await self._clock.sleep_ms(PROBE_MS)

    async def _ask(self, front: MemberFront) -> None:
        answered = False
        with trio.move_on_after(ANSWER_S):
            answered = await self._answers(front.address)
        self._fronts.note(front.member, self._clock.monotonic_us(), answered=answered)

    async def _leave(self) -> None:
        fronts = self._fronts
        heir = fronts.heir
        events.warning(
            "front_unreached",
            "no member reaches {address}, so this primary hands over to {heir}",
            address=self._standing.seat.address,
            heir=heir,
        )
        fronts.note_hand_over(self._clock.monotonic_us())
        with suppress(DelayServerError):  # it leads no longer
            await self._hand_over(heir)
