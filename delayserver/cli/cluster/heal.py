"""`delayserver cluster heal`: makes the log of a shard whole again, after Kafka has lost records of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from delayserver.cli.cluster.cluster_options import cluster_file
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.recover.recover_options import usage_of_directory
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.members.member_map import Healed
    from store.disk.filesystem import FileSystem
    from store.shared.copied import CopiedPiece

AGAIN_S: Final = 1.0
_SEGMENT: Final = re.compile(r"\d{20}\.log")


@click.command
@cluster_file
@click.option("--data-dir", required=True, type=click.Path(), metavar="DIR", help="The directory of this member.")
@options.as_json
def heal(path: str | None, data_dir: str, as_json: bool) -> None:
    """Make the log of a shard whole again, after Kafka has lost records that members have.

    Stop all members of the shard, and call this on each machine with the file and the directory of its member. The calls
    wait for each other. The one that has most then writes what is missing, and all end. Start the members again, and make a
    backup: older ones do not go on from the healed log.
    """
    from delayserver.members.healing import HealingRefusedError
    from store.disk.filesystem import RealFileSystem
    from store.shared.copied import UncountedError
    from store.tables.identity import LOCK, read_identity

    fs, root = RealFileSystem(), data_dir.rstrip("/") or "/"
    with usage_of_directory():
        server_id = read_identity(fs, root)

    async def work(file: ClusterFile, engines: Engines) -> Healed:
        return await _heal(file, engines, fs, root, server_id)

    lock = fs.lock(f"{root}/{LOCK}", b"delayserver cluster heal")
    try:
        healed = on_kafka(path, work)
    except HealingRefusedError as error:
        raise click.ClickException(visible(str(error))) from None
    except UncountedError:
        raise click.ClickException(f"{root}: an older program wrote it, which did not count its records") from None
    finally:
        lock.close()
    if as_json:
        print_json({"shard": healed.shard, "position": healed.position, "until": healed.until})
    else:
        click.echo(f"shard {healed.shard} is healed, from position {healed.position} on. Start the members.")


async def _heal(file: ClusterFile, engines: Engines, fs: FileSystem, root: str, server_id: int) -> Healed:
    import trio

    from delayserver.members.healing import Healing, look, place_after, require_part_of, who_heals
    from delayserver.members.member_map import HealingBegun
    from delayserver.runtime.chance import system_chance
    from delayserver.runtime.clock import SystemClock
    from store.shared.envelope import LogWriter
    from store.tables.member_file import MemberOf, require_owner

    found = await engines.read_map()
    own = found.members.get(file.member)
    if own is None or found.identity(own.shard).server_id != server_id:
        raise click.ClickException(
            visible(f"{root} is not the directory of member {file.member} of this cluster, as {file.topic} has it")
        )
    require_owner(fs, root, MemberOf(found.identity(own.shard).cluster_id, own.shard, own.name))
    me = LogWriter(found.number(own.name), system_chance().getrandbits(64))
    healing = Healing(lambda: engines.shards.open(own.shard), found.identity(own.shard), own, me)
    mine, place = look(own, _pieces(fs, root, server_id))
    earlier = found.healed.get(own.shard)
    if (
        earlier is not None
        and own.shard not in found.healing
        and mine.epoch <= earlier.until
        and await healing.remove_before(earlier)
    ):
        return earlier  # the call that healed was interrupted behind its note
    await engines.note(mine)
    waits_for: list[str] = []
    while True:
        found = await engines.read_map()
        if own.name not in found.stranded:
            healed = found.healed.get(own.shard)
            if healed is None or healed == earlier:
                raise click.ClickException(
                    visible(f"{own.name} was started while its log is not healed. Stop it, and call this command again")
                )
            return healed
        stranded = [found.stranded[each.name] for each in found.of_shard(own.shard) if each.name in found.stranded]
        absent = [each.name for each in found.of_shard(own.shard) if each.name not in found.stranded]
        healer = who_heals(stranded)
        if not absent and healer == mine:
            require_part_of(_pieces(fs, root, server_id), mine, stranded)
            if own.shard not in found.healing:  # else the log has a part of what it lost, and may look whole
                await healing.require_lost(place_after(place, found.healed.get(own.shard)))
            # A member that starts from now on sees it, and ends. One that started before is not stranded any more.
            if (await engines.note(HealingBegun(own.shard, own.name))).all_stranded(own.shard):
                break
            continue
        if waits_for != (absent or [healer.name]):
            waits_for = absent or [healer.name]
            click.echo(visible(f"waits for {', '.join(waits_for)}"), err=True)
        await trio.sleep(AGAIN_S)
    healed = await healing.write(_pieces(fs, root, server_id), stranded, SystemClock().now_us())
    # First the note: without it no member goes on behind what is removed, and none would heal once more.
    await engines.note(healed)
    await healing.remove_before(healed)
    return healed


def _pieces(fs: FileSystem, root: str, server_id: int) -> Iterator[CopiedPiece]:
    from store.shared.copied import log_records, pieces_in
    from store.tables.member_file import read_owner

    names = sorted(filter(_SEGMENT.fullmatch, fs.listdir(f"{root}/message_log")))
    owner = read_owner(fs, root)
    # The log of the shard begins there, where it began with the directory of a single server.
    begin = 0 if owner is None else owner.log_offset
    whole = bool(names) and int(names[0].partition(".")[0]) == begin == 0
    return pieces_in(log_records(fs, [f"{root}/message_log/{name}" for name in names], server_id, begin), whole=whole)
