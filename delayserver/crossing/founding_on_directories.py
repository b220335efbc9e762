"""Founds a cluster whose shards have the messages of single servers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from delayserver.crossing.first_directory import begin_shard, give_to_shard, require_single, require_whole
from delayserver.members.founding import Engines, FoundedNow, begin_log, make_topics, note_founded
from delayserver.members.member_map import FORMAT, Founded, TokenNote
from delayserver.runtime.chance import random_server_id
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogMissing, LogUnusable
from store.disk.filesystem import FileSystem
from store.errors import FormatError
from store.shared.envelope import ShardIdentity
from store.tables.identity import read_identity
from store.tables.member_file import MemberOf, read_owner
from store.tables.stored_tokens import read_tokens


async def found_on(engines: Engines, fs: FileSystem, roots: Sequence[str], runtime: Runtime) -> FoundedNow:
    """Make a cluster with a shard for each directory. A second call, or one after an interrupted one, is as good as the
    first: until the map has the cluster, no member starts on the directories, and no single server.

    Raises FormatError, CorruptionError, LockedError (of a directory), DiskFullError, StoreError, LogUnusable (there is
    another cluster), LogUnavailable."""
    made: list[str] = []
    known = await _founded(engines)
    if known is not None:
        _require_of(known, engines, fs, roots)
        return FoundedNow(known, ())
    found = [require_single(fs, root) for root in roots]
    ids = [server_id for server_id, _ in found]
    if len(set(ids)) < len(ids):
        raise FormatError(roots[-1], "two of the directories are of one server")
    begun = {owner.cluster_id for _, owner in found if owner is not None}
    if len(begun) > 1:
        raise FormatError(roots[0], "interrupted calls have given the directories to several clusters")
    for root, (_, owner) in zip(roots, found, strict=True):
        await runtime.workers.run(partial(require_whole, fs, root, owner, runtime))
    cluster_id = begun.pop() if begun else random_server_id(runtime.chance)
    owners = [MemberOf(cluster_id, shard, "") for shard in range(len(roots))]
    await make_topics(engines, len(roots), made)
    for root, server_id, owner in zip(roots, ids, owners, strict=True):
        await runtime.workers.run(partial(give_to_shard, fs, root, server_id, owner))
    for root, server_id, owner in zip(roots, ids, owners, strict=True):
        identity = ShardIdentity(cluster_id, server_id)
        position = await begin_log(engines.shards, owner.shard, identity, runtime.clock.now_us())
        await runtime.workers.run(partial(begin_shard, fs, root, owner, position, runtime))
        made.append(f"shard {owner.shard} of {root}")
    for root, server_id in zip(roots, ids, strict=True):
        for token in read_tokens(fs, root, server_id) or ():
            await engines.note(TokenNote(token, made=True))
    note = Founded(FORMAT, f"{cluster_id:012x}", tuple([f"{server_id:012x}" for server_id in ids]))
    founded = await note_founded(engines, note, made)
    if founded != note:
        raise LogUnusable(f"topic {engines.shards.topic} has another cluster since: {founded.cluster_id}")
    return FoundedNow(founded, tuple(made))


async def _founded(engines: Engines) -> Founded | None:
    try:
        return (await engines.read_map()).founded
    except LogMissing:
        return None


def _require_of(known: Founded, engines: Engines, fs: FileSystem, roots: Sequence[str]) -> None:
    """Raises LogUnusable unless the cluster that is there was founded on these directories."""
    owners = [read_owner(fs, root) for root in roots]
    ids = tuple([f"{read_identity(fs, root):012x}" for root in roots])
    if ids != known.shards or any(each is None or each.cluster_id != int(known.cluster_id, 16) for each in owners):
        raise LogUnusable(
            f"topic {engines.shards.topic} has a cluster already, {known.cluster_id}, which was not founded on this. Name "
            "another topic in the file of the cluster"
        )
