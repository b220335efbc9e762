"""The client library: `Client` blocks, `AsyncClient` runs on trio and on asyncio. Both share one sans-IO core.

`Listener` and `ThreadListener` call functions with messages as they come.
"""

from delayserver.client.asynchronous.batching import AsyncBatcher, Handle
from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.asynchronous.transaction_operations import AsyncTransaction
from delayserver.client.blocking.batching import Batcher
from delayserver.client.blocking.client import Client
from delayserver.client.blocking.transaction_operations import Transaction
from delayserver.client.calls.transaction_calls import CheckBack, Ended, check_back_of
from delayserver.client.consuming.consumer import Consumer, Received
from delayserver.client.listening.handling import CutOff, Handling, Hooks, ListenerStats
from delayserver.client.listening.listener import Listener
from delayserver.client.listening.listener_core import ListenerSettings
from delayserver.client.listening.thread_listener import ThreadListener
from delayserver.client.values.messages import (
    AckResult,
    CancelResult,
    ColumnsPublished,
    ColumnsSent,
    ConsumerGroup,
    Delivery,
    DuplicateRow,
    ExtendResult,
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
from delayserver.client.values.pulled import PulledColumns
from delayserver.client.values.retry import Retry
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
    "DuplicateRow",
    "Consumer",
    "ConsumerGroup",
    "CutOff",
    "DelayServerError",
    "Delivery",
    "Ended",
    "ExtendResult",
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
