"""Which files make the directory of a moment: those of the last backup before it, and the message_log of the first one
behind it.

message_log says all that was asked. So the directory of a backup, with more of message_log, replays what came since. What
became of it, and what is in no message_log, is as of the backup: outcomes, published messages, acks. The message_log of a
cluster's member says these too.
"""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.backup.repository import BackupError, Repository
from delayserver.config.units import format_utc
from store.snapshots.manifest import NAMES, Manifest, StoredFile
from store.snapshots.snapshot_listing import base_of, is_segment


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore makes. `base` is the backup that it begins with, `files` all files. `until_us`: message_log ends
    before the first record that was accepted later, microseconds since 1970; None: it stays as it is. Records below the
    logical offset `log_from` are those of the base. `alone`: also of a member of a cluster it is made
    for a server that does not go on from the shared log."""

    name: str
    base: Manifest
    files: tuple[StoredFile, ...]
    until_us: int | None
    log_from: int
    alone: bool = True

    def log_paths(self, root: str) -> list[str]:
        """The segments of message_log, in order, in the directory that is made at `root`."""
        return sorted([f"{root}/{file.path}" for file in self.files if is_segment(file.path)])


def plan_restore(repository: Repository, to_ms: int | None, *, alone: bool = False) -> RestorePlan:
    """The plan for a time, or for the last backup. What is made for a time is always `alone`. Raises BackupError: there is
    no backup, or none that has the time."""
    if to_ms is None:
        name, newest = repository.newest()
        return RestorePlan(name, newest, newest.files, None, newest.log_end, alone)
    to_us = to_ms * 1000
    before: tuple[str, Manifest] | None = None
    for name in repository.names():
        manifest = repository.manifest(name)
        if manifest.taken_us <= to_us:
            before = name, manifest
        elif before is not None:
            return _joined(*before, manifest, to_us)
        else:
            raise BackupError(
                f"{repository.name}: the first backup is of {_time(manifest.taken_us)}, and {_time(to_us)} lies before it"
            )
    if before is None:
        repository.newest()  # says that there is none
        raise AssertionError("a backup is before or behind the time")
    name, base = before
    if to_us > base.taken_us:
        raise BackupError(
            f"{repository.name}: the last backup is of {_time(base.taken_us)}, and nothing here is of {_time(to_us)}; "
            "restore without a time, or to that one"
        )
    return RestorePlan(name, base, base.files, None, base.log_end)


def _joined(name: str, base: Manifest, later: Manifest, to_us: int) -> RestorePlan:
    """The files of `base` with the message_log of `later`. Names only grow, and records of later need the later ones."""
    own = base.segments
    last_base = base_of(own[-1].path) if own else 0
    following = [file for file in later.segments if base_of(file.path) >= last_base]
    first_base = base_of(following[0].path) if following else -1
    if not following or first_base not in (last_base, base.log_end):
        raise BackupError(
            f"the backup {name} and the next one do not meet: message_log from {_time(base.taken_us)} on was removed by "
            f"retention before it was backed up; restore to {_time(base.taken_us)}, and make backups more often than "
            "storage.retention_ms"
        )
    log = [file for file in own if base_of(file.path) < first_base] + following
    replaced = {file.path for file in own} | {NAMES}
    files = [file for file in base.files if file.path not in replaced]
    files += [*log, *[file for file in later.files if file.path == NAMES]]
    return RestorePlan(name, base, tuple(files), to_us, base.log_end)


def _time(us: int) -> str:
    return format_utc(us // 1000)
