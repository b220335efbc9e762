"""Damage of a member's disk while the member is down: bits flip, and files are lost. Other members have all that it had.

Such a member must name what is wrong: it refuses to start, or it reports the damage and never claims, also where all others
die. What a start does not read, `recover check` names. Then the operator makes its directory anew of another member. Where
nobody names anything, the member must be as good as the others, and all rules hold for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

import trio

from delayserver.recover.reading.findings import TORN
from tests.simulation.clocks import SimulatedTime
from tests.simulation.damage import Damage, Flip, recover_check
from tests.simulation.failures import SimulationFailure
from tests.simulation.members import Member

# Seeds with such damage, and how often a member that is down in them has it.
SHARE: Final = 0.3
STRIKES_SHARE: Final = 0.5
STRIKES_MAX: Final = 3
LOSSES_SHARE: Final = 0.5
# What is lost: one file of a folder, or one of these files. Locks and files in the making are no loss.
FOLDERS: Final = ("message_log", "schedule_log", "dispatch_log", "broker/store", "broker/queue")
FILES: Final = (
    "names.log", "days", "ledger.log", "checkpoint", "sequences", "identity", "cluster",
    "broker/progress.log", "broker/checkpoint", "broker/groups",
)  # fmt: skip
# With damage a member may end by these names.
NAMED_BY: Final = ("CorruptionError", "FormatError", "LogTrimmed", "UnreadableError")
# How long an operator lets a member go on that has named damage, and how often the others die meanwhile: the leader, or all.
LOOKS_S: Final = (0.0, 3.0, 20.0)
DEATHS_SHARE: Final = 0.6
ALL_DIE_SHARE: Final = 0.5
# By then a member has claimed that hears nothing of a leader.
CLAIMS_S: Final = 6.0


class Rot:
    """What is wrong with the disk of a member."""

    def __init__(self, member: Member, damage: Damage) -> None:
        self.disk = member.disk
        self.damage = damage

    @property
    def path(self) -> str:
        """The file that was hit."""
        return self.damage.flips[0].path

    def is_gap(self, text: str) -> bool:
        """Whether a report is about the gap that a lost segment leaves: the one in front of it is named."""
        hit = self.damage.flips[0]
        folder = hit.path.rpartition("/")[0]
        return hit.is_cut and text.startswith(f"{folder}/") and "missing before the next segment" in text

    @property
    def stands(self) -> bool:
        """Whether a flipped bit is still there. A file that is lost may be made anew."""
        return any(flip.stands(self.disk) for flip in self.damage.flips)


class Rotting:
    """Damages members that are down, one at a time, and looks after those that start again."""

    def __init__(
        self, chance: Random, members: Sequence[Member], window_ms: int, time: SimulatedTime, note: Callable[..., None]
    ) -> None:
        self._chance = chance
        self._members = members
        self._window_ms = window_ms
        self._time = time
        self._note = note
        self._found: dict[str, Rot] = {}
        # How often it may still happen.
        self._left = STRIKES_MAX if chance.random() < SHARE else 0
        self.strikes = self._left > 0
        # Set when no faults shall come any more.
        self.calm = False
        for member in members:
            member.on_reports = partial(self._check_reports, member)

    def is_rotten(self, member: Member) -> bool:
        """Whether the disk of a member is damaged and was not replaced since."""
        rot = self._found.get(member.name)
        if rot is not None and rot.disk is not member.disk:
            del self._found[member.name]
        return member.name in self._found

    def strike(self, member: Member) -> None:
        """Damage the disk of a member that is down, sometimes."""
        chance = self._chance
        if not self._left or any(self.is_rotten(each) or each.lost for each in self._members):
            return
        if not member.deaths or chance.random() >= STRIKES_SHARE:
            return
        damage = Damage(member.disk, chance, self._window_ms, self._note)
        if chance.random() < LOSSES_SHARE:
            self._lose(member, damage)
        else:
            damage.flip()
        if damage.flips:
            self._found[member.name] = Rot(member, damage)
            self._left -= 1

    def _lose(self, member: Member, damage: Damage) -> None:
        chance, disk = self._chance, member.disk
        folder = chance.choice([*FOLDERS, ""])
        names = [f"/data/{name}" for name in FILES] if not folder else disk.files(f"/data/{folder}/")
        paths = [path for path in names if path in disk.files(path) and not path.endswith(("reserve", ".tmp", "next"))]
        if not paths:
            return
        path = chance.choice(paths)
        disk.remove(path)
        disk.sync_directory(path.rpartition("/")[0])
        self._note("fault", "file is lost", member=member.name, path=path)
        damage.flips.append(Flip(path, 0, 0, 0, frozenset(), whole=True, is_cut=True))

    # -- what the member says

    def has_named(self, member: Member) -> bool:
        """Whether the end of its process names the damage: then its machine gets another directory."""
        if not self.is_rotten(member) or not member.died_of.startswith(NAMED_BY):
            return False
        self._replace(member, member.died_of)
        return True

    def _replace(self, member: Member, why: str) -> None:
        self._note("operator", "makes anew", member=member.name, why=why[:160])
        member.lost = True

    def _check_reports(self, member: Member, texts: list[str]) -> None:
        """What a member reports is about the file that was hit."""
        if self.is_rotten(member):
            rot = self._found[member.name]
            rot.damage.check_reports([text for text in texts if not rot.is_gap(text)])
        elif texts:
            raise SimulationFailure(f"{member.name} reports damage without any: {texts[0]}")

    async def look_after(self, member: Member) -> None:
        """Judge each life of a member that begins with damage, until cancelled."""
        while True:
            await member.open.wait()
            if self.is_rotten(member):
                await self._judge(member)
            with trio.move_on_after(1):
                await member.down.wait()
            await self._time.sleep(0.25)

    async def _judge(self, member: Member) -> None:
        rot, life, server = self._found[member.name], member.lives, member.server
        assert server is not None
        # No member claims so quickly.
        await self._time.sleep(0.5)
        if member.lives != life or not member.open.is_set() or member.disk.dead:
            return
        known = server.damage.own
        if known:
            if await self._stays_behind(member, life):
                self._make_anew(member, known)
            return
        findings = [finding for finding in recover_check(rot.disk, self._window_ms) if finding.kind != TORN]
        self._note("operator", "checks", member=member.name, findings=[str(each)[:160] for each in findings[:3]])
        if findings:
            self._make_anew(member, f"{findings[0].file}: {findings[0].detail}")
        elif rot.stands:
            raise SimulationFailure(f"neither {member.name} nor the check names the damage in {rot.path}")
        else:
            del self._found[member.name]

    async def _stays_behind(self, member: Member, life: int) -> bool:
        """Whether this life of a member that knows of damage lasts until the operator comes. It must not claim meanwhile."""
        chance, others = self._chance, [each for each in self._members if each is not member]
        assert member.server is not None and member.server.parts.cluster is not None
        standing = member.server.parts.cluster.standing
        epoch, looks_s = standing.epoch.value, chance.choice(LOOKS_S)
        if not self.calm and chance.random() < DEATHS_SHARE:
            all_die = chance.random() < ALL_DIE_SHARE
            dying = [each for each in others if each.open.is_set() and (all_die or each.leads)]
            for each in dying:
                self._note("fault", "dies beside a damaged member", member=each.name, leads=each.leads)
                each.crash(power=False)
            looks_s += CLAIMS_S
        until_s = self._time.now_s + looks_s
        while member.lives == life and member.open.is_set() and not member.disk.dead:
            if standing.leads and standing.epoch.value > epoch:
                raise SimulationFailure(f"{member.name} claims, and knows of damage: {member.server.damage.own}")
            if self._time.now_s >= until_s:
                return True
            await self._time.sleep(0.25)
        return False

    def _make_anew(self, member: Member, why: str) -> None:
        self._replace(member, why)
        member.crash(power=False)
