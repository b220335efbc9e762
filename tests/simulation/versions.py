"""The programs of a shard's members. In some seeds one of them is older. It is upgraded between two of its lives, and
another one may be put back. The log's version rises when the map shows that all members read the higher one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from delayserver.protocol.schema.shard_map import ShardMap
from store.shared.payload import LOG_VERSION
from tests.simulation.clocks import SimulatedTime
from tests.simulation.failures import SimulationFailure
from tests.simulation.members import Member

# Seeds in which programs differ; of those, which lives of an older member are upgraded, and of a newer one put back.
MIXED_SHARE = 0.5
STAYS_SHARE = 0.5
UPGRADED_SHARE, PUT_BACK_SHARE = 0.4, 0.1
# How late the members see a change of the map.
SEEN_S_MAX = (0.0, 0.3, 5.0)
STOPPED = "UpgradeNeededError"


class Versions:
    """Chooses the program of each life, and shows it in the map of all members."""

    def __init__(
        self,
        members: Sequence[Member],
        time: SimulatedTime,
        chance: Random,
        note: Callable[..., None],
        mixed_share: float = MIXED_SHARE,
    ) -> None:
        self._members = members
        self._time = time
        self._chance = chance
        self._note = note
        self.mixed = chance.random() < mixed_share
        self._announced: dict[str, int] = {}
        self._shown = 0
        if self.mixed:
            chance.choice(members).reads = 0
        # Whether an older member stays so up to the end: the log has nothing new, whatever is given up.
        self.stays = self.mixed and chance.random() < STAYS_SHARE

    def next_life(self, member: Member, *, calm: bool) -> None:
        """A process of a member starts, and announces itself. One that had to stop for its program is upgraded."""
        chance = self._chance
        stays = self.stays and not member.reads
        if (calm and not stays) or member.died_of.startswith(STOPPED):
            member.reads = LOG_VERSION
        elif self.mixed and not stays and member.lives:
            changes = chance.random() < (PUT_BACK_SHARE if member.reads else UPGRADED_SHARE)
            member.reads = LOG_VERSION - member.reads if changes else member.reads
        self._announced[member.name] = member.reads
        self._note("world", "announces", member=member.name, reads=member.reads)
        self._time.at(self._time.now_s + chance.choice(SEEN_S_MAX) * chance.random(), self._show)

    def _show(self) -> None:
        self._shown += 1
        lowest = min(self._announced.values())
        for member in self._members:
            member.show(ShardMap(self._shown, [], []), lowest)

    def look(self) -> None:
        """No member has read on behind a barrier that its program does not read. Raises SimulationFailure."""
        for member in self._members:
            server = member.server
            parts = server.parts.cluster if server is not None and member.open.is_set() else None
            if parts is not None and parts.standing.barrier.value > member.reads:
                raise SimulationFailure(f"{member.name} reads on behind a barrier that its program does not read")

    def upgrade_all(self) -> None:
        """Older processes end: the next life of each has the newer program."""
        self.stays = False
        for member in self._members:
            if not member.reads and member.open.is_set():
                member.crash(power=False)
