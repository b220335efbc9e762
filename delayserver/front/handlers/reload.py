"""`reload`."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.operations.nodes.reload import Reload
from delayserver.protocol.frames import RequestFrame


class ReloadHandlers:
    """Requests of operators."""

    def __init__(self, reload: Reload) -> None:
        self._reload = reload

    async def reload(self, connection: Connection, _request: RequestFrame) -> dict[str, Any]:
        """Replies with what has changed when nothing of the old configuration is in use."""
        return {"changes": await self._reload.by_peer(connection.peer)}
