"""Up to where the shared log of a cluster may be trimmed: a new member must find all that its backup has not.

Two backups count, so that one of them may be damaged later. Each was checked by `backup check`, which says from where in the
log its directory goes on. And no live member may lose what it has not written down yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from delayserver.backup.repository import BackupError, Repository
from store.snapshots.verified_backup import VerifiedBackup

NEEDED: Final = 2
"""So many checked backups cover what the log loses."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """A shared log, which has the positions `first` to `end`, and what else has its records. `backups`: the last checked
    ones by name, at most `NEEDED`. `members`: from which position each live member would read on, by name."""

    place: str
    first: int
    end: int
    backups: Mapping[str, VerifiedBackup]
    members: Mapping[str, int]

    @property
    def uncovered(self) -> str:
        """Why the backups cover nothing; empty where they do."""
        if len(self.backups) < NEEDED:
            return (
                f"{self.place}: no backup covers the log, which begins at position {self.first}: there are "
                f"{len(self.backups)} of the {NEEDED} checked backups that it takes. Call delayserver backup for a member, "
                f"then delayserver backup check {self.place}"
            )
        for name, backup in self.backups.items():
            if backup.position > self.end:
                return (
                    f"{self.place}: the backup {name} goes on from position {backup.position}, and the log ends at "
                    f"{self.end}: it is of another log, or this log has lost records"
                )
        return ""

    @property
    def refusal(self) -> str:
        """Why nothing may be trimmed; empty where the backups cover something, and members have said how far they are."""
        if not self.uncovered and not self.members:
            return "no member has said how far it is: name them, so that none loses what it has not read"
        return self.uncovered

    @property
    def covered(self) -> int:
        """All positions below are in both backups. The first of the log where they cover nothing."""
        positions = [] if self.uncovered else [each.position for each in self.backups.values()]
        return max(self.first, min(positions, default=self.first))

    @property
    def trims_to(self) -> int:
        """The log may lose all positions below: `first` where it may lose nothing."""
        return self.first if self.refusal else max(self.first, min(self.covered, *self.members.values()))

    @property
    def text(self) -> str:
        """For the operator: what covers the log, or that nothing does."""
        if self.uncovered:
            return self.uncovered
        names = " and ".join(self.backups)
        said = f"the log has the positions {self.first} to {self.end}; the backups {names} cover those below {self.covered}"
        slowest = min(self.members, key=lambda name: self.members[name], default="")
        if slowest and self.members[slowest] < self.covered:
            said += f"; member {slowest} needs it from {self.members[slowest]} on"
        return said


def find_coverage(
    repository: Repository, server_id: int, first: int, end: int, members: Mapping[str, int], healed: int = -1
) -> Coverage:
    """What covers the log of the shard with this server id. `healed`: the log was healed in this epoch, so backups of it and
    of earlier ones do not go on there. Raises BackupError (backups of another shard), CorruptionError, FormatError,
    StoreError."""
    verified = repository.verified()
    foreign = [name for name, backup in verified.items() if backup.server_id != server_id]
    if foreign:
        name, other = foreign[0], verified[foreign[0]].server_id
        raise BackupError(
            f"{repository.name}: the backup {name} is of server {other:012x}, and the shard is {server_id:012x}"
        )
    last = [(name, backup) for name, backup in verified.items() if backup.epoch > healed][-NEEDED:]
    return Coverage(repository.name, first, end, dict(last), members)
