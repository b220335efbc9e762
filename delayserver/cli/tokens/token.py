"""`delayserver token`: makes, lists, revokes and rotates access tokens: at a running server, in a data directory, or in the
map of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import parse_size_bytes
from delayserver.protocol.token_text import OVERLAP_MS_DEFAULT, ROLES

if TYPE_CHECKING:
    from delayserver.cli.tokens.token_cluster import TokenCluster
    from delayserver.cli.tokens.token_directory import TokenDirectory
    from delayserver.client.calls.token_calls import MadeToken
    from delayserver.protocol.schema.tokens import Token

Command = TypeVar("Command", bound=Callable[..., Any])


def place(command: Command) -> Command:
    """Adds ``--data-dir`` and ``--cluster`` beside ``--server``."""
    data_dir = click.option(
        "--data-dir", metavar="DIR", help="Work on this data directory itself, while no server runs on it."
    )
    cluster = click.option(
        "--cluster",
        metavar="FILE",
        type=click.Path(),
        help="Work on the tokens of the cluster of this file, in Kafka. No member need run.",
    )
    return data_dir(cluster(options.server(options.as_json(command))))


@click.group
def token() -> None:
    """Access tokens: who may send, consume, look or administer, and which subjects.

    As soon as a server has had one token, it asks every client for one. The first token is made with --data-dir before
    the server starts, or at a server that listens on loopback. Clients give theirs in the environment variable
    DELAYSERVER_TOKEN, or with --token-file.

    The tokens of a cluster are those of all its members and shards. With --server any primary changes them, and with
    --cluster the command itself. The answer comes when the change is in the log. All members learn it within a second.
    """


@token.command
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, required=True, help="May be repeated.")
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    default=("*",),
    show_default=True,
    metavar="PATTERN",
    help="May be repeated.",
)
@click.option("--name", default="", help="Says in lists whose it is.")
@click.option("--expires", "expires", type=options.EXPIRY, metavar="TIME", help="In 90d, or at 2027-03-03T09:00Z.")
@click.option("--rate", type=options.Whole(1), metavar="N", help="At most N messages a second.")
@click.option("--bytes", "bytes_rate", type=options.ParsedText("size", parse_size_bytes), metavar="SIZE",
              help="At most so many bytes of messages a second, such as 10MiB.")  # fmt: skip
@click.option("--pending", "pending_max", type=options.Whole(1), metavar="N", help="At most N messages that wait.")
@place
def create(
    roles: tuple[str, ...],
    subjects: tuple[str, ...],
    name: str,
    expires: tuple[bool, int] | None,
    rate: int | None,
    bytes_rate: int | None,
    pending_max: int | None,
    data_dir: str | None,
    cluster: str | None,
    server: str,
    as_json: bool,
) -> None:
    """Make a token. It is printed once: the server keeps only a digest of it."""
    limits = {"rate": rate or 0, "bytes_rate": bytes_rate or 0, "pending_max": pending_max or 0}
    stored = _stored(data_dir, cluster)
    if stored is not None:
        from delayserver.client.calls.token_calls import wanted_token

        with stored as directory:
            made = directory.create(wanted_token(roles, subjects, _expires_ms(expires), name=name, **limits))
    else:
        with options.connect(server) as client:
            made = client.token(roles, subjects, name=name, expires=_expires_ms(expires), **limits)
    _tell_made(made, as_json)


@token.command("list")
@place
def list_(data_dir: str | None, cluster: str | None, server: str, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    stored = _stored(data_dir, cluster)
    if stored is not None:
        with stored as directory:
            tokens = directory.tokens()
    else:
        with options.connect(server) as client:
            tokens = client.tokens()
    for each in tokens:
        if as_json:
            print_json(_fields(each))
        else:
            click.echo(visible(_line(each)))
    if not tokens and not as_json:
        click.echo("There are no tokens.")


@token.command
@click.argument("token_id", metavar="ID")
@place
def revoke(token_id: str, data_dir: str | None, cluster: str | None, server: str, as_json: bool) -> None:
    """End a token. Connections that use it are closed at once."""
    stored = _stored(data_dir, cluster)
    if stored is not None:
        with stored as directory:
            revoked = directory.revoke(token_id)
    else:
        with options.connect(server) as client:
            revoked = client.revoke_token(token_id)
    if as_json:
        print_json(_fields(revoked) | {"revoked": True})
    else:
        click.echo(f"Revoked {visible(_line(revoked))}")


@token.command
@click.argument("token_id", metavar="ID")
@click.option("--overlap", "overlap_ms", type=options.DURATION, default=OVERLAP_MS_DEFAULT, metavar="DURATION",
              help="How long the old secret stays valid.  [default: 1h]")  # fmt: skip
@place
def rotate(
    token_id: str, overlap_ms: int, data_dir: str | None, cluster: str | None, server: str, as_json: bool
) -> None:
    """Give a token a new secret. The old one stays valid for the overlap, so that clients can be changed one by one."""
    stored = _stored(data_dir, cluster)
    if stored is not None:
        with stored as directory:
            made = directory.rotate(token_id, overlap_ms)
    else:
        with options.connect(server) as client:
            made = client.rotate_token(token_id, overlap_ms / 1000)
    _tell_made(made, as_json)


def _stored(data_dir: str | None, cluster: str | None) -> TokenDirectory | TokenCluster | None:
    """The tokens on which the command works itself; None: at a server."""
    if data_dir is not None and cluster is not None:
        raise click.UsageError("say where: --data-dir, or --cluster")
    if cluster is not None:
        from delayserver.cli.tokens.token_cluster import TokenCluster

        return TokenCluster(cluster)
    if data_dir is not None:
        from delayserver.cli.tokens.token_directory import TokenDirectory

        return TokenDirectory(data_dir)
    return None


def _expires_ms(expires: tuple[bool, int] | None) -> int:
    if expires is None:
        return 0
    relative, milliseconds = expires
    from delayserver.runtime.clock import SystemClock

    return milliseconds + (SystemClock().now_ms() if relative else 0)


def _tell_made(made: MadeToken, as_json: bool) -> None:
    if as_json:
        print_json(_fields(made.token) | {"token": made.text})
        return
    click.echo(made.text)
    click.echo(f"{_line(made.token)}. Keep the token: it is not shown again.", err=True)


def _fields(each: Token) -> dict[str, Any]:
    from msgspec.structs import asdict

    return asdict(each) | {"roles": list(each.roles), "subjects": list(each.subjects)}


def _line(each: Token) -> str:
    parts = [each.id, "+".join(each.roles), " ".join(each.subjects)]
    if each.name:
        parts.append(f"({each.name})")
    limits = ((each.rate, "messages/s"), (each.bytes_rate, "bytes/s"), (each.pending_max, "waiting"))
    parts += [f"at most {limit} {unit}" for limit, unit in limits if limit]
    if each.expires_ms:
        parts.append(f"until {datetime.fromtimestamp(each.expires_ms / 1000, UTC).isoformat(timespec='seconds')}")
    return "  ".join(parts)
