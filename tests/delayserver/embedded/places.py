"""A server in each of its three places behind each client, so that one suite tests them all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from anyio.from_thread import start_blocking_portal

from delayserver import embedded
from delayserver.client import Client
from store.disk.memory_filesystem import MemoryFileSystem
from tests.delayserver.client.both import KINDS, BlockingFace, connected

PLACES = ("process", "directory", "memory")

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """One place and one client. `open` starts a server of its own there, or connects to the one process."""

    place: str
    kind: str
    open: Callable[..., AbstractContextManager[Client]]

    @property
    def has_client_methods_for_threads(self) -> bool:
        """Whether the client may be called from several threads at the same time."""
        return self.kind != "blocking"


def memory_of(here: Client) -> MemoryFileSystem:
    """The files of an embedded server in memory. `status` tells how much is free, and that a while ago, but not how much
    memory the files take."""
    fs = here._running.server.fs  # type: ignore[attr-defined]
    assert isinstance(fs, MemoryFileSystem)
    return fs


def subject() -> str:
    """A subject that no other test uses."""
    return f"places-{next(_numbers)}"


@contextmanager
def opened(kind: str, directory: str | None, **settings: Any) -> Iterator[Client]:
    """An embedded server behind a client of this kind."""
    if kind == "blocking":
        with embedded.open(directory, **settings) as here:
            yield here
        return
    with (
        start_blocking_portal(kind) as portal,
        portal.wrap_async_context_manager(portal.call(partial(embedded.open_async, directory, **settings))) as here,
    ):
        yield cast(Client, BlockingFace(portal, here))


def place_of(name: str, kind: str, process_address: str, folder: Path) -> Place:
    """The place of this name for the client of this kind."""
    if name == "process":
        return Place(name, kind, partial(connected, kind, process_address))
    return Place(name, kind, partial(opened, kind, str(folder / "data") if name == "directory" else None))


EVERYWHERE = [(place, kind) for place in PLACES for kind in KINDS]
