"""`delayserver status`: shows the balance, the health and the lateness of the server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from delayserver.client import Client

FIRST: Final = (
    "ready",
    "accepted",
    "delivered",
    "cancelled",
    "dead_lettered",
    "expired",
    "deduplicated",
    "rolled_back",
    "pending",
    "lateness_ms",
)
"""The balance, in the order of its equation."""

TROUBLES: Final = ("errors", "corruption", "unreadable", "damages", "duplicate_server_ids")
"""Printed if they are not empty. Other fields are printed only with ``--all``."""


@click.command
@click.option("--watch", is_flag=True, help="Show it again and again, until interrupted or the server is gone.")
@click.option("--all", "everything", is_flag=True, help="Show all figures, as --json does.")
@click.option("--every", "interval_ms", type=options.DURATION, default="1s", show_default=True, help="How often.")
@options.server
@options.shard
@options.as_json
def status(watch: bool, everything: bool, interval_ms: int, server: str, as_json: bool) -> None:
    """Show what the server accepted, what became of it, what is pending, and how late deliveries were.

    accepted = delivered + cancelled + dead_lettered + expired + deduplicated + rolled_back +
    pending, at every moment.
    Counts are of all time, lateness is of the deliveries since the start.
    """
    if watch and not interval_ms:
        raise click.UsageError("--every 0s would never rest: write for example --every 200ms")
    with options.connect(server) as client:
        if client.connect().shards > 1 and options.chosen_shard() is None:
            click.echo("these are the figures of one shard alone: --shard N says which", err=True)
        if watch and not as_json and sys.stdout.isatty():
            _show_live(client, interval_ms, everything)
        for current in _statuses(client, interval_ms, watch):
            if as_json:
                print_json(current)
            else:
                _print(_rows(current, everything))


def _statuses(client: Client, interval_ms: int, watch: bool) -> Iterator[dict[str, Any]]:
    while True:
        yield client.status()
        if not watch:
            return
        time.sleep(interval_ms / 1000)


def _print(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def _show_live(client: Client, interval_ms: int, everything: bool) -> None:
    from rich.live import Live

    with Live(auto_refresh=False, transient=False) as live:
        for current in _statuses(client, interval_ms, watch=True):
            live.update(_table(_rows(current, everything)), refresh=True)


def _table(rows: list[tuple[str, str]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    return table


def _rows(current: Mapping[str, Any], everything: bool) -> list[tuple[str, str]]:
    rest = [name for name in current if name not in FIRST]
    if not everything:
        node = {"broker"} if current.get("role") == "broker" else set()  # a node has only a broker
        rest = [name for name in rest if (name in TROUBLES and current[name]) or name in node]
    names = [name for name in FIRST if name in current] + rest
    rows: list[tuple[str, str]] = []
    for name in names:
        rows += _flatten(name, current[name])
    return rows if everything else rows + _hidden_troubles(current)


def _hidden_troubles(current: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows for the reasons why messages wait: a full disk, nodes that do not answer."""
    rows: list[tuple[str, str]] = []
    if current.get("storage", {}).get("disk_low"):
        rows.append(("disk_low", "yes, sends are refused"))
    if current.get("role") != "broker" and (waiting := (current.get("broker") or {}).get("redeliveries_waiting")):
        rows.append(("redeliveries_waiting", f"{waiting:,} in the delay pipeline"))
    if current.get("replaced"):
        rows.append(("replaced", f"{current['replaced']:,} accepted in the place of others, which are cancelled"))
    for name, group in (current.get("groups") or {}).items():
        rows += [
            (f"node {node['address']}", f"of group {name} fails: {node.get('last_error') or 'no answer'}")
            for node in group.get("nodes", [])
            if node.get("circuit") == "open"
        ]
    return rows


def _flatten(name: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        if value and not any(isinstance(inner, (Mapping, list)) for inner in value.values()):
            return [(name, "  ".join(f"{key} {_shown(inner)}" for key, inner in value.items()))]
        return [row for key, inner in value.items() for row in _flatten(f"{name}.{key}", inner)]
    if isinstance(value, list):
        return [row for index, inner in enumerate(value) for row in _flatten(f"{name}.{index}", inner)]
    return [(name, _shown(value))]


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**9 else str(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
