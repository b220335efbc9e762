"""All operations of a server, for any front. They take and return values and know no connections or frames."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.figures.metrics import Metrics
from delayserver.operations.figures.pending import PendingByTime
from delayserver.operations.figures.status import Status
from delayserver.operations.figures.subjects import Subjects
from delayserver.operations.groups.broadcasting import Broadcasting
from delayserver.operations.groups.consumer_groups import ConsumerGroups
from delayserver.operations.groups.consuming import Consuming
from delayserver.operations.groups.dead_letters import DeadLetterOperations
from delayserver.operations.groups.finding import StoreSearch
from delayserver.operations.groups.policies import GroupPolicies
from delayserver.operations.groups.queue_reads import QueueReads
from delayserver.operations.groups.waiting_keys import WaitingKeyOperations
from delayserver.operations.listing.pending_messages import PendingMessages
from delayserver.operations.messages.cancel import Cancel
from delayserver.operations.messages.lookup import Lookup
from delayserver.operations.messages.open_transactions import OpenTransactions
from delayserver.operations.messages.repeats import Repeats
from delayserver.operations.messages.reschedule import Reschedule
from delayserver.operations.messages.schedules import Schedules
from delayserver.operations.messages.transactions import Transactions
from delayserver.operations.nodes.cluster_member import ClusterMember
from delayserver.operations.nodes.delivering import Delivering
from delayserver.operations.nodes.reload import Reload
from delayserver.operations.nodes.routing import Routing
from delayserver.operations.nodes.server_identity import Identity
from delayserver.operations.nodes.servers import Servers
from delayserver.operations.nodes.snapshots import Snapshots
from delayserver.operations.sending.prepare import Prepare
from delayserver.operations.sending.publish import Publish
from delayserver.operations.sending.redispatch import Redispatch
from delayserver.operations.sending.send import Send
from delayserver.state.shard.leading import Leading


@dataclass(frozen=True, slots=True)
class DelayOperations:
    """The operations that a lone broker does not have."""

    send: Send
    cancel: Cancel
    reschedule: Reschedule
    repeats: Repeats
    lookup: Lookup
    redispatch: Redispatch
    reload: Reload
    pending: PendingByTime
    pending_messages: PendingMessages
    prepare: Prepare
    transactions: Transactions
    open_transactions: OpenTransactions
    schedules: Schedules


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a server or a lone broker; `delay` is None for a lone broker."""

    identity: Identity
    status: Status
    metrics: Metrics
    routing: Routing
    servers: Servers
    tokens: TokenBook
    snapshots: Snapshots
    member: ClusterMember
    consuming: Consuming
    subjects: Subjects
    publish: Publish
    policies: GroupPolicies
    groups: ConsumerGroups
    reads: QueueReads
    broadcasting: Broadcasting
    finding: StoreSearch
    dead_letters: DeadLetterOperations
    waiting_keys: WaitingKeyOperations
    delivering: Delivering
    delay: DelayOperations | None
    leading: Leading | None = None
