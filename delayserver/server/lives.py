"""The servers of one process, one after the other: a member that leads no longer goes on as a standby, without a restart.

Whatever it had in memory is dropped with the server: its files hold nothing that is not in the shared log.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from delayserver.config.settings import Settings
from delayserver.logs.events import EventLogger
from delayserver.net.transport import StreamListener
from delayserver.runtime.error_groups import first_of
from delayserver.runtime.shared_log import AppendFailed
from delayserver.server.delay_server import DelayServer, LeadershipLost, Ready
from delayserver.server.http_gateway import HttpGateway
from store.errors import StoreError

events = EventLogger()


class Lives:
    """Runs a server until it stops, and the next one on the same listener when it has lost its leadership."""

    def __init__(self, begin: Callable[[Settings], DelayServer], settings: Settings) -> None:
        """`begin` makes a server: the first one with these settings, each later one with those that were read last."""
        self._begin = begin
        self._stopping = False
        self.server = begin(settings)

    def stop(self) -> None:
        """Begin a clean stop."""
        self._stopping = True
        self.server.stop()

    async def run(self, listener: StreamListener, gateway: HttpGateway | None, address: str, ready: Ready) -> None:
        """Run until `stop`. The gateway reaches the server at `address`. Raises what a server raises."""
        while True:
            try:
                await self._live(listener, gateway, address, ready)
            except* (LeadershipLost, AppendFailed) as group:
                reason = first_of(group)
            else:
                return
            if self._stopping:
                return
            events.warning("member_begins_again", "goes on as a standby: {reason}", reason=str(reason))
            self.server.close()
            self.server = self._begin(self.server.read_last)

    async def _live(self, listener: StreamListener, gateway: HttpGateway | None, address: str, ready: Ready) -> None:
        failure: StoreError | OSError | LeadershipLost | None = None
        async with trio.open_nursery() as nursery:
            if gateway is not None:
                # From the start on, so that a client of HTTP hears that the server is not ready yet.
                nursery.start_soon(gateway.run, address, self.server.own_tokens.make())
            try:
                await self.server.run(listener, ready)
            except (StoreError, OSError, LeadershipLost) as error:  # for the caller as it is, not in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
