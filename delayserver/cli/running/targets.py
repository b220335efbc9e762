"""`delayserver targets`: the nodes to which a server delivers, and a message to try one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.config.settings import NodeSettings, Settings
    from delayserver.targets.answer import Answer
    from delayserver.targets.kinds import Surroundings
    from store.records.batches import StoredBatch

SUBJECT = "delayserver.test"


@click.group
def targets() -> None:
    """The nodes of broker groups: brokers, other servers, topics of Kafka."""


@targets.command("list")
@options.server
@options.shard
@options.as_json
@click.pass_context
def list_targets(context: click.Context, server: str, as_json: bool) -> None:
    """List the nodes to which the server delivers, with their state and why the last attempt failed.

    The exit code is 1 if one is down, or if an operator must mend something.
    """
    from delayserver.targets.registry import kind_of

    with options.connect(server) as client:
        groups = client.status().get("groups") or {}
    bad = False
    for group, found in groups.items():
        for node in found["nodes"]:
            error = node["last_error"] or node["problem"]
            bad |= bool(node["circuit"] == "open" or node["problem"])
            kind = kind_of(node["address"]).scheme
            if as_json:
                record = {"name": node["address"], "kind": kind, "group": group, "state": node["state"]}
                print_json(record | {"problem": node["problem"], "last_error": node["last_error"]})
            else:
                said = f"  {error}" if error else ""
                click.echo(visible(f"{group}  {node['address']}  {node['state']}{said}"))
    context.exit(1 if bad else 0)


@targets.command("test")
@click.argument("name")
@click.option("--config", "path", type=click.Path(), metavar="FILE", required=True, help="The server's configuration.")
@options.assignments
@click.option("--subject", default=SUBJECT, show_default=True, help="The subject of the message.")
@options.as_json
@click.pass_context
def test_target(
    context: click.Context, name: str, path: str, assignments: tuple[str, ...], subject: str, as_json: bool
) -> None:
    """Send one message to the node or to all nodes of the broker group NAME, from here, and say what happened.

    No server is needed. A node from which consumers pull gets no message: it is asked whether it answers.

    The exit code is 1 if a node did not take the message.
    """
    import trio

    from delayserver.config.toml_file import load_settings, parse_assignment

    settings = load_settings(path, dict(parse_assignment(text) for text in assignments))
    nodes = {
        node.address: node for group in settings.groups for node in group.nodes if name in (group.name, node.address)
    }
    if not nodes:
        known = ", ".join([f"{group.name}: {node.address}" for group in settings.groups for node in group.nodes])
        raise click.UsageError(f"no node and no broker group is named {name!r}; known are {known}")
    good = True
    for node in nodes.values():
        state, reason = trio.run(partial(_try, settings, node, subject))
        good &= state in ("stored", "answers")
        if as_json:
            print_json({"name": node.address, "kind": _kind(node), "state": state, "last_error": reason})
        else:
            click.echo(visible(f"{node.address}  {state}{f': {reason}' if reason else ''}"))
    context.exit(0 if good else 1)


def _kind(node: NodeSettings) -> str:
    from delayserver.targets.registry import kind_of

    return kind_of(node.address).scheme


async def _try(settings: Settings, node: NodeSettings, subject: str) -> tuple[str, str]:
    """What became of a message, and why: a name of `RowAnswer` in small letters, or `answers`."""
    import trio

    from delayserver.targets.answer import RowAnswer
    from delayserver.targets.registry import capabilities_of, kind_of
    from delayserver.targets.target import DeliveryError

    target = kind_of(node.address).make(node.address, node.options, _surroundings(settings, subject))
    state, reason = "unknown", "no answer in time"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(target.run)
        try:
            with trio.move_on_after(settings.dispatch.deliver_timeout_ms / 1000):
                if capabilities_of(node.address, node.options).consumable:
                    await target.probe()
                    state, reason = "answers", ""
                else:
                    answer = await target.deliver(_message(), uncertain=False)
                    state, reason = RowAnswer(int(answer.rows[0])).name.lower(), answer.reason
        except DeliveryError as error:
            state, reason = "failed" if error.known else "unknown", str(error)
        nursery.cancel_scope.cancel()
    return state, reason


def _surroundings(settings: Settings, subject: str) -> Surroundings:
    """Those of a server of another id: it takes no place of the real one at its nodes."""
    from delayserver.runtime.chance import random_server_id
    from delayserver.runtime.runtime import Runtime
    from delayserver.server.encryption import Encryption
    from delayserver.targets.kinds import ServerIdentity, Surroundings
    from delayserver.targets.target import DeliveryError, Target

    class NoBroker(Target):
        """Stands for the broker inside a server, which only the server has."""

        async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
            raise NotImplementedError

        async def probe(self) -> None:
            raise DeliveryError("the broker is inside the server: see `delayserver status`", known=True)

    runtime = Runtime.on()
    server_id = f"{random_server_id(runtime.chance):012x}"
    return Surroundings(
        NoBroker(),
        ServerIdentity(server_id, f"{runtime.chance.getrandbits(64):016x}", settings.listen.server_secret),
        lambda _code: subject,
        Encryption(settings.tls).connect,
        settings.listen.frame_bytes_max,
        settings.dispatch.deliver_timeout_ms,
        runtime,
    )


def _message() -> StoredBatch:
    """One message, due now."""
    import numpy as np

    from delayserver.runtime.clock import SystemClock
    from store.records.batches import StoredBatch

    now_us, body = SystemClock().now_us(), b"a test by delayserver targets test"
    return StoredBatch.filled(
        1,
        sequence=1,
        due_ms=now_us // 1000,
        accepted_us=now_us,
        dispatched_us=now_us,
        subject=1,
        bodies_length=np.array([len(body)], np.uint32),
        bodies=memoryview(body),
    )
