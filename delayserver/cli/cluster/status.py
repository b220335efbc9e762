"""`delayserver cluster status`: who leads, how far the standbys are, and what Kafka has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import click

from delayserver.cli.backup.backup_places import THERE
from delayserver.cli.cluster.cluster_options import Asked, ask_members, cluster_file, find_left, members
from delayserver.cli.cluster.covered import Covered, find_covered
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.protocol.loss_of_member import hears_log, if_it_dies
from delayserver.protocol.schema.shard_map import CLOSED, OPEN

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.members.member_map import MemberMap
    from delayserver.runtime.shared_log import LogDescription


@click.command
@cluster_file
@members
@click.option("--backups", "place", type=THERE, metavar="DIR",
              help="With --cluster: say what backups cover of the log of the file's shard. A folder, or a URL.")  # fmt: skip
@options.access
@options.as_json
def status(path: str | None, servers: str | None, place: str | None, as_json: bool) -> None:
    """Show who leads, how far the standbys are, what happens if a member dies now, and what Kafka has.

    With --cluster the members are those in the map of the cluster, and the settings of its topics are checked: a wrong one
    is an error, with the command that mends it. With --server alone only these members are asked. With --json: a line a
    member. The role is `primary`, `standby`, `taking_over`, `down`, or `unknown`: it listens, and does not answer this
    question, perhaps for want of a token. The state is that of the shard: `open`, or `draining` or `closed` with the
    messages that are `left`.
    """
    if path is None and servers is None:
        raise click.UsageError("say which cluster: --cluster FILE, or --server HOST:PORT")
    if path is None and place is not None:
        raise click.UsageError("--backups needs the log, so --cluster FILE")
    found = None if path is None else on_kafka(path, _look)
    asked = ask_members(servers, None if found is None else found.map)
    covered = None if found is None or place is None else _covered(place, found, asked)
    states = {} if found is None else found.map.states
    for shard, of_shard in groupby(asked, key=lambda each: each.shard):
        members_of_it = list(of_shard)
        state = OPEN if shard is None else states.get(shard, OPEN)
        left = None if state == OPEN else _left(members_of_it)
        if as_json:
            for each in members_of_it:
                known = None if found is None else found.map.members.get(each.name)
                reads = None if known is None else known.reads
                print_json(
                    _record(each)
                    | _record_of_log(each, found, covered)
                    | {"state": state, "left": left, "reads": reads}
                )
        else:
            _tell(shard, members_of_it, "" if state == OPEN else _state_text(state, left))
            if found is not None and shard is not None:
                _tell_version(members_of_it, {each.name: each.reads for each in found.map.of_shard(shard)})
    if found is None:
        return
    if not as_json:
        empty = set(range(len(found.logs))) - {each.shard for each in found.map.members.values()}
        for shard in sorted(empty):
            if states.get(shard) == CLOSED:
                click.echo(f"shard {shard} is closed")
                continue
            click.echo(f"shard {shard} has no members: delayserver serve --cluster FILE --shard {shard}")
        for shard, log in enumerate(found.logs):
            click.echo(_health(f"shard {shard}", log))
        click.echo(_health("members", found.members))
        if covered is not None:
            click.echo(visible(f"backups, shard {found.shard}: {covered.text}"))
    from delayserver.members.founding import require_fit

    require_fit([*found.logs, found.members])


@dataclass(frozen=True, slots=True)
class _Found:
    """What Kafka has: the map, the logs of the shards, and that of the map. `shard` is that of the file."""

    shard: int
    map: MemberMap
    logs: list[LogDescription]
    members: LogDescription


async def _look(file: ClusterFile, engines: Engines) -> _Found:
    map_ = await engines.read_map()
    logs = [await engines.shards.open(shard).describe() for shard in range(len(map_.shards))]
    return _Found(file.shard, map_, logs, await engines.map.open(0).describe())


def _covered(place: str, found: _Found, asked: list[Asked]) -> Covered:
    """What the backups cover of the log of the file's shard."""
    if found.shard >= len(found.logs):
        raise click.ClickException(f"the cluster has no shard {found.shard}: delayserver cluster init")
    server_id = found.map.identity(found.shard).server_id
    healed = found.map.healed.get(found.shard)
    until = -1 if healed is None else healed.until
    return find_covered(place, server_id, found.logs[found.shard], found.map.of_shard(found.shard), asked, until)


