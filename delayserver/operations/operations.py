"""All operations of a server, for any front. They take and return values and know no connections or frames."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.operations.broadcasting import Broadcasting
from delayserver.operations.cancel import Cancel
from delayserver.operations.consuming import Consuming
from delayserver.operations.dead_letters import DeadLetterOperations
from delayserver.operations.delivering import Delivering
from delayserver.operations.finding import Finding
from delayserver.operations.identity import Identity
from delayserver.operations.lookup import Lookup
from delayserver.operations.metrics import Metrics
from delayserver.operations.pending import Pending
from delayserver.operations.policies import Policies
from delayserver.operations.positions import QueuePositions
from delayserver.operations.prepare import Prepare
from delayserver.operations.publish import Publish
from delayserver.operations.redispatch import Redispatch
from delayserver.operations.reload import Reload
from delayserver.operations.reschedule import Reschedule
from delayserver.operations.routing import Routing
from delayserver.operations.send import Send
from delayserver.operations.servers import Servers
from delayserver.operations.status import Status
from delayserver.operations.subjects import Subjects
from delayserver.operations.tokens import TokenBook
from delayserver.operations.transactions import Transactions


@dataclass(frozen=True, slots=True)
class DelayOperations:
    """The operations that a lone broker does not have."""

    send: Send
    cancel: Cancel
    reschedule: Reschedule
    lookup: Lookup
    redispatch: Redispatch
    reload: Reload
    pending: Pending
    prepare: Prepare
    transactions: Transactions


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a server or a lone broker; `delay` is None for a lone broker."""

    identity: Identity
    status: Status
    metrics: Metrics
    routing: Routing
    servers: Servers
    tokens: TokenBook
    consuming: Consuming
    subjects: Subjects
    publish: Publish
    policies: Policies
    positions: QueuePositions
    broadcasting: Broadcasting
    finding: Finding
    dead_letters: DeadLetterOperations
    delivering: Delivering
    delay: DelayOperations | None
