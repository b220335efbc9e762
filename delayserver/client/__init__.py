"""The client library: `Client` blocks, `AsyncClient` runs on trio and on asyncio. Both share one sans-IO core.

`Listener` and `ThreadListener` call functions with messages as they come.
"""

from delayserver.client.async_batching import AsyncBatcher, Handle
from delayserver.client.async_transaction_operations import AsyncTransaction
from delayserver.client.asynchronous import AsyncClient
from delayserver.client.batching import Batcher
from delayserver.client.blocking import Client
from delayserver.client.blocking_transaction_operations import Transaction
from delayserver.client.consumer import Consumer, Received
from delayserver.client.handling import CutOff, Handling, Hooks, ListenerStats, Retry
from delayserver.client.listener import Listener
from delayserver.client.listener_core import ListenerSettings
from delayserver.client.messages import (
    AckResult,
    CancelResult,
    ColumnsPublished,
    ColumnsSent,
    ConsumerGroup,
    Delivery,
    LookupResult,
    Message,
    MessageKey,
    NackResult,
    Node,
    PublishResult,
    RejectedRow,
    RescheduleResult,
    Route,
    SendResult,
    ServerInfo,
)
from delayserver.client.pulled import PulledColumns
from delayserver.client.thread_listener import ThreadListener
from delayserver.client.transaction_calls import CheckBack, Ended, check_back_of
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import OneWayRefused
from delayserver.protocol.outcomes import Outcome

__all__ = [
    "AckResult",
    "AsyncBatcher",
    "AsyncClient",
    "AsyncTransaction",
    "Batcher",
    "CancelResult",
    "CheckBack",
    "Client",
    "ColumnsPublished",
    "ColumnsSent",
    "Consumer",
    "ConsumerGroup",
    "CutOff",
    "DelayServerError",
    "Delivery",
    "Ended",
    "Handle",
    "Handling",
    "Hooks",
    "Listener",
    "ListenerSettings",
    "ListenerStats",
    "LookupResult",
    "Message",
    "MessageKey",
    "NackResult",
    "Node",
    "OneWayRefused",
    "Outcome",
    "PublishResult",
    "PulledColumns",
    "Received",
    "RejectedRow",
    "RescheduleResult",
    "Retry",
    "Route",
    "SendResult",
    "ServerInfo",
    "ThreadListener",
    "Transaction",
    "check_back_of",
]
