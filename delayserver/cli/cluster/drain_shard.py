"""`delayserver cluster drain-shard`: a shard takes no new messages, and is closed when it has none left."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from delayserver.cli.cluster.cluster_options import cluster_file, find_left
from delayserver.cli.kafka.on_kafka import read_map, write_note
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from delayserver.protocol.schema.shard_map import CLOSED, DRAINING, ShardPlace

if TYPE_CHECKING:
    from delayserver.members.member_map import MemberMap

WAIT_S: Final = 15.0
"""A member reads a change of the map within a second."""
LOOK_S: Final = 0.1


@click.command("drain-shard")
@click.option("--shard", type=options.Whole(0), required=True, help="Counted from 0.")
@cluster_file
@options.access
@options.as_json
def drain_shard(shard: int, path: str | None, as_json: bool) -> None:
    """Have a shard take no new messages. It goes on to deliver what it has, and consumers pull from it.

    Repeat it until it says that the shard is closed: then nothing is left, and its members can be stopped and forgotten.
    What no consumer group has asked for does not count as left.
    A shard of the founding cannot be drained: messages with ids and order keys belong to it. Move its members instead.
    """
    found = read_map(path)
    if found.founded is None or shard >= len(found.shards):
        raise click.ClickException(f"the cluster has no shard {shard}: delayserver cluster status")
    if shard < len(found.founded.shards):
        raise click.ClickException(
            f"shard {shard} is one of the founding: messages with ids and order keys belong to it, so it cannot be drained. "
            "Its members can be moved: delayserver cluster move"
        )
    state, left = drained(found.states.get(shard), partial(_left, found, shard), partial(_set, path, shard))
    if as_json:
        print_json({"shard": shard, "state": state, "left": left})
    elif state == CLOSED:
        click.echo(f"shard {shard} is closed. Stop its members, and forget them: delayserver cluster forget")
    else:
        what = "its primary does not answer" if left is None else f"{left:,} messages are left"
        click.echo(f"shard {shard} is draining: {what}")


def drained(state: str | None, left: Callable[[], int | None], note: Callable[[str], str]) -> tuple[str, int | None]:
    """The state of a shard after one step of its draining, and what it has left. ``state``: that of the map, None for open.
    ``left`` counts what it has, None if its primary does not answer. ``note`` writes a state, and waits until the primary
    acts by it.
    """
    if state is None:
        state = note(DRAINING)
    count = left()
    if state == DRAINING and count == 0:
        state = note(CLOSED)
        # What came before the primary had read it is there now. Without an answer nobody knows.
        count = left()
        if count != 0:
            state = note(DRAINING)
    elif state == CLOSED and count:  # the command that closed it has not come to its count
        state = note(DRAINING)
    return state, count


def _place(map_: MemberMap, shard: int) -> ShardPlace:
    return map_.shown().shards[shard]


def _left(map_: MemberMap, shard: int) -> int | None:
    """What its primary has left; None if it does not answer. A shard that never had a member has nothing."""
    place = _place(map_, shard)
    if not place.epoch:
        return 0
    return find_left(place.primary) if place.primary else None


def _set(path: str | None, shard: int, state: str) -> str:
    """Write the state, and wait until the primary acts by it."""
    from delayserver.members.member_map import ShardState

    map_ = write_note(path, ShardState(shard, state))
    place = _place(map_, shard)
    until_s = time.monotonic() + WAIT_S
    while place.epoch and _version_of(place.primary) < map_.version:
        if time.monotonic() > until_s:
            raise click.ClickException(
                f"shard {shard} is {state} in the map, but its primary at {place.primary or '?'} has not read it. "
                "Repeat the command when it answers"
            )
        time.sleep(LOOK_S)
    return state


def _version_of(address: str) -> int:
    """The version of the map that a member has; 0 if it does not answer."""
    from delayserver.protocol.errors import DelayServerError

    if not address:
        return 0
    try:
        with options.connect(address) as client:
            return client.shard_map().version
    except (DelayServerError, click.ClickException):
        return 0
