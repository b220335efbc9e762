"""What the backups of a shard cover of its log, for `delayserver cluster status`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from delayserver.cli.backup.backup_places import backups_in
from delayserver.cli.cluster.cluster_options import Asked, log_position
from delayserver.config.units import format_duration
from delayserver.runtime.clock import SystemClock

if TYPE_CHECKING:
    from delayserver.backup.coverage import Coverage
    from delayserver.members.member_map import Announced
    from delayserver.runtime.shared_log import LogDescription


@dataclass(frozen=True, slots=True)
class Covered:
    """`last_ms`: when the last backup was taken; None without one. `silent`: the members that do not say how far they are.
    Nothing is trimmed while there are any."""

    last_ms: int | None
    coverage: Coverage
    silent: tuple[str, ...]

    @property
    def text(self) -> str:
        """For the operator: the age of the last backup, what covers the log, and what may be trimmed."""
        coverage = self.coverage
        if self.last_ms is None:
            return f"NO BACKUP. {coverage.text}"
        last = f"the last backup is {format_duration(max(SystemClock().now_ms() - self.last_ms, 0))} old"
        if coverage.uncovered:
            return f"NOT COVERED, though {last}. {coverage.text}"
        trims = f"trim may remove {coverage.trims_to - coverage.first:,} positions"
        if self.silent:
            names = " and ".join(self.silent)
            trims = f"trim removes nothing: {names} does not say how far it is"
        return f"{last}; {coverage.text}; {trims}"

    @property
    def record(self) -> dict[str, object]:
        """For programs."""
        coverage = self.coverage
        return {
            "last_ms": self.last_ms, "covered": coverage.covered,
            "trims_to": coverage.first if self.silent else coverage.trims_to, "backups": list(coverage.backups),
            "uncovered": coverage.uncovered, "silent": list(self.silent),
        }  # fmt: skip


def find_covered(
    place: str, server_id: int, log: LogDescription, members: Sequence[Announced], asked: Iterable[Asked], until: int
) -> Covered:
    """What is covered of the log of the shard with these members, of which some were asked. `until`: the last epoch before
    the log was healed; -1: it was not. Raises BackupError, CorruptionError, FormatError."""
    from delayserver.backup.coverage import find_coverage
    from delayserver.protocol.errors import DelayServerError

    positions: dict[str, int] = {}
    answered = {(each.name, each.shard) for each in asked if each.standing is not None}
    for each in members:
        with suppress(DelayServerError, click.ClickException):
            position = log_position(each) if (each.name, each.shard) in answered else None
            if position is not None:
                positions[each.name] = position
    with backups_in(place) as repository:
        coverage = find_coverage(repository, server_id, log.first, log.end, positions, until)
        last_ms = repository.newest()[1].taken_us // 1000 if repository.names() else None
    return Covered(last_ms, coverage, tuple([each.name for each in members if each.name not in positions]))
