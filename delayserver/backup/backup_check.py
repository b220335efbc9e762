"""Checks a backup: reads all its bytes, makes a directory of it, and checks that directory as `recover check` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from delayserver.backup.point_in_time import plan_restore
from delayserver.backup.repository import Repository
from delayserver.backup.restoring import restore
from delayserver.recover.checking.check import check_directory
from delayserver.recover.reading.findings import Finding
from delayserver.recover.reading.subject_balances import ACCEPTED, PENDING
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError, StoreError
from store.snapshots.verified_backup import VerifiedBackup

Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CheckedBackup:
    """The result. `damages` are of the backup's own files, `findings` of the directory that was made of the last backup;
    None: none could be made. `accepted` and `pending` count its messages. `verified`: the mark that it has now, where it is
    clean and of a cluster's member."""

    names: tuple[str, ...]
    damages: tuple[StoreError, ...]
    findings: tuple[Finding, ...] | None
    accepted: int
    pending: int
    verified: VerifiedBackup | None = None

    @property
    def clean(self) -> bool:
        """Whether the last backup gives a directory without findings, and nothing of the others is damaged."""
        return not self.damages and self.findings is not None and not self.findings


def check_backup(repository: Repository, fs: FileSystem, root: str, now_us: int, tell: Tell) -> CheckedBackup:
    """Check all backups of a place, and make the last one's directory in `root`, which is empty. The backup of a cluster's
    member that is clean gets a mark: from now on it covers the shared log.

    Raises BackupError (there is no backup), DiskFullError (of `root`), StoreError.
    """
    names = tuple(repository.names())
    damages = repository.damages(list(names), tell)
    try:
        made = restore(repository, plan_restore(repository, None), fs, root, now_us, tell)
    except (CorruptionError, FormatError) as error:
        # Only a manifest is not among those found before.
        return CheckedBackup(names, tuple(damages or [error]), None, 0, 0)
    taken, checked = check_directory(fs, root, progress=tell)
    try:
        totals = checked.balance.totals()
        findings = checked.findings
        told = () if findings.clean else tuple(findings)
        found = CheckedBackup(names, tuple(damages), told, int(totals[ACCEPTED]), int(totals[PENDING]))
    finally:
        taken.close()
    if not found.clean or made.followed is None:
        return found
    verified = VerifiedBackup(made.server_id, made.followed.position, made.followed.epoch, now_us)
    repository.verify(made.name, verified)
    return replace(found, verified=verified)
