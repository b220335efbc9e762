"""The place of backups, as the commands open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from delayserver.backup.objects import Objects
    from delayserver.backup.repository import Repository

EXTRA: Final = "backup"


class BackupPlace(click.Path):
    """A folder that is there, or a URL of an object storage."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The folder or the URL. Fails where there is no such folder."""
        return value if isinstance(value, str) and "://" in value else super().convert(value, param, ctx)


THERE: Final = BackupPlace(exists=True, file_okay=False)
place = click.argument("place", metavar="DIR", type=THERE)


@contextmanager
def backups_in(place: str, *, alone: bool = False) -> Iterator[Repository]:
    """The backups of a folder, or of an object storage. `alone`: other backups are kept out meanwhile. Raises LockedError,
    StoreError."""
    from delayserver.backup.repository import Repository

    repository = Repository(_objects(place))
    if alone:
        repository.hold()
    try:
        yield repository
    finally:
        repository.close()


def _objects(place: str) -> Objects:
    if "://" not in place:
        from delayserver.backup.objects import Folder
        from store.disk.filesystem import RealFileSystem

        return Folder(RealFileSystem(), place)
    try:
        from delayserver.backup.object_storage import ObjectStorage

        return ObjectStorage(place)
    except ImportError as error:
        raise click.ClickException(
            f"{place}: {error}; call pip install --use-pep517 '.[{EXTRA}]' and the package of this storage"
        ) from error
    except ValueError as error:
        raise click.UsageError(f"{place}: {error}") from error
