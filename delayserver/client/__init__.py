"""The client library: `Client` blocks, `AsyncClient` runs on trio and on asyncio. Both share one sans-IO core."""

from delayserver.client.async_batching import AsyncBatcher, Handle
from delayserver.client.asynchronous import AsyncClient
from delayserver.client.batching import Batcher
from delayserver.client.blocking import Client
from delayserver.client.consumer import Consumer, Received
from delayserver.client.messages import (
    AckResult,
    CancelResult,
    ColumnsSent,
    ConsumerGroup,
    Delivery,
    LookupResult,
    Message,
    MessageKey,
    NackResult,
    Node,
    RejectedRow,
    RescheduleResult,
    Route,
    SendResult,
    ServerInfo,
)
from delayserver.client.pulled import PulledColumns
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import Outcome

__all__ = [
    "AckResult",
    "AsyncBatcher",
    "AsyncClient",
    "Batcher",
    "CancelResult",
    "Client",
    "ColumnsSent",
    "Consumer",
    "ConsumerGroup",
    "DelayServerError",
    "Delivery",
    "Handle",
    "LookupResult",
    "Message",
    "MessageKey",
    "NackResult",
    "Node",
    "Outcome",
    "PulledColumns",
    "Received",
    "RejectedRow",
    "RescheduleResult",
    "Route",
    "SendResult",
    "ServerInfo",
]
