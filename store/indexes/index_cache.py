"""A least recently used cache of indexes, bounded by their bytes. An index grows while it is in the cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """An index that can be cached."""

    @property
    def nbytes(self) -> int:
        """Memory held."""


Key = TypeVar("Key", bound=Hashable)
Index = TypeVar("Index", bound=Sized)


class IndexCache(Generic[Key, Index]):
    """`load` builds what is not there. The last one used is kept even if it alone is over the bound."""

    def __init__(self, bytes_max: int, load: Callable[[Key], Index]) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self._load = load
        self._indexes: OrderedDict[Key, Index] = OrderedDict()
        self._measured: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._indexes)

    def __contains__(self, key: object) -> bool:
        return key in self._indexes

    def get(self, key: Key) -> Index:
        """The index of a key, loaded if need be; use it at once, since the next `get` may evict it."""
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = self._load(key)
        else:
            self._indexes.move_to_end(key)
        self._measure(key, index)
        return index

    def forget(self, key: Key) -> None:
        """Drops the index of files that are gone."""
        if self._indexes.pop(key, None) is not None:
            self.nbytes -= self._measured.pop(key)

    def _measure(self, key: Key, index: Index) -> None:
        """An index is measured when it is handed out, so what it grew by since then is not counted yet."""
        nbytes = index.nbytes
        self.nbytes += nbytes - self._measured.get(key, 0)
        self._measured[key] = nbytes
        while self.nbytes > self.bytes_max and len(self._indexes) > 1:
            oldest = next(iter(self._indexes))
            if oldest == key:
                return
            self.forget(oldest)

    def check_invariants(self) -> None:
        """The sum is that of the parts, and over the bound only for the last one used."""
        assert self.nbytes == sum(self._measured.values())
        assert set(self._measured) == set(self._indexes)
