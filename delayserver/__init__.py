"""delayserver: a delay-message service. Messages are handed over now and arrive when they are due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayserver.client import AsyncClient, Client, Message

__version__ = "0.2.0"

__all__ = ["AsyncClient", "Client", "Message", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: a command line that prints its version should not load numpy and anyio first.
    if name in ("AsyncClient", "Client", "Message"):
        from delayserver import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