def _health(whose: str, log: LogDescription) -> str:
    """One line about a log of Kafka."""
    lacks = "" if log.in_sync == log.copies else ": A BROKER IS GONE OR LAGS"
    return (
        f"Kafka, {whose}: {log.copies} copies, {log.in_sync} of them in sync{lacks}; {log.in_sync_min} have a record before "
        f"it counts; {log.end - log.first:,} positions kept; {'WRONG SETTINGS' if log.faults else 'settings are right'}"
    )


def _record_of_log(each: Asked, found: _Found | None, covered: Covered | None) -> dict[str, object]:
    """What Kafka and the backups have of a member's shard."""
    shard = each.shard if each.standing is None else each.standing.shard
    if found is None or shard is None or shard >= len(found.logs):
        return {}
    log = found.logs[shard]
    record: dict[str, object] = {
        "log": {
            "copies": log.copies, "in_sync": log.in_sync, "in_sync_min": log.in_sync_min, "first": log.first,
            "end": log.end, "faults": [fault.text for fault in log.faults],
        }
    }  # fmt: skip
    if covered is not None and shard == found.shard:
        record["backups"] = covered.record
    return record


def _left(of_shard: list[Asked]) -> int | None:
    primary = next((each for each in of_shard if each.standing is not None and each.standing.role == "primary"), None)
    return None if primary is None else find_left(primary.address)


def _state_text(state: str, left: int | None) -> str:
    return f", {state}: " + ("its primary does not answer" if left is None else f"{left:,} messages are left")


def _role(silent: Asked) -> str:
    """The role of a member that does not say one."""
    return "down" if silent.gone else "unknown"


def _record(each: Asked) -> dict[str, object]:
    standing = each.standing
    if standing is None:
        return {
            "shard": each.shard, "member": each.name or None, "role": _role(each), "epoch": None, "lag_records": None,
            "lag_ms": None, "log_version": None, "address": each.address, "reason": each.reason,
            "damaged": None, "unreplayed_bytes": None, "front": None,
        }  # fmt: skip
    return {
        "shard": standing.shard, "member": standing.member, "role": standing.role, "epoch": standing.epoch,
        "lag_records": standing.lag_records, "lag_ms": standing.lag_ms, "log_version": standing.log_version,
        "address": each.address, "damaged": standing.damaged, "unreplayed_bytes": standing.unreplayed_bytes,
        "front": standing.front,
    }  # fmt: skip


def _tell(shard: int | None, of_shard: list[Asked], state: str) -> None:
    click.echo("members that do not answer" if shard is None else f"shard {shard}{state}")
    width = max([len(each.name or each.address) for each in of_shard])
    for each in of_shard:
        standing = each.standing
        if standing is None:
            text = f"{_role(each):<11}  {each.address}: {each.reason}"
        else:
            text = f"{standing.role:<11}  {each.address}, epoch {standing.epoch}"
            if not hears_log(standing.lag_records, standing.lag_ms):
                text += f", its log does not answer; the last record came {standing.lag_ms:,} ms ago"
            elif standing.role == "standby" and standing.lag_records is None:
                text += f", its last record came {standing.lag_ms:,} ms ago"
            elif standing.role == "standby":
                text += f", {standing.lag_records:,} records ({standing.lag_ms:,} ms) behind"
            if standing.unreplayed_bytes:
                text += f", {standing.unreplayed_bytes:,} bytes to replay"
            if standing.damaged:
                text += "; IT IS DAMAGED, and does not lead again"
            if standing.front:
                text += f"; {standing.front}"
        click.echo(visible(f"  {each.name or each.address:<{width}}  {text}"))
    standings = [(each.name, each.standing) for each in of_shard if each.standing is not None]
    log_answers = any(hears_log(standing.lag_records, standing.lag_ms) for _, standing in standings)
    for name, standing in standings:
        others = [other for other, its in standings if other != name and not its.damaged]
        click.echo(visible(f"  if {name} dies now: {if_it_dies(standing.role, others, log_answers=log_answers)}"))


def _tell_version(of_shard: list[Asked], reads: dict[str, int]) -> None:
    """The version of the log, and who keeps it from rising."""
    version = max([each.standing.log_version for each in of_shard if each.standing is not None], default=None)
    text = "" if version is None else f"  its log has version {version}"
    lowest = min(reads.values(), default=0)  # a member that was forgotten may answer
    if any(known > lowest for known in reads.values()):
        older = [name for name, known in reads.items() if known == lowest]
        text += f"{',' if text else '  its log:'} and {', '.join(older)} reads none above {lowest}: it does not rise"
    if text:
        click.echo(visible(text))
