"""Builds all operations over the parts of a server."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from delayserver.front.front import SERVER
from delayserver.operations.all_operations import DelayOperations, Operations
from delayserver.operations.figures.pending import PendingByTime
from delayserver.operations.figures.subjects import Subjects
from delayserver.operations.groups.broadcasting import Broadcasting
from delayserver.operations.groups.consumer_groups import ConsumerGroups
from delayserver.operations.groups.dead_letters import DeadLetterOperations
from delayserver.operations.groups.finding import StoreSearch
from delayserver.operations.groups.queue_reads import QueueReads
from delayserver.operations.groups.waiting_keys import WaitingKeyOperations
from delayserver.operations.listing.list_scan import ListScanner
from delayserver.operations.listing.list_selecting import ListSelecting
from delayserver.operations.listing.pending_messages import PendingMessages
from delayserver.operations.listing.shown_messages import ShownMessages
from delayserver.operations.listing.unsettled import Unsettled
from delayserver.operations.messages.cancel import Cancel
from delayserver.operations.messages.contents import Contents
from delayserver.operations.messages.id_search import IdSearch
from delayserver.operations.messages.lookup import Lookup
from delayserver.operations.messages.named_messages import Naming
from delayserver.operations.messages.open_transactions import OpenTransactions
from delayserver.operations.messages.repeats import Repeats
from delayserver.operations.messages.reschedule import Reschedule
from delayserver.operations.messages.schedules import ScheduleChanges, Schedules
from delayserver.operations.messages.timer_files import TimerFiles
from delayserver.operations.messages.transactions import Transactions
from delayserver.operations.nodes.cluster_member import ClusterMember, Shard
from delayserver.operations.nodes.delivering import Delivering
from delayserver.operations.nodes.routing import Routing
from delayserver.operations.sending.admission import Admission
from delayserver.operations.sending.placed_intake import ChecksMessages, PlacedIntake
from delayserver.operations.sending.prepare import Prepare, TermsDesk
from delayserver.operations.sending.publish import Publish
from delayserver.operations.sending.redispatch import Redispatch
from delayserver.operations.sending.redispatch_reading import RedispatchReader
from delayserver.operations.sending.send import Send
from delayserver.server.parts import Parts


def operations_of(parts: Parts, addresses: Iterable[tuple[str, int]]) -> Operations:
    """All operations, for a front at these addresses."""
    ground, receive, broker, groups, figures = parts.ground, parts.receive, parts.broker, parts.groups, parts.figures
    outside, runtime, settings, table = ground.outside, ground.runtime, ground.settings, ground.names
    clock, local, names = runtime.clock, broker.local_broker, receive.names
    own_addresses = frozenset(f"{host}:{port}" for host, port in addresses)
    routing = Routing(parts.state.routes, parts.dispatch.groups, own_addresses, clock)
    admission = Admission(outside.readiness, parts.upkeep.housekeeping, settings.storage.free_bytes_min)
    reads = QueueReads(local, names, groups.first_messages, runtime)
    return Operations(
        identity=figures.identity,
        status=figures.status,
        metrics=figures.metrics,
        routing=routing,
        servers=outside.servers,
        tokens=groups.tokens,
        snapshots=figures.snapshots,
        member=ClusterMember(_shard(parts), outside.servers, settings.broker.wait_ms_max, clock),
        consuming=groups.consuming,
        subjects=Subjects(table),
        publish=Publish(ground.server_id, admission, _intake(parts), routing, broker.publishing, table),
        groups=ConsumerGroups(local, groups.redelivery, names),
        reads=reads,
        broadcasting=Broadcasting(local, reads, names, runtime),
        finding=StoreSearch(local, reads, names),
        dead_letters=DeadLetterOperations(local, groups.redelivery, names, clock),
        waiting_keys=WaitingKeyOperations(local, groups.redelivery, names, clock),
        policies=groups.policies,
        delivering=Delivering(
            local, outside.servers, names, receive.commit, settings.broker.server_clock_ahead_ms_max, clock
        ),
        delay=_delay_operations(parts, admission) if outside.role == SERVER else None,
        leading=None if parts.cluster is None else parts.cluster.leading,
    )


def _shard(parts: Parts) -> Shard | None:
    """The shard of a member; None for a server without a cluster."""
    cluster, hand_over, membership = parts.cluster, parts.hand_over, parts.ground.outside.membership
    if cluster is None or hand_over is None or membership is None:
        return None
    standing = cluster.standing
    leader = partial(membership.leader_of, standing)
    damage, positions = parts.ground.runtime.damage, parts.state.positions
    return Shard(
        cluster.log,
        standing,
        cluster.leading,
        leader,
        hand_over.to,
        membership.map,
        damaged=lambda: bool(damage.own),
        unreplayed_bytes=lambda: positions.lag_bytes,
    )


def _intake(parts: Parts) -> ChecksMessages:
    """What the messages of clients pass."""
    membership, intake = parts.ground.outside.membership, parts.receive.intake
    return intake if membership is None else PlacedIntake(intake, membership.map)


def _delay_operations(parts: Parts, admission: Admission) -> DelayOperations:
    """Those of a server that delays messages."""
    ground, state, messages = parts.ground, parts.state, parts.messages
    intake, commit, names = parts.receive.intake, parts.receive.commit, parts.receive.names
    cancellation, rescheduling, states = messages.cancellation, messages.rescheduling, messages.states
    server_id, table, files = ground.server_id, ground.names, ground.files
    settings, runtime = ground.settings, ground.runtime
    search = IdSearch(parts.keys.index, messages.locator, states, runtime)
    naming = Naming(server_id, intake, names, cancellation, search)
    reader = RedispatchReader(files.schedule, files.dispatch, state.decided, runtime)
    placed = _intake(parts)
    send = Send(server_id, admission, placed, commit, table)
    terms = TermsDesk(names, settings.transactions, settings.message.delay_ms_max)
    contents = Contents(server_id, messages.locator, table, runtime)
    return DelayOperations(
        send=send,
        cancel=Cancel(naming, cancellation),
        reschedule=Reschedule(admission, naming, intake, rescheduling),
        repeats=Repeats(cancellation, states),
        lookup=Lookup(server_id, naming, states, contents, parts.broker.local_broker.recently, table),
        redispatch=Redispatch(files, state.book, reader, commit, admission, ground.outside.servers, runtime),
        reload=parts.dispatch.reload,
        pending=PendingByTime(files, state.windows, state.balance),
        pending_messages=_pending_messages(parts),
        prepare=Prepare(send, admission, placed, commit, terms, runtime.clock),
        open_transactions=OpenTransactions(
            TimerFiles(files, state.book, state.balance, states, runtime.damage),
            state.positions,
            cancellation,
            messages.locator,
            table,
            server_id,
            runtime,
        ),
        transactions=Transactions(admission, naming, intake, rescheduling, cancellation, states, runtime),
        schedules=Schedules(
            admission,
            intake,
            names,
            ScheduleChanges(messages.schedule_records, state.schedules, cancellation, commit, state.positions),
            messages.firing,
            (server_id, ground.outside.membership is not None),
            runtime,
        ),
    )


def _pending_messages(parts: Parts) -> PendingMessages:
    ground, state, messages = parts.ground, parts.state, parts.messages
    files, table, runtime = ground.files, ground.names, ground.runtime
    scanner = ListScanner(files.schedule, table, runtime.damage)
    return PendingMessages(
        files,
        state.book,
        state.positions,
        ListSelecting(table, parts.groups.filters, state.balance.subjects),
        Unsettled(messages.states, files.days, state.book.window_ms),
        ShownMessages(scanner, messages.locator, table, ground.server_id, runtime),
        runtime,
    )
