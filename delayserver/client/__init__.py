"""The client library: `Client` blocks, `AsyncClient` runs on trio and on asyncio. Both share one sans-IO core.

`Listener` and `ThreadListener` call functions with messages as they come.
"""

from delayserver.client.asynchronous.batching import AsyncBatcher, Handle
from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.asynchronous.transaction_operations import AsyncTransaction
from delayserver.client.blocking.batching import Batcher
from delayserver.client.blocking.client import Client
from delayserver.client.blocking.transaction_operations import Transaction
from delayserver.client.calls.figure_calls import (
    Metrics,
)
from delayserver.client.calls.policy_calls import GroupPolicy, PolicyChanges
from delayserver.client.calls.schedule_calls import ScheduleTerms
from delayserver.client.calls.token_calls import MadeToken
from delayserver.client.calls.transaction_calls import (
    CheckBack,
    check_back_of,
)
from delayserver.client.consuming.consumer import Consumer, Received
from delayserver.client.listening.handling import CutOff, Handling, Hooks, ListenerStats
from delayserver.client.listening.listener import Listener
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.client.listening.thread_listener import ThreadListener
from delayserver.client.values.messages import (
    AckResult,
    ColumnsPublished,
    ColumnsSent,
    Delivery,
    DuplicateRow,
    ExtendResult,
    Message,
    MessageKey,
    NackResult,
    PublishResult,
    RejectedRow,
    SendResult,
    Status,
)
from delayserver.client.values.pulled_columns import PulledColumns
from delayserver.client.values.retry import Retry
from delayserver.client.values.timing import Instant, Seconds, Span
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import OneWayRefused
from delayserver.protocol.limits import Limits
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.schema.dead_letters import DeadLetter, DropResult, ResendResult
from delayserver.protocol.schema.fates import CancelResult, LookupResult, RescheduleResult
from delayserver.protocol.schema.greetings import ServerInfo
from delayserver.protocol.schema.groups import ConsumerGroup, GroupsPage, Sought
from delayserver.protocol.schema.members import MemberStanding
from delayserver.protocol.schema.node_routes import Node, Route
from delayserver.protocol.schema.pending import (
    PendingBucket,
    PendingMessage,
    PendingMessagesPage,
    PendingPage,
    PendingSubject,
    PendingSubjectsPage,
)
from delayserver.protocol.schema.schedules import ChangedSchedule, Firing, Schedule, ScheduleRun, SchedulesPage
from delayserver.protocol.schema.shard_map import ShardMap, ShardPlace
from delayserver.protocol.schema.snapshots import Snapshot
from delayserver.protocol.schema.stored import FoundMessage, ReadMessage, ReadPage
from delayserver.protocol.schema.subjects import SubjectsPage
from delayserver.protocol.schema.tokens import Token
from delayserver.protocol.schema.transactions import Ended, OpenTransaction, OpenTransactionsPage
from delayserver.protocol.schema.waiting_keys import RetryKeysResult, SkipResult, WaitingKey

__all__ = [
    "AckResult",
    "AsyncBatcher",
    "AsyncClient",
    "AsyncTransaction",
    "Batcher",
    "CancelResult",
    "ChangedSchedule",
    "CheckBack",
    "Client",
    "ColumnsPublished",
    "ColumnsSent",
    "Consumer",
    "ConsumerGroup",
    "CutOff",
    "DeadLetter",
    "DelayServerError",
    "Delivery",
    "DropResult",
    "DuplicateRow",
    "Ended",
    "ExtendResult",
    "Firing",
    "FoundMessage",
    "GroupPolicy",
    "GroupsPage",
    "Handle",
    "Handling",
    "Hooks",
    "Instant",
    "Limits",
    "Listener",
    "ListenerSettings",
    "ListenerStats",
    "LookupResult",
    "MadeToken",
    "MemberStanding",
    "Message",
    "MessageKey",
    "Metrics",
    "NackResult",
    "Node",
    "OneWayRefused",
    "OpenTransaction",
    "OpenTransactionsPage",
    "Outcome",
    "PendingBucket",
    "PendingMessage",
    "PendingMessagesPage",
    "PendingPage",
    "PendingSubject",
    "PendingSubjectsPage",
    "PolicyChanges",
    "PublishResult",
    "PulledColumns",
    "ReadMessage",
    "ReadPage",
    "Received",
    "RejectedRow",
    "RescheduleResult",
    "ResendResult",
    "Retry",
    "RetryKeysResult",
    "Route",
    "Schedule",
    "ScheduleRun",
    "ScheduleTerms",
    "SchedulesPage",
    "Seconds",
    "SendResult",
    "ServerInfo",
    "ShardMap",
    "ShardPlace",
    "SkipResult",
    "Snapshot",
    "Sought",
    "Span",
    "Status",
    "SubjectsPage",
    "ThreadListener",
    "Token",
    "Transaction",
    "WaitingKey",
    "check_back_of",
]
