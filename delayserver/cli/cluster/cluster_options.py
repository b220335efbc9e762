"""The options that name a cluster, and calls of its members from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import visible

if TYPE_CHECKING:
    from delayserver.members.member_map import Announced, MemberMap
    from delayserver.protocol.schema.members import MemberStanding

ANSWER_S: Final = 3.0
"""A member that does not answer for so long counts as down."""


def _servers_of(context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """The variable is there for clients: it does not take the place of the members in the map of a cluster."""
    of_variable = context.get_parameter_source("servers") is ParameterSource.ENVIRONMENT
    return None if of_variable and context.params.get("path") is not None else given


members = click.option(
    "--server",
    "servers",
    type=options.ADDRESS,
    envvar="DELAYSERVER_SERVER",
    callback=_servers_of,
    metavar="HOST:PORT",
    help="Ask these members, several addresses with commas between, instead of those in the map of the cluster. With "
    "--cluster the variable DELAYSERVER_SERVER does not count.",
)

cluster_file = click.option(
    "--cluster",
    "path",
    is_eager=True,  # before --server, which looks at it
    type=click.Path(),
    metavar="FILE",
    help="The TOML file of the cluster, that of any member.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A member, and its answer. `name` and `shard` are those of the map; without one empty and None. Without an answer
    `standing` is None, and `reason` says why. `gone`: nothing listens at the address."""

    name: str
    shard: int | None
    address: str
    standing: MemberStanding | None
    reason: str = ""
    gone: bool = False


def ask_members(servers: str | None, map_: MemberMap | None) -> list[Asked]:
    """Ask the members at these addresses; without addresses all in the map, in the order of shards and numbers."""
    if servers is not None:
        return [ask_member("", None, address.strip()) for address in servers.split(",")]
    assert map_ is not None, "there is one of them"
    known = sorted(map_.members.values(), key=lambda each: (each.shard, map_.number(each.name)))
    return [ask_member(each.name, each.shard, each.address) for each in known]


def find_left(address: str) -> int | None:
    """How many messages a server has left: those that are not due, and those that consumer groups have to get. None: it does
    not answer."""
    from delayserver.protocol.errors import DelayServerError

    try:
        with options.connect(address) as client:
            pending: int = client.status()["pending"]
            return pending + sum([group.lag for group in client.groups()])
    except (DelayServerError, click.ClickException):
        return None


def require_known(asked: Asked) -> None:
    """Raises ClickException where something listens at the address of a member, and does not say who it is."""
    if asked.standing is None and not asked.gone:
        raise click.ClickException(
            visible(
                f"{asked.name} may live: something listens at {asked.address}, and does not say who it is ({asked.reason}). "
                "Give a token that may ask, or stop it"
            )
        )


def ask_member(name: str, shard: int | None, address: str) -> Asked:
    """Ask whoever is at an address, where the map has this member."""
    from delayserver.client import Client
    from delayserver.protocol.errors import ConnectionLost, DelayServerError

    try:
        with Client(address, timeout_s=ANSWER_S, retries=0, **options.client_arguments()) as client:
            standing = client.cluster_standing()
    except DelayServerError as error:
        return Asked(name, shard, address, None, str(error), gone=isinstance(error, ConnectionLost))
    return Asked(standing.member, standing.shard, address, standing)


def log_position(member: Announced) -> int | None:
    """Where the next process of a member would read on; None: another server is at its address. Raises DelayServerError,
    ClickException."""
    with options.connect(member.address) as client:
        standing = client.cluster_standing()
        if (standing.member, standing.shard) != (member.name, member.shard):
            return None
        position: int | None = client.status()["storage"]["log_position"]
    return position
