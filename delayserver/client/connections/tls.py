"""How a client encrypts: ``tls=True`` trusts the authorities of the system, an `ssl.SSLContext` says it all."""

from __future__ import annotations

import ssl
from typing import TypeAlias

TLS: TypeAlias = ssl.SSLContext | bool | None


def context_of(tls: TLS) -> ssl.SSLContext | None:
    """The context of a connection, or None for one that is not encrypted."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context() if tls else None
