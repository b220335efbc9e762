"""Work with the cluster of a file: what `delayserver cluster` and `delayserver recover` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import click

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.members.member_map import MemberMap, Note

T = TypeVar("T")

TRIES: Final = 5
"""A first connection to Kafka may take longer than the second that an answer may take."""


def on_kafka(path: str | None, work: Callable[[ClusterFile, Engines], Awaitable[T]]) -> T:
    """Do some work with the cluster of a file. Tries again where Kafka does not answer, some times."""
    if path is None:
        raise click.UsageError("Missing option '--cluster': the file of the cluster")
    import trio

    from delayserver.config.cluster_file import load_cluster
    from delayserver.runtime.shared_log import LogUnavailable
    from delayserver.server.cluster_engines import engines_of

    file = load_cluster(path)
    engines = engines_of(file)

    async def try_it() -> T:
        for _ in range(TRIES - 1):
            try:
                return await work(file, engines)
            except LogUnavailable:
                continue
        return await work(file, engines)

    return trio.run(try_it)


def read_map(path: str | None) -> MemberMap:
    """The map of the cluster of a file."""

    async def read(_file: ClusterFile, engines: Engines) -> MemberMap:
        return await engines.read_map()

    return on_kafka(path, read)


def write_note(path: str | None, note: Note) -> MemberMap:
    """Write a note into the map of the cluster of a file; the map that has it."""

    async def write(_file: ClusterFile, engines: Engines) -> MemberMap:
        return await engines.note(note)

    return on_kafka(path, write)
