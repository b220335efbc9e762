"""For whom a gateway asks: the address of its client, for the audit log of the server."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from delayserver.protocol.operation_names import (
    DEAD_LETTERS,
    HELLO,
    POLICY,
    REDISPATCH,
    RELOAD,
    REMOVE_GROUP,
    SEEK,
    TOKEN,
)

CLIENT_ADDRESS: Final[ContextVar[str]] = ContextVar("delayserver_client_address", default="")
"""The address of the client for which the present task asks; empty: it asks for itself."""
TOLD: Final = frozenset({HELLO, TOKEN, SEEK, REMOVE_GROUP, POLICY, DEAD_LETTERS, REDISPATCH, RELOAD})
"""Operations of which the audit log may have a line."""
