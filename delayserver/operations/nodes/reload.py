"""The operation `reload`: reads the configuration again and takes over other groups, nodes, weights and routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from delayserver.config.reloading import changes
from delayserver.config.settings import Settings
from delayserver.config.toml_file import ConfigError
from delayserver.logs.events import EventLogger
from delayserver.operations.nodes.servers import Peer, Servers
from delayserver.protocol.errors import ConfigInvalid, DelayServerError, DiskFull, SubjectsFull
from delayserver.protocol.schema.reload import Changes, ReloadConfiguration
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError, TableFullError

events = EventLogger()

Reread = Callable[[], Settings]


class Changeable(Protocol):
    """The parts that are built from the settings of groups and routes."""

    async def change(self, after: Settings) -> None:
        """Take over groups and routes. Returns when nothing of the old ones is in use. Raises TableFullError and
        DiskFullError, with nothing changed."""


class _Asked:
    """A reload that somebody waits for."""

    __slots__ = ("done", "result")

    def __init__(self) -> None:
        self.done = Bell()
        self.result: list[str] | DelayServerError = []

    def end(self, result: list[str] | DelayServerError) -> None:
        """Tell who waits."""
        self.result = result
        self.done.ring()


class Reload:
    """Reloads, one after the other. Those that are asked for while one runs are carried out together behind it."""

    def __init__(
        self,
        topology: Changeable,
        servers: Servers,
        settings: Settings,
        reread: Reread | None,
        runtime: Runtime,
        *,
        follows: bool = False,
    ) -> None:
        """`settings` as they were read at the start. `reread` reads them again, in a thread, and raises ConfigError; None
        if they came from nowhere. `follows`: a member of a cluster takes nothing over before `lead`, since names of its own
        would take the codes of names that come by the log."""
        self._topology = topology
        self._servers = servers
        self.settings = settings
        """As they were read last."""
        self._reread = reread
        self._workers = runtime.workers
        self._follows = follows
        self._changing = trio.Lock()
        self._asked: list[_Asked] = []
        self._wanted = Bell()

    async def by_peer(self, _asked: ReloadConfiguration, peer: Peer) -> Changes:
        """As `reload`, for a connection. Raises ServerNotProven if it is no operator's."""
        self._servers.check_operator(peer)
        return Changes(await self.reload())

    async def reload(self) -> list[str]:
        """Read the configuration again; returns what has changed, a sentence each. It ends whether its caller waits or
        not. Raises ConfigInvalid, DiskFull, SubjectsFull: nothing was changed."""
        asked = _Asked()
        self._asked.append(asked)
        self._wanted.ring()
        await asked.done.rung()
        if isinstance(asked.result, DelayServerError):
            raise asked.result
        return asked.result

    async def run(self) -> None:
        """Reload whenever it is asked for, until cancelled."""
        while True:
            self._wanted.hush()
            asked, self._asked = self._asked, []
            if asked:
                result = await self._once()
                for each in asked:
                    each.end(result)
            else:
                await self._wanted.rung()

    async def lead(self) -> None:
        """This member leads: take over what was read last, and each later reload at once. Raises as `change` does."""
        async with self._changing:
            self._follows = False
            await self._topology.change(self.settings)

    async def _once(self) -> list[str] | DelayServerError:
        try:
            said = await self._change()
        except (ConfigInvalid, DiskFull, SubjectsFull) as error:
            events.error("reload_refused", "the configuration was not taken over: {reason}", reason=error.message)
            return error
        events.warning(
            "reloaded",
            "the configuration was read again: {changes}",
            changes="; ".join(said) or "nothing in it has changed",
        )
        return said

    async def _change(self) -> list[str]:
        if self._reread is None:
            raise ConfigInvalid("this server was started without a configuration that it could read again")
        async with self._changing:
            try:
                after = await self._workers.run(self._reread)
                said = changes(self.settings, after)
            except ConfigError as error:
                raise ConfigInvalid(str(error)) from error
            if said and not self._follows:
                try:
                    await self._topology.change(after)
                except DiskFullError as error:
                    raise DiskFull(str(error)) from error
                except TableFullError as error:
                    raise SubjectsFull(str(error)) from error
            self.settings = after
            return said
