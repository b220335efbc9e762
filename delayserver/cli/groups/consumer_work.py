"""The work of `delayserver consume`: a listener whose handler runs a command, or prints."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import click
import trio

from delayserver.cli.terminal.delivery_printing import print_delivery
from delayserver.cli.terminal.options import SECRET_VARIABLES, client_arguments
from delayserver.cli.terminal.output import delivery_record, print_json, visible
from delayserver.client import AsyncClient, Delivery, Listener, ListenerSettings, Retry
from delayserver.client.listening.listener_run import ListenerRun
from delayserver.client.listening.subscription import Choices

PREFIX: Final = "DELAYSERVER_"
"""The variables of a command begin so."""

KILL_AFTER_S: Final = 5.0
"""A command that shall end gets SIGTERM, and SIGKILL after this long."""

CANNOT_RUN: Final = {126: "cannot be executed", 127: "was not found"}
"""Exit codes of a shell whose command is wrong. Each message would fail and use up its attempts, so `consume` ends."""


class Consumption:
    """Handles each message of one `consume`. ``failure``: the error after which no other message can be handled."""

    def __init__(self, command: str | None, timeout_s: float | None, *, as_json: bool) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._as_json = as_json
        self._stop: Callable[[], None] | None = None
        self.failure: BaseException | None = None

    def begin(self, stop: Callable[[], None]) -> None:
        """Messages come from now on. At the failure ``stop`` is called at once, so that no further message begins and is
        nacked for nothing."""
        self._stop = stop

    async def handle(self, group: str, delivery: Delivery) -> None:
        """Handle a message. Raises `Retry` for one that shall come again."""
        if self.failure is not None:
            raise Retry(delay_ms=0)
        try:
            if self._command is None:
                print_delivery(delivery, as_json=self._as_json)
                sys.stdout.flush()
            else:
                await self._run(self._command, group, delivery)
        except (OSError, click.ClickException) as error:
            # The output is gone, or the command cannot be run: the next message would fail as well.
            self.failure = self.failure or error
            if self._stop is not None:
                self._stop()
            raise Retry(delay_ms=0) from error

    async def _run(self, command: str, group: str, delivery: Delivery) -> None:
        code: int | None = None
        with trio.move_on_after(self._timeout_s if self._timeout_s is not None else float("inf")) as limit:
            done = await trio.run_process(
                ["/bin/sh", "-c", command],
                stdin=delivery.body,
                stdout=sys.stderr if self._as_json else None,
                env=_without_secrets(os.environ) | variables(group, delivery),
                check=False,
                start_new_session=True,  # a Ctrl-C of the terminal is for `consume`, which lets commands end
                deliver_cancel=_end,
            )
            code = done.returncode
        if self._as_json:
            record = {"exit_code": code, "timed_out": limit.cancelled_caught}
            print_json(delivery_record(delivery) | record)
            sys.stdout.flush()
        if code in CANNOT_RUN:
            raise click.ClickException(f"the command {CANNOT_RUN[code]} (exit code {code}): {command}")
        if code != 0:
            click.echo(
                f"{visible(delivery.message_id)}: {_ended(code)}, attempt {delivery.attempt}, comes again", err=True
            )
            raise Retry(_ended(code), counts=True)


def _ended(code: int | None) -> str:
    if code is None:
        return "ended by --timeout"
    if code < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


async def _end(process: trio.Process) -> None:
    """End a command with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        await trio.sleep(KILL_AFTER_S)
        os.killpg(process.pid, signal.SIGKILL)


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for a command. It handles messages of others, and needs no token of the consumer."""
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}


def variables(group: str, delivery: Delivery) -> dict[str, str]:
    """The environment variables of a command."""
    fields: dict[str, object] = {
        "MESSAGE_ID": delivery.message_id,
        "SUBJECT": delivery.subject,
        "GROUP": group,
        "DUE_MS": delivery.due_ms,
        "ATTEMPT": delivery.attempt,
        "SEQUENCE": delivery.sequence,
        "SERVER_ID": delivery.server_id,
        "EXPIRES_MS": delivery.expires_ms,
        "TAG": delivery.tag or "",
        "ORDER_KEY": delivery.order_key or "",
        "PROPERTIES": json.dumps(delivery.properties, ensure_ascii=False),
    }
    fields |= property_fields(delivery.properties)
    # A variable cannot hold a null character. JSON writes it in another way.
    return {f"{PREFIX}{name}": str(value).replace("\0", "\ufffd") for name, value in fields.items()}


def property_fields(properties: Mapping[str, str]) -> dict[str, str]:
    """``PROPERTY_NAME`` for each property: in capitals, with _ for what a name cannot have. Of two that become the same
    the first one counts; DELAYSERVER_PROPERTIES has both.
    """
    fields: dict[str, str] = {}
    for name, value in properties.items():
        fields.setdefault("PROPERTY_" + re.sub(r"[^A-Z0-9_]", "_", name.upper()), value)
    return fields


def run(
    consumption: Consumption,
    server: str,
    subjects: Sequence[str],
    group: str,
    settings: ListenerSettings,
    choice: Choices,
    signals: Sequence[signal.Signals],
) -> None:
    """Consume until a signal, or until there were enough messages. Raises the failure that ended it."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    listener = Listener(group, settings=settings)
    listener(*subjects, **choice)(partial(consumption.handle, group))
    trio.run(_listen, listener, server, consumption, signals)
    if consumption.failure is not None:
        raise consumption.failure


async def _listen(listener: Listener, server: str, consumption: Consumption, signals: Sequence[signal.Signals]) -> None:
    with trio.open_signal_receiver(*signals) as received:
        async with (
            AsyncClient(server, **client_arguments()) as client,
            listener.running(client) as running,
            trio.open_nursery() as nursery,
        ):
            consumption.begin(running.stop)
            nursery.start_soon(_obey, received, running)
            await running.stopped()
            nursery.cancel_scope.cancel()


async def _obey(received: AsyncIterator[int], running: ListenerRun) -> None:
    """The first signal stops, any further one ends the running commands."""
    await anext(received)
    running.stop()
    if running.running:
        click.echo(f"stopping; {running.running} still run; a second signal ends them", err=True)
    async for _ in received:
        running.cut_off()
