"""The place of backups, as the commands open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from delayserver.backup.repository import Repository

place = click.argument("place", metavar="DIR", type=click.Path(exists=True, file_okay=False))


@contextmanager
def backups_in(place: str, *, alone: bool = False) -> Iterator[Repository]:
    """The backups of a folder. `alone`: other backups are kept out meanwhile. Raises LockedError, StoreError."""
    from delayserver.backup.objects import Folder
    from delayserver.backup.repository import Repository
    from store.disk.filesystem import RealFileSystem

    repository = Repository(Folder(RealFileSystem(), place))
    if alone:
        repository.hold()
    try:
        yield repository
    finally:
        repository.close()
