"""`Objects` in an object storage, or in another place that fsspec knows: S3, Google Cloud Storage, Azure, SFTP.

It has no locks. So a second backup that runs at the same time is not kept out. Nothing of the first is removed for that
reason: only `prune` removes what an interrupted backup has left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec.core import url_to_fs

from store.errors import CorruptionError, StoreError

_UNFINISHED = ".tmp"


class StorageWriter:
    """An object that is written in parts. Most storages show it when it is finished, the others at once."""

    def __init__(self, storage: Any, path: str) -> None:
        self._storage = storage
        self._path = path
        with _refused(path, "write"):
            self._file = storage.open(path, "wb")

    def write(self, data: bytes) -> None:
        with _refused(self._path, "write"):
            self._file.write(data)

    def finish(self) -> None:
        with _refused(self._path, "write"):
            self._file.close()

    def give_up(self) -> None:
        # What is there now belongs to no manifest. Some storages would show it by the close of the file.
        with suppress(Exception):
            self._file.discard()
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):
            self._storage.rm_file(self._path)


class ObjectStorage:
    """`Objects` behind a URL such as `s3://bucket/folder`."""

    def __init__(self, url: str) -> None:
        """Raises ImportError, which names the package to install, and ValueError for a scheme that fsspec does not know."""
        self.name = url.rstrip("/")
        storage, root = url_to_fs(self.name)
        # Of no type that is known here: each storage has its own.
        self._storage: Any = storage
        self._root = root

    def hold(self) -> bool:
        return False

    def sizes(self, folder: str) -> dict[str, int]:
        path = f"{self._root}/{folder}"
        with _refused(path, "list"):
            self._storage.invalidate_cache()
            try:
                found = self._storage.ls(path, detail=True)
            except FileNotFoundError:
                return {}
        names = {each["name"].rpartition("/")[2]: each["size"] for each in found if each["type"] == "file"}
        return {name: size for name, size in names.items() if not name.endswith(_UNFINISHED)}

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        path = f"{self._root}/{path}"
        with _refused(path, "read"):
            try:
                stop = None if length is None else offset + length
                data: bytes = self._storage.cat_file(path, start=offset, end=stop)
            except FileNotFoundError:
                raise CorruptionError(path, 0, "the object is missing") from None
        return data

    def writer(self, path: str) -> StorageWriter:
        self._make_folder(path)
        return StorageWriter(self._storage, f"{self._root}/{path}")

    def put(self, path: str, data: bytes) -> None:
        self._make_folder(path)
        path = f"{self._root}/{path}"
        with _refused(path, "write"):
            self._storage.pipe_file(path + _UNFINISHED, data)
            self._storage.mv(path + _UNFINISHED, path)

    def _make_folder(self, path: str) -> None:
        """Some places have folders. Those without take the call and do nothing."""
        folder = f"{self._root}/{path}".rpartition("/")[0]
        with _refused(folder, "make"):
            self._storage.makedirs(folder, exist_ok=True)

    def remove(self, path: str) -> None:
        path = f"{self._root}/{path}"
        with _refused(path, "remove"), suppress(FileNotFoundError):
            self._storage.rm_file(path)

    def close(self) -> None:
        """It holds nothing."""


@contextmanager
def _refused(path: str, operation: str) -> Iterator[None]:
    """A refusal of the storage as a StoreError, in its own words."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: the storage cannot {operation} it: {error}") from error
