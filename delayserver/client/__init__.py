"""The client library: `Client` blocks, `AsyncClient` runs on trio and on asyncio; both are one sans-IO core with two skins."""

from delayserver.client.blocking import Client

__all__ = ["Client"]
